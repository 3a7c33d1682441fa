"""Replace and remove local folders of outputs.

Folders that cannot be renamed, or that have another owner or mode than a new folder, are kept, and
only their content is replaced: mount points, folders in a read-only parent, and folders that a
user prepared.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

# Suffixes of the folders next to an output, or their names if they are inside the output: the new
# output while it is written, the old output while it is replaced, and a new output whose files are
# being moved up into the folder of the output.
NEW, OLD, READY = ".scrlm-new", ".scrlm-old", ".scrlm-ready"
PARTIAL = f"*.{'[0-9a-f]' * 32}.partial"  # pattern of the names of temporary files
_ZARR_METADATA = ("zarr.json", ".zarray", ".zgroup")
SYSTEM = "lost+found"  # folder of the file system at the root of a volume


def path_aside(folder: Path, suffix: str) -> Path:
    """Return the folder next to `folder` with the given suffix."""
    return folder.with_name(folder.name + suffix)


def is_replaceable(folder: Path) -> bool:
    """Return whether a new folder can take the place of `folder`, with the same owner and mode."""
    probe = path_aside(folder, f".scrlm-{uuid4().hex[:8]}")
    with suppress(OSError):
        probe.mkdir()
        try:
            same = _describe(probe) == _describe(folder)
            return same and folder.resolve() not in (Path.cwd(), *_mount_points())
        finally:
            probe.rmdir()
    return False


def _mount_points() -> list[Path]:
    """Return all mount points; a bind mount has the same device as its parent folder."""
    return [Path(each.mountpoint) for each in psutil.disk_partitions(all=True)]


def _describe(folder: Path) -> tuple[Any, ...]:
    """Return device, owner, group, mode and extended attributes (such as access lists)."""
    status, names = folder.stat(), list[str]()
    if hasattr(os, "listxattr"):  # Linux
        with suppress(OSError):
            names = sorted(os.listxattr(folder))
    extended = [(name, os.getxattr(folder, name)) for name in names]
    return status.st_dev, status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode), extended


def list_content(folder: Path) -> list[Path]:
    """Return the entries of an output folder, without entries that are not part of the output."""
    return [path for path in folder.iterdir() if path.name not in (NEW, OLD, READY, SYSTEM)]


def find_links(store: Path) -> Iterator[Path]:
    """Yield the links to folders in a Zarr store, such as the folder of the chunks of an array.

    Links to files are not searched for, because a store may have millions of them.
    """
    with suppress(PermissionError):  # no command can read such a store
        if not any((store / name).is_file() for name in _ZARR_METADATA):
            return
        chunks_follow = (store / ".zarray").is_file()  # this folder may have a folder per chunk
        for folder in filter(os.DirEntry.is_dir, os.scandir(store)):
            entries = [folder]
            with suppress(PermissionError):
                entries += [] if chunks_follow else os.scandir(folder)
            yield from (Path(each) for each in entries if each.is_symlink() and each.is_dir())


def remove_entries(folder: Path, names: Sequence[str]) -> None:
    """Remove the named entries of a folder in their order, and the folder if it is then empty.

    An empty folder stays if a new folder would not be the same. If the folder is a symbolic link,
    only the link is removed.
    """
    if folder.is_symlink():
        folder.unlink()
        return
    for name in names:
        entry = folder / name
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink(missing_ok=True)
    if folder.name.endswith((NEW, OLD)) or is_replaceable(folder):
        with suppress(OSError):
            folder.rmdir()


def swap_folder(new: Path, folder: Path, last: tuple[str, ...]) -> None:
    """Rename `folder` to its old name and `new` to `folder`.

    If the folder cannot be renamed, only its content is replaced, as by `swap_content`.
    """
    if not folder.exists():
        new.rename(folder)
        return
    old = path_aside(folder, OLD)
    try:
        folder.rename(old)
    except OSError:  # for example, a folder of a lower layer of an overlay file system
        swap_content(new, folder, last)
        return
    try:
        new.rename(folder)
    except OSError:
        old.rename(folder)
        raise


def swap_content(new: Path, folder: Path, last: tuple[str, ...]) -> None:
    """Move the content of `folder` to a folder inside it, and the content of `new` to `folder`.

    An interrupted call can be repeated: the folder READY exists from the end of the first step to
    the end of the second. Entries named in `last` are the first that leave and the last that
    arrive.
    """
    old, ready = folder / OLD, folder / READY
    if not ready.exists():
        old.mkdir(exist_ok=True)
        for entry in sorted(list_content(folder), key=lambda path: path.name not in last):
            shutil.move(entry, old / entry.name)
        new.rename(ready)
    for entry in sorted(ready.iterdir(), key=lambda path: path.name in last):
        shutil.move(entry, folder / entry.name)
    ready.rmdir()
