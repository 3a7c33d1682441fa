"""Zarr arrays as this project writes and reads them: nothing missing, nothing silently broken.

Zarr gives the fill value for a chunk that is not there, and most codecs do not notice a flipped
byte. So arrays are written with a checksum and with every chunk stored, and reading asks whether
the chunks exist before it believes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec

from scrlm_dask.errors import StoreError
from scrlm_dask.storage.chunks import chunks_of, damage_of, missing_chunks

# Zarr leaves out chunks that hold only the fill value, which is how missing ones look. The setting
# belongs to the open array, not to the stored one: whoever writes must give it.
_STORE_ALL: Any = {"write_empty_chunks": True}


@dataclass(frozen=True)
class StoredArray:
    """Where an array lies and how it is cut; small enough to send to every worker."""

    url: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]  # the unit of storage: the shard where there are shards


def absolute(path: str | Path) -> str:
    """A local path made absolute, since workers may run elsewhere; a URL as it is."""
    text = str(path)
    if is_remote(text):
        return text
    return str(Path(text.removeprefix("file://")).absolute())


def is_remote(path: str) -> bool:
    return urlsplit(path).scheme not in ("", "file") and "://" in path


def create_array(
    url: str, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: Any, fill_value: Any
) -> zarr.Array[Any]:
    """Create an array with checksums, to be written by `write_rows`."""
    return zarr.create_array(
        url,
        shape=shape,
        chunks=tuple(max(1, c) for c in chunks),
        dtype=dtype,
        fill_value=fill_value,
        # noise does not compress; the checksum is what notices a flipped byte
        compressors=[Crc32cCodec()],
        config=_STORE_ALL,
    )


def write_rows(url: str, start: int, values: NDArray[Any]) -> None:
    """Write rows from `start` on. Only whole chunks: two writers in one would lose rows."""
    # open_array takes the setting and ignores it
    array = zarr.open_array(url, mode="r+").with_config(_STORE_ALL)
    array[start : start + len(values)] = values


def add_array(url: str, values: NDArray[Any]) -> None:
    """Write a small array in one chunk."""
    create_array(url, values.shape, values.shape, values.dtype, None)
    write_rows(url, 0, values)


def open_node(path: str | Path, what: str) -> zarr.Array[Any] | zarr.Group:
    """Open a Zarr array or group for reading; `what` names it in messages."""
    url = absolute(path)
    if not is_remote(url) and not Path(url).exists():
        raise StoreError(f"{what} {url} does not exist; check the path")
    try:
        return zarr.open(url, mode="r")
    except Exception as error:  # zarr and fsspec raise what they please
        raise StoreError(
            f"{what} {url} cannot be opened as a Zarr store ({_in_short(error)}); "
            "give the path of a Zarr array, or of a group that holds one"
        ) from error


def describe(array: zarr.Array[Any], url: str | None = None) -> StoredArray:
    """`url` is needed where the array is not on a local disk: zarr does not tell it."""
    return StoredArray(
        url=url or _url_of(array),
        shape=tuple(array.shape),
        dtype=np.dtype(array.dtype),
        chunks=tuple(array.shards or array.chunks),
    )


def member(group: zarr.Group, name: str) -> zarr.Array[Any]:
    """The array called `name` in a group."""
    node = group.get(name)
    if not isinstance(node, zarr.Array):
        raise StoreError(f"{group.store_path} holds no array called {name!r}; write it again")
    return node


def read_member(group: zarr.Group, name: str, what: str) -> NDArray[Any]:
    """All of a small array of a group."""
    array = member(group, name)
    return read_rows(describe(array), 0, array.shape[0], what)


def check_complete(stored: StoredArray, array: zarr.Array[Any], what: str) -> None:
    """Refuse an array that lacks chunks, before a run instead of in the middle of it."""
    missing = missing_chunks(stored.url, array)
    if missing:
        first = missing[0]
        raise StoreError(
            f"{len(missing)} chunk(s) of {what} {stored.url} are missing, the first is {first.key} "
            f"(from row {first.row} on); they would read as {array.fill_value}. Restore the files; "
            "if chunks of fill were left out on purpose, write them (write_empty_chunks=True)"
        )


def read_rows(stored: StoredArray, start: int, stop: int, what: str) -> NDArray[Any]:
    """Rows start..stop-1, opened here by path: a worker without the mount must not read zeros."""
    array = open_node(stored.url, what)
    shape = tuple(array.shape) if isinstance(array, zarr.Array) else None
    if not isinstance(array, zarr.Array) or shape != stored.shape:
        raise StoreError(
            f"{what} {stored.url} has the shape {shape} now and had {stored.shape} when the run "
            "began; do not write to it during a run"
        )
    for chunk in chunks_of(array, start, stop):
        damage = damage_of(stored.url, array, chunk)
        if damage is not None:
            raise StoreError(
                f"chunk {chunk.key} of {what} {stored.url} {damage} (rows {start} to {stop - 1}); "
                "restore the file"
            )
    try:
        return np.asarray(array[start:stop])
    except Exception as error:  # each codec has errors of its own
        raise StoreError(
            f"rows {start} to {stop - 1} of {what} {stored.url} cannot be read "
            f"({_in_short(error)}); the chunk is damaged: restore or rewrite it"
        ) from error


def _url_of(array: zarr.Array[Any]) -> str:
    return str(array.store_path).removeprefix("file://")


def _in_short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
