"""Features written as a store of ours, each block by the worker that has it."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError
from scrlm_dask.passes.execution import Columns, Execution
from scrlm_dask.passes.features import Features, scattered
from scrlm_dask.storage.features import write_features_block
from scrlm_dask.storage.locations import Location

_INT32 = np.iinfo(np.int32)


def write_pass(
    execution: Execution,
    features: Features,
    labels: da.Array | NDArray[Any] | None,
    url: Location,
    dtype: str,
) -> int:
    """Write all rows, and their labels if given, to the store at `url`; returns how many."""
    columns: Columns = {}
    if labels is not None:
        in_memory = isinstance(labels, np.ndarray)
        lazy: da.Array = scattered(labels, features.block_rows) if in_memory else labels
        columns = {"labels": lazy[:, None].rechunk((features.array.chunks[0], (1,)))}
    written: int = execution.map_reduce(
        "write",
        features,
        _write_part,
        int.__add__,
        columns=columns,
        url=url,
        dtype=dtype,
        what=features.what,
    )
    return written


def _write_part(
    block: NDArray[Any],
    start: int,
    url: Location,
    dtype: str,
    what: str,
    labels: NDArray[Any] | None = None,
) -> int:
    truth = None if labels is None else _as_int32(labels, start)
    write_features_block(url, start, _narrowed(block, np.dtype(dtype), start, what), truth)
    return len(block)


def _narrowed(block: NDArray[Any], dtype: np.dtype[Any], start: int, what: str) -> NDArray[Any]:
    """The block in the type of its store; a number that would become infinite is refused."""
    with np.errstate(over="ignore"):
        narrow = block.astype(dtype, copy=False)
    lost = np.isinf(narrow) & ~np.isinf(block)
    if lost.any():
        row, column = np.argwhere(lost)[0]
        raise InputError(
            f"row {start + row} of {what} holds {block[row, column]:g} (feature {column}), which "
            f"is too large for {dtype}; scale the features or write a wider type"
        )
    return narrow


def _as_int32(labels: NDArray[Any], start: int) -> NDArray[np.int32]:
    beyond = (labels < _INT32.min) | (labels > _INT32.max)
    if beyond.any():
        row = int(np.argmax(beyond))
        raise InputError(
            f"the label of row {start + row} is {labels[row]}; labels are 32-bit integers: number "
            "the classes from 0 on"
        )
    return labels.astype(np.int32)
