"""Open features stores as Dask arrays, and write Dask arrays as features stores."""

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
from scrlm_dask.storage import feature_store, outputs
from scrlm_dask.storage.label_store import check_labels_like
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.manifest import Manifest

_INT32 = np.iinfo(np.int32)


def open_features(
    path: Place, *, block_rows: int | None = None, storage_options: Options | None = None
) -> da.Array:
    """Return the features store at a path or URL as a lazy Dask array (rows, p).

    A worker that does not see the path raises `StoreError`; with `da.from_zarr` it would read
    zeros.
    """
    return as_features(path, block_rows, storage_options).array


def write_features(
    source: FeaturesLike,
    path: Place,
    *,
    labels: da.Array | NDArray[Any] | None = None,
    dtype: str | None = None,
    chunk_bytes: int = feature_store.TARGET_BLOCK_BYTES,
    overwrite: bool = False,
    storage_options: Options | None = None,
    listener: Listener = warn,
) -> str:
    """Write a Dask array of floats, or other features, as a features store; return its URL.

    The workers write whole chunks of `chunk_bytes`, by default in float16 if the source is float16
    and in float32 otherwise. `labels`, one integer per row with -1 for outliers, are the truth.
    A failed write leaves no output, and a store that is replaced stays until the new one is
    finished.
    """
    whole = as_features(source, None, storage_options)
    shape = (whole.n_rows, whole.n_features)
    dtype = dtype or ("float16" if whole.array.dtype == np.float16 else "float32")
    if dtype not in feature_store.STORED_DTYPES:
        raise InputError(f"dtype must be {' or '.join(feature_store.STORED_DTYPES)}, got {dtype}")
    if labels is not None:
        _check_labels(labels, whole.n_rows)
    block_rows = feature_store.block_rows_for(shape, np.dtype(dtype), None, chunk_bytes)
    location = locate(path, storage_options)
    outputs.check_output_free(location, overwrite, outputs.FEATURES_KIND)
    staged = outputs.staging(location)
    outputs.clear_output(staged, True, outputs.FEATURES_KIND)
    manifest = Manifest(*shape, dtype, block_rows, (), {"source": whole.label})
    with ExitStack() as undo, Execution(listener) as execution:
        undo.callback(outputs.discard, staged)
        feature_store.create_features_store(staged, manifest, labels=labels is not None)
        check_paths_visible(staged)
        blocks = as_features(source, block_rows, storage_options)
        write_pass(execution, blocks, labels, staged, dtype)
        feature_store.mark_complete(staged)
        undo.pop_all()
    outputs.move_into_place(staged, location)
    return location.url


def _check_labels(labels: da.Array | NDArray[Any], n_rows: int) -> None:
    check_labels_like(labels.shape, labels.dtype, "the array of labels")
    if labels.shape[0] != n_rows:
        raise InputError(
            f"expected one label per row, got {labels.shape[0]} labels for {n_rows} rows"
        )


def write_pass(
    execution: Execution,
    features: Features,
    labels: da.Array | NDArray[Any] | None,
    location: Location,
    dtype: str,
) -> int:
    """Write all rows, and their labels if given, to the store; return the number of rows."""
    columns: Columns = {}
    if labels is not None:
        in_memory = isinstance(labels, np.ndarray)
        lazy: da.Array = scatter_rows(labels, features.block_rows) if in_memory else labels
        columns = {"labels": lazy[:, None].rechunk((features.array.chunks[0], (1,)))}
    written: int = execution.run(
        Pass("write", _write_part, int.__add__),
        features,
        {"location": location, "dtype": dtype, "what": features.label},
        columns=columns,
    )
    return written


def _write_part(
    block: NDArray[Any],
    start: int,
    location: Location,
    dtype: str,
    what: str,
    labels: NDArray[Any] | None = None,
) -> int:
    truth = None if labels is None else _to_int32(labels, start)
    feature_store.write_features_block(
        location, start, _narrow(block, np.dtype(dtype), start, what), truth
    )
    return len(block)


def _narrow(block: NDArray[Any], dtype: np.dtype[Any], start: int, what: str) -> NDArray[Any]:
    """Convert the block to the dtype of its store; reject numbers that would become infinite."""
    with np.errstate(over="ignore"):
        narrow = block.astype(dtype, copy=False)
    lost = np.isinf(narrow) & ~np.isinf(block)
    if lost.any():
        row, column = np.argwhere(lost)[0]
        raise InputError(
            f"row {start + row} of {what} contains {block[row, column]:g} (feature {column}), "
            f"which is too large for {dtype}; scale the features or use a wider dtype"
        )
    return narrow


def _to_int32(labels: NDArray[Any], start: int) -> NDArray[np.int32]:
    beyond = (labels < _INT32.min) | (labels > _INT32.max)
    if beyond.any():
        row = int(np.argmax(beyond))
        raise InputError(
            f"the label of row {start + row} must be a 32-bit integer, got {labels[row]}; number "
            "the classes from 0"
        )
    return labels.astype(np.int32)
