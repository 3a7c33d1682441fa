"""Trace files: detect that an input was rewritten or replaced without reading its content.

A trace of a local file is its size and its modification time in nanoseconds. Symbolic links are
followed, because a reader follows them, and the text of a link is a part of the trace: a link that
points to another file of the same size and time is also detected. Inode numbers are not used,
because some network file systems change them while a file is unchanged.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from fsspec.asyn import AsyncFileSystem, sync
from fsspec.implementations.local import LocalFileSystem

from scrlm_dask.errors import StoreError, UnusableRowsError
from scrlm_dask.storage.locations import Location, Place, locate

# Fields of fsspec's file information that change when a file is rewritten. Each file system has
# only some of these fields.
_WRITTEN = (
    "ETag",
    "mtime",
    "LastModified",
    "last_modified",
    "Last-Modified",
    "updated",
    "created",
)


# Size of a file if known, a value that changes when it is written (modification time in
# nanoseconds, or a field of a remote store), and the text of a symbolic link or "". A plain tuple,
# because a store may have millions of files.
FileTrace: TypeAlias = tuple[int | None, Any, str]
Traces: TypeAlias = Callable[[Sequence[str]], list[FileTrace | None]]


@contextmanager
def open_traces(location: Location) -> Iterator[Traces]:
    """Yield a function that returns the traces of named files below `location`; None if missing.

    Local files are looked up by name instead of listed, so the memory does not depend on their
    number. A remote store is listed once.
    """
    with location.files() as (filesystem, root):
        if isinstance(filesystem, LocalFileSystem):
            folder = os.open(root, os.O_RDONLY)  # shorter paths are looked up faster
            try:
                yield lambda names: [_trace_local(name, folder) for name in names]
            finally:
                os.close(folder)
        else:
            files: dict[str, dict[str, Any]] = filesystem.find(root, detail=True)
            yield lambda names: _trace_remote(filesystem, files, [f"{root}/{n}" for n in names])


def link_text(location: Location) -> str:
    """Return the text of a symbolic link; empty if there is none at `location`."""
    if location.is_remote or not Path(location.url).is_symlink():
        return ""
    return str(Path(location.url).readlink())


def resolve_links(location: Location | None) -> str | None:
    """Return the path to which a local path leads if all links in it are followed."""
    if location is None or location.is_remote:
        return None
    return os.path.realpath(location.url)


def files_digest(place: Place) -> str:
    """Return a digest of the names and traces of all files at `place`, a file or a folder."""
    location, digest = locate(place), hashlib.sha256()
    with location.files() as (filesystem, root):
        is_local = isinstance(filesystem, LocalFileSystem)
        listed = _walk_local(root, "", ()) if is_local else _list_remote(filesystem, root)
        for name, trace in listed:
            digest.update(f"{name} {trace}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _trace_local(name: str, folder: int) -> FileTrace | None:
    try:
        status = os.lstat(name, dir_fd=folder)
        if not stat.S_ISLNK(status.st_mode):
            return status.st_size, status.st_mtime_ns, ""
        link, status = os.readlink(name, dir_fd=folder), os.stat(name, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return None
    return status.st_size, status.st_mtime_ns, link


def _trace_remote(
    filesystem: Any, files: dict[str, dict[str, Any]], names: Sequence[str]
) -> list[FileTrace | None]:
    """Return the traces of named files of the listing `files`; None if a file is not listed."""
    # over HTTP, a listing has no sizes and no times
    unknown = [name for name in names if name in files and files[name].get("size") is None]
    if unknown:
        found = dict(zip(unknown, _request_infos(filesystem, unknown), strict=True))
        files = {name: files[name] for name in names if name in files} | found
    return [_trace_listed(files.get(name)) for name in names]


def _request_infos(filesystem: Any, names: Sequence[str]) -> list[dict[str, Any]]:
    """Request the information on each file, with concurrent requests if possible."""
    if not isinstance(filesystem, AsyncFileSystem):
        return [filesystem.info(name) for name in names]

    async def request() -> list[dict[str, Any]]:
        return list(await asyncio.gather(*map(filesystem._info, names)))

    infos: list[dict[str, Any]] = sync(filesystem.loop, request)
    return infos


def _trace_listed(info: dict[str, Any] | None) -> FileTrace | None:
    if info is None:
        return None
    return info.get("size"), next((info[key] for key in _WRITTEN if info.get(key)), None), ""


def _list_remote(filesystem: Any, root: str) -> Iterator[tuple[str, FileTrace | None]]:
    files = filesystem.find(root, detail=True)
    names = sorted(files)
    for name, trace in zip(names, _trace_remote(filesystem, files, names), strict=True):
        yield str(name).removeprefix(root), trace


def _walk_local(
    path: str, name: str, above: tuple[tuple[int, int], ...]
) -> Iterator[tuple[str, FileTrace | None]]:
    """Yield the relative names and traces of files, in order; follow links to files and folders.

    `above` identifies the parent folders: a link to one of them is not followed, because it would
    lead back to the same files without end. Of each folder, only the names are in memory, because
    it may contain millions of files.
    """
    try:
        status, link = os.lstat(path), ""
        if stat.S_ISLNK(status.st_mode):
            status, link = os.stat(path), os.readlink(path)  # noqa: PTH115, PTH116 - quicker
        is_folder = stat.S_ISDIR(status.st_mode)
        names = sorted(os.listdir(path)) if is_folder else []  # noqa: PTH208 - quicker
    except OSError:  # a link without a target, or no permission: no reader can read it either
        yield name, None
        return
    if not is_folder:
        yield name, (status.st_size, status.st_mtime_ns, link)
        return
    here = status.st_dev, status.st_ino
    if here in above:
        return
    if link:
        yield name, (0, None, link)
    for each in names:
        yield from _walk_local(f"{path}/{each}", f"{name}/{each}", (*above, here))


@dataclass(frozen=True)
class Input:
    """A named input of a job, and the digest of its files when the job was prepared.

    The path without links is compared, but it is not a part of the digest: the digest may be
    recorded, and a store may later be moved or mounted elsewhere.
    """

    name: str  # in messages
    location: Location
    digest: str
    trace: Callable[[Location], str]  # computes the digest again
    resolved: str | None = field(init=False)  # path without links

    def __post_init__(self) -> None:
        object.__setattr__(self, "resolved", resolve_links(self.location))

    def has_changed(self) -> bool:
        """Return whether the input was rewritten, or a link to it was changed."""
        same_path = resolve_links(self.location) == self.resolved
        return not same_path or self.trace(self.location) != self.digest


def trace_input(
    name: str, location: Location | None, trace: Callable[[Location], str] = files_digest
) -> tuple[Input, ...]:
    """Trace the files of an input; an input in memory (None) has no files."""
    return () if location is None else (Input(name, location, trace(location), trace),)


def trace_array(name: str, values: Any) -> tuple[Input, ...]:
    """Trace the file of an `np.memmap`, or of a view of one; other arrays have no file."""
    while values is not None and not isinstance(values, np.memmap):
        values = getattr(values, "base", None)
    # a copy of a memory map has no file name, and a file that was deleted cannot be rewritten
    if values is None or values.filename is None or not Path(values.filename).is_file():
        return ()
    values.flush()  # pages that are written during the job would change the time of the file
    return trace_input(name, locate(values.filename))


@dataclass(frozen=True)
class InputTrace:
    """Inputs whose files must not change until the end of a job."""

    inputs: tuple[Input, ...] = ()

    def check_at_start(self) -> None:
        """Raise if an input changed after the job was prepared."""
        for each in self._changed():
            raise StoreError(
                f"{each.name} {each.location} changed before the run started; run the command again"
            )

    def check(self) -> None:
        """Raise if an input changed; call this before the result is marked complete."""
        for each in self._changed():
            raise UnusableRowsError(
                f"{each.name} {each.location} changed during the run, so the result was discarded; "
                "run the command again when no process writes to it"
            )

    def _changed(self) -> Iterator[Input]:
        return (each for each in self.inputs if each.has_changed())


NO_INPUTS = InputTrace()
