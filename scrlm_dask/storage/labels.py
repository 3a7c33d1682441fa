"""The labels store: a group of `labels`, `distances` and `margins`, cut like the features."""

from __future__ import annotations

import math
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

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
from scrlm_dask.storage.locations import Location, Place, locate, reaching
from scrlm_dask.storage.outputs import KIND, LABELS_KIND

DISTANCES, MARGINS = "distances", "margins"
_HEADER_BYTES = 2**16
_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


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


@dataclass(frozen=True)
class NpyLabels:
    """Labels in a .npy file: whoever compares a piece of them reads it there."""

    location: Location
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int  # of the first label in the file

    def read(self, start: int, stop: int) -> NDArray[Any]:
        size = self.dtype.itemsize
        with reaching(self.location, "the truth"):
            filesystem, path = self.location.filesystem()
            piece = filesystem.cat_file(
                path, start=self.offset + start * size, end=self.offset + stop * size
            )
        return np.frombuffer(piece, self.dtype)


def open_truth(path: Place) -> StoredArray | NpyLabels:
    """True labels: a .npy file (of which only the header is read) or a Zarr store."""
    url = locate(path)
    if not url.url.endswith(".npy"):
        return open_labels(url, "the truth")
    try:
        labels = _npy_labels(url)
    except StoreError:
        raise
    except (OSError, ValueError) as error:
        raise StoreError(f"the truth {url} cannot be read as .npy ({error})") from error
    check_labels_like(labels.shape, labels.dtype, f"the truth {url}")
    return labels


def _npy_labels(location: Location) -> NpyLabels:
    """What the header of a .npy file says, if the file is as long as it should be."""
    with reaching(location, "the truth"):
        filesystem, path = location.filesystem()
        size = filesystem.info(path)["size"]
        file = BytesIO(filesystem.cat_file(path, start=0, end=min(size, _HEADER_BYTES)))
    version = np.lib.format.read_magic(file)
    if version not in _HEADER_READERS:
        raise ValueError(f"version {version} of the format holds no plain numbers")
    shape, _, dtype = _HEADER_READERS[version](file)
    if dtype.hasobject:
        raise ValueError("it holds pickled objects, which are never loaded")
    labels = NpyLabels(location, shape, dtype, file.tell())
    needed = labels.offset + math.prod(shape) * dtype.itemsize
    if size < needed:
        raise ValueError(f"{size} of {needed} bytes are there")
    return labels


def check_labels_like(shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> None:
    if len(shape) != 1 or dtype.kind not in "iu":
        raise InputError(
            f"{what} has the shape {shape} and holds {dtype}; labels are one integer a row"
        )
