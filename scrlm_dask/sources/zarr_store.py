"""Zarr arrays of others: version 2 or 3, any chunks, sharded or not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.base import Source, choices, native, only_table
from scrlm_dask.storage.arrays import StoredArray, check_complete, describe, open_node, read_rows
from scrlm_dask.storage.feature_store import FEATURES
from scrlm_dask.storage.locations import Location
from scrlm_dask.storage.manifest import SourceFile

_WHAT = "the Zarr source"


@dataclass(frozen=True)
class ZarrSource(Source):
    """A flipped byte is noticed where the array has a checksum (crc32c, or zstd's)."""

    stored: StoredArray
    group: Location | None  # where its columns are

    @property
    def unit_rows(self) -> int:
        return self.stored.chunks[0]

    def column(self, name: str) -> Source:
        if self.group is None:
            return super().column(name)
        return open_zarr(self.group, name)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return read_rows(self.stored, start, stop, _WHAT).astype(native(self.dtype), copy=False)


def looks_like_zarr(folder: str) -> bool:
    return any((Path(folder) / name).is_file() for name in ("zarr.json", ".zarray", ".zgroup"))


def open_zarr(url: Location, name: str | None = None) -> ZarrSource:
    """Open an array, or of a group the one called `name`, `features`, or the only table."""
    group = None
    node = open_node(url, _WHAT)
    if isinstance(node, zarr.Group):
        group = url
        if node.attrs.get("complete", True) is not True:
            raise StoreError(f"{_WHAT} {url} is unfinished; finish writing it first")
        chosen = name or _table_in(node, url)
        found = node.get(chosen)
        if not isinstance(found, zarr.Array):
            listed = choices(chosen, sorted(node))
            raise InputError(f"{_WHAT} {url} holds no array {chosen!r} (it holds {listed})")
        node, url = found, url / chosen
    elif name is not None:
        raise InputError(f"{_WHAT} {url} is an array, so it holds no {name!r}")
    stored = describe(node, url)
    check_complete(stored, node, _WHAT)
    return ZarrSource((_as_file(url),), stored.shape, stored.dtype, stored, group)


def open_zarr_values(url: Location, name: str) -> ZarrSource:
    """Open one value per row: an array, or the one called `name` in a group."""
    node = open_node(url, _WHAT)
    return open_zarr(url, name if isinstance(node, zarr.Group) else None)


def _table_in(group: zarr.Group, url: Location) -> str:
    arrays = dict(group.arrays())
    if FEATURES in arrays:
        return FEATURES
    tables = [name for name, a in arrays.items() if a.ndim == 2 and np.dtype(a.dtype).kind in "fiu"]
    return only_table(f"{_WHAT} {url}", tables, list(arrays))


def _as_file(location: Location) -> SourceFile:
    with location.files(_WHAT) as (filesystem, root):
        return SourceFile(location.url, int(filesystem.du(root)))
