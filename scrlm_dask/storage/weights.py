"""Sample weights in a file: one number a row, as .npy or as a Zarr array."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import zarr

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.storage.arrays import StoredArray, absolute, check_complete, describe, open_node
from scrlm_dask.storage.labels import NpyLabels

WHAT = "the sample weights"


def open_weights(path: str | Path) -> StoredArray | NpyLabels:
    """Weights in a .npy file (mapped, not read) or a Zarr array; neither is read here."""
    url = absolute(path)
    if url.endswith(".npy"):
        try:
            mapped = np.lib.format.open_memmap(url, mode="r")
        except (OSError, ValueError) as error:
            raise StoreError(f"{WHAT} {url} cannot be read as .npy ({error})") from error
        check_weights_like(mapped.shape, mapped.dtype, f"{WHAT} {url}")
        return NpyLabels(url, mapped.shape)
    node = open_node(url, WHAT)
    if not isinstance(node, zarr.Array):
        raise StoreError(f"{WHAT} {url} are a Zarr group; give the path of the array itself")
    stored = describe(node, url)
    check_weights_like(stored.shape, stored.dtype, f"{WHAT} {url}")
    check_complete(stored, node, WHAT)
    return stored


def check_weights_like(shape: tuple[int, ...], dtype: np.dtype[np.generic], what: str) -> None:
    if len(shape) != 1 or dtype.kind not in "fiub":
        raise InputError(
            f"{what} have the shape {shape} and hold {dtype}; weights are one number a row"
        )
