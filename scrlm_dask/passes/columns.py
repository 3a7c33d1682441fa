"""Numbers of each row, cut like the features: weights, labels of an earlier pass, coordinates."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import dask
import dask.array as da
import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.errors import InputError
from scrlm_dask.passes.features import Features, scattered
from scrlm_dask.passes.permits import read_in_turn
from scrlm_dask.storage.arrays import StoredArray, read_rows
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.npy import NpyColumn
from scrlm_dask.storage.weights import WHAT, check_weights_like, open_weights

_LARGEST_SUM = 1e250  # times the largest squared distance it still is a number

WeightsLike: TypeAlias = Place | da.Array | NDArray[Any] | None


def as_weights(
    source: WeightsLike, features: Features, storage_options: Options | None = None
) -> da.Array | None:
    """Sample weights (rows, 1) from an array or from a file (.npy or Zarr); checked."""
    if source is None:
        return None
    if isinstance(source, str | Path | Location):
        source = locate(source, storage_options)
    weights = _as_column(source, features)
    finite, least, most = dask.compute(da.isfinite(weights).all(), weights.min(), weights.max())
    if not (finite and least >= 0.0):
        bad = int(dask.compute((~(da.isfinite(weights) & (weights >= 0.0))).argmax(axis=0))[0][0])
        value = float(weights[bad].compute()[0])
        raise InputError(f"the sample weight of row {bad} is {value}; weights are finite and >= 0")
    if not most > 0.0:
        raise InputError("all sample weights are zero; at least one row must count")
    if most > _LARGEST_SUM / features.n_rows:
        raise InputError(
            f"sample weights go up to {most:g}, whose sums float64 cannot hold; divide all of them "
            "by the largest"
        )
    return weights


def check_weights(
    source: WeightsLike, features: Features, storage_options: Options | None = None
) -> None:
    """Raise what a file of weights says against itself before its numbers are read."""
    if isinstance(source, str | Path | Location):
        _check_length(open_weights(locate(source, storage_options)).shape[0], features)


def column_of(
    parts: list[Delayed], features: Features, blocks: list[int] | None, dtype: Any, width: int = 1
) -> da.Array:
    """Columns whose blocks (rows, width) are results of tasks, one a block of features."""
    sizes = features.array.chunks[0]
    chosen = sizes if blocks is None else [sizes[i] for i in blocks]
    pieces = [
        da.from_delayed(part, (size, width), dtype)
        for part, size in zip(parts, chosen, strict=True)
    ]
    return da.concatenate(pieces)


def _as_column(source: Any, features: Features) -> da.Array:
    if isinstance(source, Location):
        stored = open_weights(source)
        _check_length(stored.shape[0], features)
        return da.map_blocks(
            _read_block,
            source=stored,
            chunks=(features.array.chunks[0], (1,)),
            dtype=np.float64,
            meta=np.empty((0, 0)),
            name=f"weights-{uuid4().hex}",
        )
    values = source if isinstance(source, da.Array) else np.asarray(source)
    check_weights_like(values.shape, values.dtype, WHAT)
    _check_length(values.shape[0], features)
    if isinstance(values, np.ndarray):
        values = scattered(values, features.block_rows)
    return values.astype(np.float64)[:, None].rechunk((features.array.chunks[0], (1,)))


def _check_length(n_rows: int, features: Features) -> None:
    if n_rows != features.n_rows:
        raise InputError(
            f"there are {n_rows} sample weights and {features.n_rows} rows; give one a row"
        )


def _read_block(source: StoredArray | NpyColumn, block_info: Any = None) -> NDArray[np.float64]:
    (start, stop), _ = block_info[None]["array-location"]
    return read_in_turn(lambda: _rows_of(source, start, stop)).astype(np.float64)[:, None]


def _rows_of(source: StoredArray | NpyColumn, start: int, stop: int) -> NDArray[Any]:
    if isinstance(source, NpyColumn):
        return source.read(start, stop)
    return read_rows(source, start, stop, WHAT)
