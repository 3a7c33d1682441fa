"""Zarr arrays written by other software: format 2 or 3, any chunks, sharded or not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.base import INPUT, Source, choices, native, only_table
from scrlm_dask.storage.arrays import (
    StoredArray,
    check_complete,
    child,
    describe,
    member_names,
    open_node,
    read_rows,
    trace_chunks,
)
from scrlm_dask.storage.feature_store import (
    FEATURES,
    StoredOrigins,
    is_shuffled,
    open_origins,
    store_of,
    value_names,
)
from scrlm_dask.storage.locations import Location
from scrlm_dask.storage.manifest import SourceFile
from scrlm_dask.storage.traces import Input

_WHAT = "the Zarr source"


@dataclass(frozen=True)
class CopiedStore:
    """Properties of a features store that a copy of its features inherits or lacks."""

    origins: StoredOrigins | None  # None: unknown, or row i of the store is row i of its source
    inputs: tuple[Input, ...]  # arrays of the origins
    is_shuffled: bool
    value_names: tuple[str, ...]


@dataclass(frozen=True)
class ZarrSource(Source):
    """A Zarr array.

    A flipped byte is detected only if the array has a checksum (crc32c, or zstd with checksum).
    """

    stored: StoredArray
    group: Location | None  # the group that contains the array and its other columns
    copied: CopiedStore | None = None  # of the features of a features store

    @property
    def unit_rows(self) -> int:
        """Number of rows per chunk or shard."""
        return self.stored.chunks[0]

    def stored_origins(self) -> list[StoredOrigins | None]:
        """Return the recorded source files of the rows of a features store, if any."""
        return [None if self.copied is None else self.copied.origins]

    @property
    def is_shuffled(self) -> bool:
        """Return whether these are the features of a store whose rows were shuffled."""
        return self.copied is not None and self.copied.is_shuffled

    @property
    def value_names(self) -> tuple[str, ...]:
        """Names of the labels and ids that are stored with the features."""
        return () if self.copied is None else self.copied.value_names

    def inputs(self) -> tuple[Input, ...]:
        """Return the arrays that are read with their digests; locations have storage options."""
        features = Input(INPUT, self.stored.location, self.files[0].digest, _digest_chunks)
        return (features, *(() if self.copied is None else self.copied.inputs))

    def column(self, name: str) -> Source:
        """Open another array of the same group."""
        if self.group is None:
            return super().column(name)
        return open_zarr(self.group, name)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows start..stop-1; the array is opened and checked for each read."""
        return read_rows(self.stored, start, stop, _WHAT).astype(native(self.dtype), copy=False)


def looks_like_zarr(folder: str) -> bool:
    """Return whether a local folder is a Zarr array or group of format 2 or 3."""
    return any((Path(folder) / name).is_file() for name in ("zarr.json", ".zarray", ".zgroup"))


def open_zarr(url: Location, name: str | None = None) -> ZarrSource:
    """Open the array at `url`, or an array of the group at `url`.

    Of a group, open the array called `name` if given, else "features", else the only table.
    """
    group = copied = None
    node = open_node(url, _WHAT)
    if isinstance(node, zarr.Group):
        group = url
        if node.attrs.get("complete", True) is not True:
            raise StoreError(f"{_WHAT} {url} is incomplete; finish writing it first")
        chosen = name or _table_in(node, url)
        array = child(node, url, chosen)
        if not isinstance(array, zarr.Array):
            listed = choices(chosen, member_names(node, url))
            raise InputError(
                f"{_WHAT} {url} contains no array {chosen!r} (it contains {listed}); give one of "
                "these"
            )
        copied = _describe_copied(url) if chosen == FEATURES else None
        node, url = array, url / chosen
    elif name is not None:
        raise InputError(f"array {name!r} not found: {_WHAT} {url} is an array, not a group")
    elif (store := store_of(url)) != url:
        copied = replace(_describe_copied(store), value_names=())  # the array alone was given
    stored = describe(node, url)
    files = check_complete(stored, node, _WHAT)
    file = SourceFile(url.url, files.n_bytes, files.digest)
    return ZarrSource((file,), stored.shape, stored.dtype, stored, group, copied)


def _describe_copied(store: Location) -> CopiedStore:
    found = open_origins(store)
    origins = None if found is None or found.rows is None else found
    arrays = () if origins is None else (origins.rows, origins.numbers)
    places = [array.location for array in arrays if array is not None]
    inputs = tuple(Input(INPUT, at, _digest_chunks(at), _digest_chunks) for at in places)
    return CopiedStore(origins, inputs, is_shuffled(store) is True, value_names(store))


def open_zarr_values(url: Location, name: str) -> ZarrSource:
    """Open one value per row: an array, or the array called `name` in a group."""
    node = open_node(url, _WHAT)
    return open_zarr(url, name if isinstance(node, zarr.Group) else None)


def _table_in(group: zarr.Group, url: Location) -> str:
    nodes = {name: child(group, url, name) for name in member_names(group, url)}
    arrays = {name: node for name, node in nodes.items() if isinstance(node, zarr.Array)}
    if FEATURES in arrays:
        return FEATURES
    tables = [name for name, a in arrays.items() if a.ndim == 2 and np.dtype(a.dtype).kind in "fiu"]
    return only_table(f"{_WHAT} {url}", tables, list(arrays))


def _digest_chunks(location: Location) -> str:
    node = open_node(location, _WHAT)
    return "" if isinstance(node, zarr.Group) else trace_chunks(location, node).digest
