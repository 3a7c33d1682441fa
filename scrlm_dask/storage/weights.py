"""Sample weights in a file: one number a row, as .npy or as a Zarr array."""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.storage.arrays import StoredArray, check_complete, describe, open_node
from scrlm_dask.storage.locations import Location
from scrlm_dask.storage.npy import NpyColumn, open_npy

WHAT = "the sample weights"


def open_weights(location: Location) -> StoredArray | NpyColumn:
    """Weights in a .npy file or a Zarr array, of which nothing is read yet."""
    if location.url.endswith(".npy"):
        column = open_npy(location, WHAT)
        check_weights_like(column.shape, column.dtype, f"{WHAT} {location}")
        return column
    node = open_node(location, WHAT)
    if not isinstance(node, zarr.Array):
        raise StoreError(f"{WHAT} {location} are a Zarr group; give the path of the array itself")
    stored = describe(node, location)
    check_weights_like(stored.shape, stored.dtype, f"{WHAT} {location}")
    check_complete(stored, node, WHAT)
    return stored


def check_weights_like(shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> None:
    if len(shape) != 1 or dtype.kind not in "fiub":
        raise InputError(
            f"{what} have the shape {shape} and hold {dtype}; weights are one number a row"
        )
