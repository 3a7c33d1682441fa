"""Features stores as Dask arrays, and Dask arrays as features stores."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError
from scrlm_dask.events import Listener, warn
from scrlm_dask.passes.execution import Execution
from scrlm_dask.passes.features import FeaturesLike, as_features
from scrlm_dask.passes.mounts import check_seen_by_workers
from scrlm_dask.passes.write import write_pass
from scrlm_dask.storage.features import (
    STORED_DTYPES,
    TARGET_BLOCK_BYTES,
    block_rows_for,
    create_features_store,
    mark_complete,
)
from scrlm_dask.storage.labels import check_labels_like
from scrlm_dask.storage.locations import Options, Place, locate
from scrlm_dask.storage.manifest import Manifest
from scrlm_dask.storage.outputs import (
    FEATURES_KIND,
    check_way,
    discard,
    make_way,
    move_into_place,
    staging,
)


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
    check_way(url, overwrite, FEATURES_KIND)
    staged = staging(url)
    make_way(staged, True, FEATURES_KIND)
    manifest = Manifest(*shape, dtype, block_rows, (), {"source": whole.what})
    with ExitStack() as undo, Execution(listener) as execution:
        undo.callback(discard, staged)
        create_features_store(staged, manifest, labels=labels is not None)
        check_seen_by_workers(staged)
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
