"""Features written as a store of ours, each block by the worker that has it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from scrlm_dask.engine.execution import Columns, Execution, Pass
from scrlm_dask.engine.features import Features, FeaturesLike, as_features, scatter_rows
from scrlm_dask.engine.workers import check_paths_visible
from scrlm_dask.errors import InputError
from scrlm_dask.events import Listener, warn
from scrlm_dask.storage.feature_store import (
    STORED_DTYPES,
    TARGET_BLOCK_BYTES,
    block_rows_for,
    create_features_store,
    mark_complete,
    write_features_block,
)
from scrlm_dask.storage.label_store import check_labels_like
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.manifest import Manifest
from scrlm_dask.storage.outputs import (
    FEATURES_KIND,
    check_output_free,
    clear_output,
    discard,
    move_into_place,
    staging,
)

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
        lazy: da.Array = scatter_rows(labels, features.block_rows) if in_memory else labels
        columns = {"labels": lazy[:, None].rechunk((features.array.chunks[0], (1,)))}
    broadcast = {"url": url, "dtype": dtype, "what": features.label}
    written: int = execution.run(_WRITE, features, broadcast, columns=columns)
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


_WRITE = Pass("write", _write_part, int.__add__)


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


def open_features(
    path: Place, *, block_rows: int | None = None, storage_options: Options | None = None
) -> da.Array:
    """The features store at a path or URL as a lazy Dask array (rows, p).

    Whoever computes a block opens the path there. A worker that does not have it raises
    `StoreError`; with `da.from_zarr` it would read zeros.
    """
    return as_features(path, block_rows, storage_options).array


def write_features(
    source: FeaturesLike,
    path: Place,
    *,
    labels: da.Array | NDArray[Any] | None = None,
    dtype: str | None = None,
    chunk_bytes: int = TARGET_BLOCK_BYTES,
    overwrite: bool = False,
    storage_options: Options | None = None,
    listener: Listener = warn,
) -> str:
    """Write a Dask array of floats (or whatever else holds features) as a features store.

    The workers write whole chunks of `chunk_bytes`, in float16 if the source is or `dtype` says so
    and in float32 otherwise. `labels`, one integer a row with -1 for outliers, are the truth.
    Nothing is left if it fails, and what is replaced stays until the new store is finished.
    """
    whole = as_features(source, None, storage_options)
    shape = (whole.n_rows, whole.n_features)
    dtype = dtype or ("float16" if whole.array.dtype == np.float16 else "float32")
    if dtype not in STORED_DTYPES:
        raise InputError(f"dtype is {dtype}; features are written as {' or '.join(STORED_DTYPES)}")
    if labels is not None:
        _check_labels(labels, whole.n_rows)
    block_rows = block_rows_for(shape, np.dtype(dtype), None, chunk_bytes)
    url = locate(path, storage_options)
    check_output_free(url, overwrite, FEATURES_KIND)
    staged = staging(url)
    clear_output(staged, True, FEATURES_KIND)
    manifest = Manifest(*shape, dtype, block_rows, (), {"source": whole.label})
    with ExitStack() as undo, Execution(listener) as execution:
        undo.callback(discard, staged)
        create_features_store(staged, manifest, labels=labels is not None)
        check_paths_visible(staged)
        blocks = as_features(source, block_rows, storage_options)
        write_pass(execution, blocks, labels, staged, dtype)
        mark_complete(staged)
        undo.pop_all()
    move_into_place(staged, url)
    return url.url


def _check_labels(labels: da.Array | NDArray[Any], n_rows: int) -> None:
    check_labels_like(labels.shape, labels.dtype, "the array of labels")
    if labels.shape[0] != n_rows:
        raise InputError(
            f"there are {labels.shape[0]} labels and {n_rows} rows; give one label a row"
        )
