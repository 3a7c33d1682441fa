"""Create, open, check, read and write Zarr arrays and groups."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import zarr
from fsspec.implementations.local import LocalFileSystem
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec
from zarr.errors import ContainsGroupError

from scrlm_dask.errors import MissingError, ScrlmError, StoreError
from scrlm_dask.storage.locations import Location, Place, locate, reaching
from scrlm_dask.storage.outputs import describe_interruption
from scrlm_dask.storage.traces import (
    FileTrace,
    Input,
    Traces,
    files_digest,
    link_text,
    open_traces,
    trace_input,
)

_UNWRITTEN = 2**64 - 1  # offset, in a shard's index, of a chunk that was never written
_CHECKSUM_BYTES = 4
MOST_COUNTED = 10**6  # missing chunks that are counted
_TRACED_AT_ONCE = 4096
_METADATA = ("zarr.json", ".zarray", ".zattrs")
_GROUP_METADATA = (".zgroup", ".zmetadata")
# Limits for the metadata of arrays. Damaged or malicious metadata may claim any number; the limits
# are far above what can be processed, and are checked before anything of that size is created.
_MOST_CHUNKS = 10**8
_MOST_CHUNK_BYTES = 2**40
_MOST_METADATA_BYTES = 2**28
_BLOSC_HEADER_BYTES = 16


class Chunk(NamedTuple):
    """A unit of storage: a chunk, or a shard if the array is sharded."""

    grid: tuple[int, ...]  # position in the chunk grid
    key: str  # file name relative to the array
    row: int  # number of its first row


@dataclass(frozen=True)
class ChunkFiles:
    """The files of an array's chunks: their number, their size, and a digest of their traces."""

    n_chunks: int
    n_missing: int  # chunks that were never written or are lost, at most `MOST_COUNTED`
    first_missing: Chunk | None
    n_bytes: int  # with the metadata
    digest: str  # changes when a file is written, also behind a symbolic link


def count_chunks(array: zarr.Array[Any]) -> int:
    """Return the number of chunks of an array, or of shards if it is sharded."""
    sizes = array.shards or array.chunks
    return math.prod(-(-n // size) for n, size in zip(array.shape, sizes, strict=True))


def chunks_of(array: zarr.Array[Any], start: int, stop: int) -> Iterator[Chunk]:
    """Yield the chunks that contain rows start..stop-1."""
    return (_chunk_at(array, index) for index in _grid(array, start, stop))


def _grid(array: zarr.Array[Any], start: int, stop: int) -> Iterator[tuple[int, ...]]:
    """Yield the positions of the chunks that contain rows start..stop-1, in order."""
    sizes = array.shards or array.chunks
    axes = [range(start // sizes[0], -(-stop // sizes[0]))]
    axes += [range(-(-n // size)) for n, size in zip(array.shape[1:], sizes[1:], strict=True)]
    return _positions(axes)


def _positions(axes: Sequence[range]) -> Iterator[tuple[int, ...]]:
    """Yield the positions of a grid in order; `itertools.product` would copy the axes to memory."""
    first, *others = axes
    if not others:
        return ((i,) for i in first)
    return ((i, *rest) for i in first for rest in _positions(others))


def _chunk_at(array: zarr.Array[Any], index: tuple[int, ...]) -> Chunk:
    row = index[0] * (array.shards or array.chunks)[0] if index else 0
    return Chunk(index, array.metadata.encode_chunk_key(index), row)


def _lookups(
    trace: Traces, array: zarr.Array[Any]
) -> Iterator[tuple[list[tuple[int, ...]], list[FileTrace | None]]]:
    """Yield positions and traces of all chunks in order, a few thousand at a time."""
    key = array.metadata.encode_chunk_key
    # an array without dimensions has one chunk
    grid = _grid(array, 0, array.shape[0]) if array.shape else iter([()])
    while some := list(itertools.islice(grid, _TRACED_AT_ONCE)):
        yield some, trace([key(index) for index in some])


def missing_rows(location: Location, array: zarr.Array[Any]) -> Iterator[int]:
    """Yield the first row of each chunk that was never written or is lost."""
    with open_traces(location) as trace:
        for indices, traces in _lookups(trace, array):
            for index, found in zip(indices, traces, strict=True):
                if found is None:
                    yield _chunk_at(array, index).row


def trace_chunks(location: Location, array: zarr.Array[Any]) -> ChunkFiles:
    """Look up the file of each chunk once; also look for missing chunks inside shards.

    The lookup ends after `MOST_COUNTED` missing chunks, because damaged metadata may claim a number
    of chunks that would take hours.
    """
    metadata = json.dumps(array.metadata.to_dict(), default=str)
    digest = hashlib.sha256(f"{metadata}{_links(location, array)}".encode())
    look_inside = array.shards is not None and _has_default_index(array)
    first, n_missing = None, 0
    with open_traces(location) as trace:
        n_bytes = _total_bytes(trace(_METADATA))
        for indices, traces in _lookups(trace, array):
            digest.update(repr(traces).encode())
            n_bytes += _total_bytes(traces)
            missing = []
            for index, found in zip(indices, traces, strict=True):
                if found is None:
                    missing.append(_chunk_at(array, index))
                elif look_inside:
                    missing += _missing_in_shard(location, array, _chunk_at(array, index))
            first, n_missing = first or next(iter(missing), None), n_missing + len(missing)
            if n_missing >= MOST_COUNTED:
                break
    return ChunkFiles(count_chunks(array), n_missing, first, n_bytes, digest.hexdigest())


def trace_node(name: str, location: Location | None) -> tuple[Input, ...]:
    """Trace an array, or the arrays of a group; an input in memory (None) has no files."""
    return trace_input(name, location, node_digest)


def node_digest(location: Location) -> str:
    """Return a digest of the files of an array, or of the arrays of a group, or of a single file.

    Other files are ignored: a store of another author may contain links to any folder, such as
    /proc, and a walk through all files would not end. Object stores have no links.
    """
    if location.is_remote or Path(location.url).is_file():
        return files_digest(location)
    try:
        node = open_node(location, "the input")
        if isinstance(node, zarr.Array):
            return trace_chunks(location, node).digest
        digest = hashlib.sha256(json.dumps(node.metadata.to_dict(), default=str).encode())
        for name in member_names(node, location):
            array = child(node, location, name)
            if isinstance(array, zarr.Array):
                digest.update(f"{name} {trace_chunks(location / name, array).digest}\n".encode())
    except (StoreError, FileNotFoundError):  # removed or damaged: another digest than before
        return ""
    return digest.hexdigest()


def _total_bytes(traces: Iterable[FileTrace | None]) -> int:
    return sum(trace[0] or 0 for trace in traces if trace is not None)


def _links(location: Location, array: zarr.Array[Any]) -> tuple[str, ...]:
    """Return the texts of the links to the array's folder and to the folder of its chunks."""
    folder, separator, _ = array.metadata.encode_chunk_key((0,) * array.ndim).partition("/")
    below = (location / folder,) if separator else ()
    return tuple(link_text(each) for each in (location, *below))


def find_damage(
    location: Location, array: zarr.Array[Any], start: int, stop: int
) -> tuple[Chunk, str] | None:
    """Return a chunk of rows start..stop-1 with damage that decoding would not detect, if any.

    The text describes the damage. All chunks are checked in one call, because a read may contain
    hundreds of small chunks.
    """
    compressors = array.compressors
    is_blosc = bool(compressors) and type(compressors[-1]).__name__.startswith("Blosc")
    is_blosc = is_blosc and array.shards is None
    with location.files() as (filesystem, root):
        is_local = isinstance(filesystem, LocalFileSystem)
        for chunk in chunks_of(array, start, stop):
            path = f"{root}/{chunk.key}"
            # a read of a pipe or a device may not end
            if not (os.path.isfile(path) if is_local else filesystem.exists(path)):  # noqa: PTH113
                return chunk, "is missing or is not a regular file"
            damage = _blosc_damage(filesystem, path) if is_blosc else None
            if damage is not None:
                return chunk, damage
    return None


def _blosc_damage(filesystem: Any, path: str) -> str | None:
    """Describe a truncated file; numcodecs would read past its end, and return garbage or crash."""
    header = filesystem.cat_file(path, start=0, end=_BLOSC_HEADER_BYTES)
    claimed = int.from_bytes(header[12:16], "little")
    size = filesystem.info(path)["size"]
    truncated = len(header) < _BLOSC_HEADER_BYTES or claimed > size
    return f"is truncated: {size} of {claimed} bytes are present" if truncated else None


def _missing_in_shard(location: Location, array: zarr.Array[Any], shard: Chunk) -> list[Chunk]:
    """Return the chunks that are unwritten according to the index at the end of a shard."""
    assert array.shards is not None
    inner = np.array(array.chunks)
    ratio = np.array(array.shards) // inner
    n_bytes = 16 * int(ratio.prod()) + _CHECKSUM_BYTES
    with location.files() as (filesystem, root):
        path = f"{root}/{shard.key}"
        short = filesystem.size(path) < n_bytes
        index = b"" if short else filesystem.cat_file(path, start=-n_bytes)
    if len(index) != n_bytes:
        return []  # the shard is truncated: an error is raised later, when it is decoded
    offsets = np.frombuffer(index[:-_CHECKSUM_BYTES], "<u8").reshape(*ratio, 2)[..., 0]
    corners = (np.argwhere(offsets == _UNWRITTEN) + np.array(shard.grid) * ratio) * inner
    # an edge shard also has index entries beyond the array, which are never written
    corners = corners[(corners < np.array(array.shape)).all(axis=1)]
    return [Chunk(shard.grid, shard.key, int(corner[0])) for corner in corners]


def _has_default_index(array: zarr.Array[Any]) -> bool:
    """Return whether shards have Zarr's default index: at the end, with a checksum."""
    codecs: Any = array.metadata.to_dict()["codecs"]
    (settings,) = [c["configuration"] for c in codecs if c["name"] == "sharding_indexed"]
    names = [c["name"] for c in settings["index_codecs"]]
    return settings.get("index_location", "end") == "end" and names == ["bytes", "crc32c"]


# By default Zarr omits chunks that contain only the fill value, which would look like missing
# chunks. The setting is not stored with the array, so every writer must set it.
_STORE_ALL: Any = {"write_empty_chunks": True}
OUR_FORMAT: Literal[3] = 3  # Zarr format of all arrays and groups that this package writes


@dataclass(frozen=True)
class StoredArray:
    """Location, shape and chunks of a Zarr array; small enough to send to every worker."""

    location: Location
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunks: tuple[int, ...]  # the unit of storage: shards if the array is sharded
    plain: bool = False  # True: not compressed, filtered or sharded; checksums are allowed


def create_group(place: Place, attributes: dict[str, Any]) -> None:
    """Create an empty group with the given attributes; raise if a group exists at `place`."""
    location = locate(place)
    with reaching(location):
        try:
            zarr.create_group(location.store(), attributes=attributes)
        except ContainsGroupError as error:  # the caller has checked that there was no output
            raise StoreError(
                f"the output {location} exists now: another process has just created it; wait "
                "for it, or choose another output"
            ) from error


def set_attribute(location: Location, name: str, value: Any, remove: str = "") -> None:
    """Write an attribute of the group at `location`; at the same time, remove another."""
    with reaching(location):
        group = zarr.open_group(location.store(), mode="r+", zarr_format=OUR_FORMAT)
        kept = {each: old for each, old in group.attrs.items() if each != remove}
        group.attrs.put({**kept, name: value})


def create_array(
    place: Place, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: Any, fill_value: Any
) -> zarr.Array[Any]:
    """Create an array with checksums, to be written by `write_rows`."""
    location = locate(place)
    with reaching(location):
        return zarr.create_array(
            location.store(),
            shape=shape,
            chunks=tuple(max(1, c) for c in chunks),
            dtype=dtype,
            fill_value=fill_value,
            # no compression, because features hardly compress; a checksum detects a flipped byte
            compressors=[Crc32cCodec()],
            config=_STORE_ALL,
        )


def write_rows(place: Place, start: int, values: NDArray[Any]) -> None:
    """Write rows from `start` on; the caller must pass the rows of whole chunks.

    If two processes wrote parts of the same chunk, one would overwrite the rows of the other.
    """
    location = locate(place)
    with reaching(location):
        # with_config is required, because open_array accepts this setting but ignores it
        array = zarr.open_array(location.store(), mode="r+", zarr_format=OUR_FORMAT)
        array.with_config(_STORE_ALL)[start : start + len(values)] = values


def add_array(place: Place, values: NDArray[Any]) -> None:
    """Write a small array in one chunk."""
    create_array(place, values.shape, values.shape, values.dtype, None)
    write_rows(place, 0, values)


def open_node(place: Place, what: str) -> zarr.Array[Any] | zarr.Group:
    """Open a Zarr array or group for reading; `what` names it in messages."""
    location = locate(place)
    zarr_format = None
    if location.is_remote:
        zarr_format = _format_at(location, what)
    elif not Path(location.url).exists():
        hint = describe_interruption(location) or "; check the path"
        raise MissingError(f"{what} {location} does not exist{hint}")
    _check_metadata(location)
    try:
        node = zarr.open(location.store(), mode="r", zarr_format=zarr_format)
    except ScrlmError:  # the watchdog raises in the main thread
        raise
    except Exception as error:  # errors of zarr and fsspec have no common base class
        location.exists()  # raises if the store became unreachable
        reason = location.without_options(error)
        if not location.is_remote and isinstance(error, FileNotFoundError):
            reason = "zarr.json, .zarray or .zgroup not found"
        hint = describe_interruption(location) or (
            "; give the path of a Zarr array, or of a group that contains one"
        )
        raise StoreError(
            f"{what} {location} cannot be opened as a Zarr store ({reason}){hint}"
        ) from (None if location.is_remote else error)
    check_layout(node, f"{what} {location}")
    return node


def check_layout(node: Any, what: str) -> None:
    """Raise if an array's metadata claims chunks without rows, or more than can be processed.

    This is checked before any list of chunks or blocks is created.
    """
    if not isinstance(node, zarr.Array):
        return
    sizes = (*node.chunks, *(node.shards or ()))
    if not all(size > 0 for size in sizes):
        problem = f"chunks of shape {node.shards or node.chunks}"
    elif math.prod(node.chunks) * node.dtype.itemsize > _MOST_CHUNK_BYTES:
        problem = f"chunks of shape {node.chunks}, more than {_MOST_CHUNK_BYTES} bytes each"
    elif count_chunks(node) > _MOST_CHUNKS:
        problem = f"{count_chunks(node)} chunks, more than {_MOST_CHUNKS}"
    else:
        return
    raise StoreError(
        f"{what} cannot be read: its metadata claims shape {tuple(node.shape)} in {problem}; "
        "restore its metadata, or write the array again with chunks of about 64 MB"
    )


def describe(array: zarr.Array[Any], place: Place | None = None) -> StoredArray:
    """Return the location, shape and chunks of an open array.

    `place` is required for remote arrays, because Zarr does not provide their URL.
    """
    checksums = all(isinstance(codec, Crc32cCodec) for codec in array.compressors)
    return StoredArray(
        location=locate(place or local_path(array)),
        shape=tuple(array.shape),
        dtype=np.dtype(array.dtype),
        chunks=tuple(array.shards or array.chunks),
        plain=checksums and not array.filters and array.shards is None,
    )


def _check_metadata(location: Location) -> None:
    """Raise if local metadata of an array or group is not in regular files."""
    if not location.is_remote:
        for name in (*_METADATA, *_GROUP_METADATA):
            (location / name).check_regular(_MOST_METADATA_BYTES)


def local_path(node: zarr.Array[Any] | zarr.Group) -> str:
    """Return the path of an array or group on a local disk."""
    return str(node.store_path).removeprefix("file://")


def child(group: zarr.Group, location: Location, name: str) -> zarr.Array[Any] | zarr.Group | None:
    """Return the array or group called `name` in the group at `location`; None if it is missing."""
    _check_metadata(location / name)
    with _reading_metadata(location, name):
        node = group.get(name)
    check_layout(node, f"{name} in {location}")
    return node


def has_member(group: zarr.Group, location: Location, name: str) -> bool:
    """Return whether the group at `location` contains an array or group called `name`."""
    _check_metadata(location / name)
    with _reading_metadata(location, name):
        return name in group


def member_names(group: zarr.Group, location: Location) -> list[str]:
    """Return the sorted names of the arrays and groups in the group at `location`."""
    if not location.is_remote:
        for name in location.entry_names():
            _check_metadata(location / name)
    # Zarr warns about other files in the group
    with _reading_metadata(location, "an array"), warnings.catch_warnings(action="ignore"):
        return sorted(group)


@contextmanager
def _reading_metadata(location: Location, name: str) -> Iterator[None]:
    """Convert errors of a read of the metadata of `name` in the group at `location`."""
    with reaching(location):
        try:
            yield
        except (OSError, ScrlmError):
            raise
        except Exception as error:  # damaged metadata makes Zarr raise errors of many types
            raise StoreError(
                f"{name} in {location} cannot be opened: its metadata is damaged "
                f"({location.without_options(error)}); restore it, or write the store again"
            ) from (None if location.is_remote else error)


def member(group: zarr.Group, location: Location, name: str) -> zarr.Array[Any]:
    """Return the array called `name` in the group at `location`."""
    node = child(group, location, name)
    if not isinstance(node, zarr.Array):
        raise StoreError(f"{location} contains no array called {name!r}; write it again")
    return node


def read_member(
    group: zarr.Group, location: Location, name: str, what: str, rows: slice = slice(None)
) -> NDArray[Any]:
    """Read all rows, or only `rows`, of the array called `name` in the group at `location`."""
    array = member(group, location, name)
    start, stop, _ = rows.indices(array.shape[0])
    return read_rows(describe(array, location / name), start, stop, what)


def open_array(location: Location, what: str) -> zarr.Array[Any]:
    """Open the array at `location` without its group, whose attributes may be large."""
    node = open_node(location, what)
    if not isinstance(node, zarr.Array):
        raise StoreError(f"{what} {location} is a group, not an array; write the store again")
    return node


def check_complete(stored: StoredArray, array: zarr.Array[Any], what: str) -> ChunkFiles:
    """Raise if chunks of the array are missing, so that a run fails before it starts."""
    files = trace_chunks(stored.location, array)
    first = files.first_missing
    if first is not None:
        more = "or more " if files.n_missing >= MOST_COUNTED else ""
        raise StoreError(
            f"{files.n_missing} {more}chunk(s) of {what} {stored.location} are missing, the first "
            f"is {first.key} (from row {first.row} on); they would be read as {array.fill_value}: "
            "restore the files, or, if chunks that contain only the fill value were omitted on "
            "purpose, write them with write_empty_chunks=True"
        )
    return files


def read_rows(stored: StoredArray, start: int, stop: int, what: str) -> NDArray[Any]:
    """Read rows start..stop-1; see `read_spans`."""
    return read_spans(stored, [(start, stop)], what)


def read_spans(stored: StoredArray, spans: Sequence[tuple[int, int]], what: str) -> NDArray[Any]:
    """Read several ranges of rows in one call, and concatenate them.

    The array is opened and checked for each read. A worker on which the file system is not mounted
    therefore raises an error instead of returning fill values.
    """
    location = stored.location
    array = open_node(location, what)
    shape = tuple(array.shape) if isinstance(array, zarr.Array) else None
    if not isinstance(array, zarr.Array) or shape != stored.shape:
        raise StoreError(
            f"{what} {location} has shape {shape}, but had {stored.shape} when the run started; "
            "do not write to it during a run"
        )
    for start, stop in spans:
        damaged = find_damage(location, array, start, stop)
        if damaged is not None:
            chunk, damage = damaged
            raise StoreError(
                f"chunk {chunk.key} of {what} {location} {damage} (rows {start} to {stop - 1}); "
                "restore the file"
            )
    start, stop = spans[0][0], spans[-1][1]
    try:
        if len(spans) == 1:
            return np.asarray(array[start:stop])
        return np.asarray(array.oindex[np.concatenate([np.arange(*span) for span in spans])])
    except ScrlmError:
        raise
    except MemoryError as error:
        n_bytes = math.prod(array.chunks) * array.dtype.itemsize
        raise StoreError(
            f"rows {start} to {stop - 1} of {what} {location} do not fit in memory: according to "
            f"its metadata, a chunk has shape {array.chunks} and {n_bytes} bytes; use more memory, "
            "restore the metadata, or write the array again with chunks of about 64 MB"
        ) from error
    except Exception as error:  # codecs have no common base class of errors
        location.exists()  # raises if the store became unreachable
        raise StoreError(
            f"rows {start} to {stop - 1} of {what} {location} cannot be read "
            f"({location.without_options(error)}); the chunk is damaged: restore it or write it "
            "again"
        ) from (None if location.is_remote else error)


def _format_at(location: Location, what: str) -> Literal[2, 3]:
    """Return the Zarr format of a remote array or group.

    The metadata files of the formats are requested one at a time. Zarr would request the files of
    both formats at once; if one request failed, Zarr would leave the other request pending.
    """
    marks: dict[str, Literal[2, 3]] = {"zarr.json": 3, ".zarray": 2, ".zgroup": 2}
    with location.files(what) as (filesystem, root):
        for name, zarr_format in marks.items():
            if filesystem.exists(f"{root}/{name}"):
                return zarr_format
        # For web servers, fsspec's `exists` is also False if the server is not reached.
        with suppress(FileNotFoundError):
            filesystem.cat_file(f"{root}/zarr.json")
    hint = describe_interruption(location) or (
        "; give the URL of a Zarr array, or of a group that contains one"
    )
    raise StoreError(
        f"{what} {location} does not exist (or its bucket does not), or is not a Zarr store{hint}"
    )
