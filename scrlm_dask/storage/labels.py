"""The labels store: a group of `labels`, `distances` and `margins`, cut like the features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import zarr

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.kernels.assignment import Assignment
from scrlm_dask.storage.arrays import (
    StoredArray,
    absolute,
    check_complete,
    create_array,
    describe,
    open_node,
)
from scrlm_dask.storage.features import LABELS, MISSING_LABEL

DISTANCES, MARGINS = "distances", "margins"


def create_labels_store(path: str | Path, n_rows: int, block_rows: int) -> str:
    """Lay out an empty labels store, marked unfinished; returns its URL."""
    url = absolute(path)
    group = zarr.create_group(url, attributes={"complete": False})
    create_array(group, (n_rows,), (block_rows,), "int32", MISSING_LABEL, LABELS)
    create_array(group, (n_rows,), (block_rows,), "float32", np.nan, DISTANCES)
    create_array(group, (n_rows,), (block_rows,), "float32", np.nan, MARGINS)
    return url


def write_labels_block(url: str, start: int, assigned: Assignment) -> None:
    group = zarr.open_group(url, mode="r+")
    stop = start + len(assigned.labels)
    group[LABELS][start:stop] = assigned.labels  # type: ignore[index]
    group[DISTANCES][start:stop] = assigned.distances  # type: ignore[index]
    group[MARGINS][start:stop] = assigned.margins  # type: ignore[index]


def open_labels(path: str | Path, what: str) -> StoredArray:
    """The 1-D integer array at `path`, or the one called `labels` in the group there."""
    node = open_node(path, what)
    if isinstance(node, zarr.Group):
        if node.attrs.get("complete", True) is not True:
            raise StoreError(f"{what} {absolute(path)} is unfinished; run the command again")
        member = dict(node.members(max_depth=0)).get(LABELS)
        if not isinstance(member, zarr.Array):
            raise StoreError(f"{what} {absolute(path)} holds no array called {LABELS!r}")
        node = member
    stored = describe(node)
    check_labels_like(stored.shape, stored.dtype, f"{what} {stored.url}")
    check_complete(stored, node, what)
    return stored


def check_labels_like(shape: tuple[int, ...], dtype: np.dtype[np.generic], what: str) -> None:
    if len(shape) != 1 or dtype.kind not in "iu":
        raise InputError(
            f"{what} has the shape {shape} and holds {dtype}; labels are one integer a row"
        )
