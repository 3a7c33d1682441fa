"""The labels store: a group of `labels`, `distances` and `margins`, cut like the features."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.kernels.assignment import Assignment
from scrlm_dask.storage.arrays import (
    StoredArray,
    absolute,
    check_complete,
    create_array,
    describe,
    member,
    open_node,
    write_rows,
)
from scrlm_dask.storage.features import LABELS, MISSING_LABEL
from scrlm_dask.storage.outputs import KIND, LABELS_KIND

DISTANCES, MARGINS = "distances", "margins"


def create_labels_store(path: str | Path, n_rows: int, block_rows: int) -> str:
    """Lay out an empty labels store, marked unfinished; returns its URL."""
    url = absolute(path)
    zarr.create_group(url, attributes={KIND: LABELS_KIND, "complete": False})
    create_array(f"{url}/{LABELS}", (n_rows,), (block_rows,), "int32", MISSING_LABEL)
    create_array(f"{url}/{DISTANCES}", (n_rows,), (block_rows,), "float32", np.nan)
    create_array(f"{url}/{MARGINS}", (n_rows,), (block_rows,), "float32", np.nan)
    return url


def write_labels_block(url: str, start: int, assigned: Assignment) -> None:
    write_rows(f"{url}/{LABELS}", start, assigned.labels)
    write_rows(f"{url}/{DISTANCES}", start, assigned.distances)
    write_rows(f"{url}/{MARGINS}", start, assigned.margins)


def open_labels(path: str | Path, what: str) -> StoredArray:
    """The 1-D integer array at `path`, or the one called `labels` in the group there."""
    url = absolute(path)
    node = open_node(url, what)
    if isinstance(node, zarr.Group):
        if node.attrs.get("complete", True) is not True:
            raise StoreError(f"{what} {url} is unfinished; run the command again")
        node, url = member(node, LABELS), f"{url}/{LABELS}"
    stored = describe(node, url)
    check_labels_like(stored.shape, stored.dtype, f"{what} {stored.url}")
    check_complete(stored, node, what)
    return stored


@dataclass(frozen=True)
class NpyLabels:
    """Labels in a .npy file: whoever compares a piece of them maps the file there."""

    path: str
    shape: tuple[int, ...]

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return np.asarray(np.lib.format.open_memmap(self.path, mode="r")[start:stop])


def open_truth(path: str | Path) -> StoredArray | NpyLabels:
    """True labels: a .npy file (mapped, not read) or a Zarr store."""
    url = absolute(path)
    if not url.endswith(".npy"):
        return open_labels(url, "the truth")
    try:
        labels = np.lib.format.open_memmap(url, mode="r")
    except (OSError, ValueError) as error:
        raise StoreError(f"the truth {url} cannot be read as .npy ({error})") from error
    check_labels_like(labels.shape, labels.dtype, f"the truth {url}")
    return NpyLabels(url, labels.shape)


def check_labels_like(shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> None:
    if len(shape) != 1 or dtype.kind not in "iu":
        raise InputError(
            f"{what} has the shape {shape} and holds {dtype}; labels are one integer a row"
        )
