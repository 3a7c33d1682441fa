"""What the files of an array tell before Zarr is asked to decode them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr

from scrlm_dask.storage.locations import Location, reaching

_UNWRITTEN = 2**64 - 1  # offset, in a shard's index, of a chunk that is not there
_CHECKSUM_BYTES = 4
_BLOSC_HEADER_BYTES = 16


@dataclass(frozen=True)
class Chunk:
    """A unit of storage: a chunk, or a shard where there are shards."""

    grid: tuple[int, ...]  # its place
    key: str  # its file, below the array
    row: int  # its first row


def chunks_of(array: zarr.Array[Any], start: int, stop: int) -> list[Chunk]:
    """The chunks that rows start..stop-1 touch."""
    sizes = array.shards or array.chunks
    grid = [range(start // sizes[0], -(-stop // sizes[0]))]
    grid += [range(-(-n // size)) for n, size in zip(array.shape[1:], sizes[1:], strict=True)]
    return [
        Chunk(place, array.metadata.encode_chunk_key(place), place[0] * sizes[0])
        for place in itertools.product(*grid)
    ]


def missing_chunks(location: Location, array: zarr.Array[Any]) -> list[Chunk]:
    """Chunks that were never written, or are gone; those inside shards, too."""
    with reaching(location):
        return _missing(location, array)


def damage_of(location: Location, array: zarr.Array[Any], chunk: Chunk) -> str | None:
    """What is wrong with a chunk's file that decoding it would not notice, in words."""
    with reaching(location):
        return _damage(location, array, chunk)


def _missing(location: Location, array: zarr.Array[Any]) -> list[Chunk]:
    filesystem, root = location.filesystem()
    present = {str(name).removeprefix(f"{root}/") for name in filesystem.find(root)}
    missing = []
    for chunk in chunks_of(array, 0, array.shape[0]):
        # asked again one by one: the listing does not follow links to folders
        if chunk.key not in present and not filesystem.exists(f"{root}/{chunk.key}"):
            missing.append(chunk)
        elif _has_default_index(array):
            missing += _missing_in_shard(filesystem, f"{root}/{chunk.key}", array, chunk)
    return missing


def _damage(location: Location, array: zarr.Array[Any], chunk: Chunk) -> str | None:
    filesystem, root = location.filesystem()
    path = f"{root}/{chunk.key}"
    if not filesystem.exists(path):
        return "is missing"
    if _is_blosc(array):
        # numcodecs reads past the end of a blosc chunk that was cut: rubbish, or a crash
        header = filesystem.cat_file(path, start=0, end=_BLOSC_HEADER_BYTES)
        claimed = int.from_bytes(header[12:16], "little")
        size = filesystem.info(path)["size"]
        if len(header) < _BLOSC_HEADER_BYTES or claimed > size:
            return f"is cut short: {size} of {claimed} bytes are there"
    return None


def _missing_in_shard(
    filesystem: Any, path: str, array: zarr.Array[Any], shard: Chunk
) -> list[Chunk]:
    """Chunks that the index at the end of a shard says were never written."""
    assert array.shards is not None
    inner = np.array(array.chunks)
    ratio = np.array(array.shards) // inner
    index = filesystem.cat_file(path, start=-16 * int(ratio.prod()) - _CHECKSUM_BYTES)
    if len(index) != 16 * ratio.prod() + _CHECKSUM_BYTES:
        return []  # cut short: decoding it will say so
    offsets = np.frombuffer(index[:-_CHECKSUM_BYTES], "<u8").reshape(*ratio, 2)[..., 0]
    corners = (np.argwhere(offsets == _UNWRITTEN) + np.array(shard.grid) * ratio) * inner
    # an edge shard has places beyond the array, which nobody writes
    corners = corners[(corners < np.array(array.shape)).all(axis=1)]
    return [Chunk(shard.grid, shard.key, int(corner[0])) for corner in corners]


def _has_default_index(array: zarr.Array[Any]) -> bool:
    """Sharded, with the index where and how Zarr writes it by default: last, with a checksum."""
    if array.shards is None:
        return False
    codecs: Any = array.metadata.to_dict()["codecs"]
    (settings,) = [c["configuration"] for c in codecs if c["name"] == "sharding_indexed"]
    names = [c["name"] for c in settings["index_codecs"]]
    return settings.get("index_location", "end") == "end" and names == ["bytes", "crc32c"]


def _is_blosc(array: zarr.Array[Any]) -> bool:
    last = array.compressors[-1] if array.compressors else None
    return array.shards is None and type(last).__name__.startswith("Blosc")
