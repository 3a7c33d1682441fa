"""The labels store: a group of `labels`, `distances` and `margins`, cut like the features."""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.kernels.assignment import Assignment
from scrlm_dask.storage.arrays import (
    StoredArray,
    check_complete,
    create_array,
    create_group,
    describe,
    member,
    open_node,
    write_rows,
)
from scrlm_dask.storage.features import LABELS, MISSING_LABEL
from scrlm_dask.storage.locations import Location, Place, locate
from scrlm_dask.storage.npy import NpyColumn, open_npy
from scrlm_dask.storage.outputs import KIND, LABELS_KIND

DISTANCES, MARGINS = "distances", "margins"


def create_labels_store(path: Place, n_rows: int, block_rows: int) -> Location:
    """Lay out an empty labels store, marked unfinished."""
    url = locate(path)
    create_group(url, {KIND: LABELS_KIND, "complete": False})
    create_array(url / LABELS, (n_rows,), (block_rows,), "int32", MISSING_LABEL)
    create_array(url / DISTANCES, (n_rows,), (block_rows,), "float32", np.nan)
    create_array(url / MARGINS, (n_rows,), (block_rows,), "float32", np.nan)
    return url


def write_labels_block(path: Place, start: int, assigned: Assignment) -> None:
    url = locate(path)
    write_rows(url / LABELS, start, assigned.labels)
    write_rows(url / DISTANCES, start, assigned.distances)
    write_rows(url / MARGINS, start, assigned.margins)


def open_labels(path: Place, what: str) -> StoredArray:
    """The 1-D integer array at `path`, or the one called `labels` in the group there."""
    url = locate(path)
    node = open_node(url, what)
    if isinstance(node, zarr.Group):
        if node.attrs.get("complete", True) is not True:
            raise StoreError(f"{what} {url} is unfinished; run the command again")
        node, url = member(node, url, LABELS), url / LABELS
    stored = describe(node, url)
    check_labels_like(stored.shape, stored.dtype, f"{what} {stored.url}")
    check_complete(stored, node, what)
    return stored


def open_truth(path: Place) -> StoredArray | NpyColumn:
    """True labels: a .npy file (of which only the header is read) or a Zarr store."""
    url = locate(path)
    if not url.url.endswith(".npy"):
        return open_labels(url, "the truth")
    labels = open_npy(url, "the truth")
    check_labels_like(labels.shape, labels.dtype, f"the truth {url}")
    return labels


def check_labels_like(shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> None:
    if len(shape) != 1 or dtype.kind not in "iu":
        raise InputError(
            f"{what} has the shape {shape} and holds {dtype}; labels are one integer a row"
        )
