"""The features store: an array (rows, p) of floats, or a group that holds `features`.

A group may also hold `labels`, the truth, for those who have it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.storage.arrays import (
    OUR_FORMAT,
    StoredArray,
    check_complete,
    create_array,
    create_group,
    describe,
    open_node,
    read_member,
    write_rows,
)
from scrlm_dask.storage.locations import Location, Place, locate, reaching
from scrlm_dask.storage.outputs import FEATURES_KIND, KIND

FEATURES, LABELS = "features", "labels"
TRUE = "true_"  # prefix of the parameters of the mixture that rows were drawn from
MISSING_LABEL = -2  # fill of label arrays: neither a cluster nor an outlier
TARGET_BLOCK_BYTES = 64 * 2**20
_SMALL_BLOCK_BYTES, _FEW_BLOCKS = 4 * 2**20, 16


def open_features_store(path: Place) -> StoredArray:
    """Find the features and check that they can be used."""
    url = locate(path)
    node = open_node(url, "the features store")
    if isinstance(node, zarr.Array):
        return checked_features(node, url)
    array = node.get(FEATURES)
    if not isinstance(array, zarr.Array):
        found = ", ".join(sorted(node)) or "nothing"
        raise StoreError(
            f"the group {url} holds no array called {FEATURES!r} (it holds {found}); "
            "give the path of the array itself"
        )
    if node.attrs.get("complete", True) is not True:
        raise StoreError(
            f"the features store {url} is unfinished: whoever wrote it was stopped; write it again"
        )
    return checked_features(array, url / FEATURES)


def has_truth(path: Place) -> bool:
    """Whether the store knows the true labels of its rows."""
    node = open_node(path, "the features store")
    return isinstance(node, zarr.Group) and LABELS in node


def checked_features(array: zarr.Array[Any], url: Place | None = None) -> StoredArray:
    stored = describe(array, url)
    check_features_like(stored.shape, stored.dtype, f"the features store {stored.url}")
    check_complete(stored, array, "the features store")
    return stored


def check_features_like(shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> None:
    """Refuse what is not a non-empty table of floats."""
    if len(shape) != 2:
        raise InputError(f"{what} has {len(shape)} dimension(s); features are rows x features")
    if shape[0] < 1 or shape[1] < 1:
        raise InputError(f"{what} has the shape {shape}; it needs at least one row and one feature")
    if dtype.kind != "f":
        raise InputError(
            f"{what} holds {dtype}; features are float16, float32 or float64: "
            "convert it with .astype('float32')"
        )


def block_rows_for(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    chunk_rows: int | None,
    target_bytes: int | None = None,
) -> int:
    """Rows of a block: near the target size, in whole chunks where there are chunks.

    A small store is cut into a few blocks all the same, so that there is work to share. The
    number of workers has no say: the bits must not depend on it.
    """
    n_rows, n_features = shape
    if target_bytes is None:
        share = n_rows * n_features * dtype.itemsize // _FEW_BLOCKS
        target_bytes = min(TARGET_BLOCK_BYTES, max(share, _SMALL_BLOCK_BYTES))
    fitting = max(1, target_bytes // (n_features * dtype.itemsize))
    if chunk_rows is not None:
        fitting = chunk_rows * max(1, fitting // chunk_rows)
    return min(fitting, n_rows)


def create_features_store(
    path: Place, n_rows: int, n_features: int, block_rows: int, attributes: dict[str, Any]
) -> Location:
    """Lay out an empty group with features and labels, marked unfinished."""
    url = locate(path)
    create_group(url, {**attributes, KIND: FEATURES_KIND, "complete": False})
    create_array(url / FEATURES, (n_rows, n_features), (block_rows, n_features), "float32", np.nan)
    create_array(url / LABELS, (n_rows,), (block_rows,), "int32", MISSING_LABEL)
    return url


def write_features_block(
    path: Place, start: int, features: NDArray[Any], labels: NDArray[np.int32]
) -> None:
    url = locate(path)
    write_rows(url / FEATURES, start, features)
    write_rows(url / LABELS, start, labels)


def mark_complete(path: Place) -> None:
    """The last write: readers refuse a store without it."""
    url = locate(path)
    with reaching(url):
        group = zarr.open_group(url.store(), mode="r+", zarr_format=OUR_FORMAT)
        group.attrs["complete"] = True


def read_true_sigmas(path: Place) -> NDArray[np.float64] | None:
    """Sigmas of the mixture that the store's rows were drawn from, if it says so."""
    node = open_node(path, "the features store")
    if not isinstance(node, zarr.Group) or f"{TRUE}sigmas" not in node:
        return None
    return read_member(node, path, f"{TRUE}sigmas", "the features store")
