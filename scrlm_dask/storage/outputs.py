"""Check, write and replace outputs of commands; files of other software are never replaced.

A new output is written at its final path. If a complete output exists there, the new output is
written aside: to a folder next to it or, if that is not possible, to a folder inside it. When the
new output is complete, it takes the place of the old output by renames. A command that fails or is
killed therefore leaves the old output as it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scrlm_dask.errors import StoreError
from scrlm_dask.storage import folders
from scrlm_dask.storage.locations import Location, Place, is_within, locate

KIND = "scrlm"  # attribute of groups that this package writes; values are the kinds below
FEATURES_KIND, LABELS_KIND, MODEL_KIND, RUN_KIND = "features", "labels", "model", "run"
EXPORT_KIND, EXPORT_RECORD = "export", "export.json"

# Files that show that this package wrote an output: the JSON record of a run or an export, or the
# Zarr metadata of a store, which contain the attribute KIND.
_STORE_MARK = "zarr.json"
_MARKS = ("run.json", EXPORT_RECORD, _STORE_MARK)


@contextmanager
def replacing(path: Place, overwrite: bool, kind: str) -> Iterator[Location]:
    """Yield the location to write an output to; move the output to `path` at the end.

    If the caller raises, the new output is discarded, and an old output stays.
    """
    place = open_output(path, overwrite, kind)
    try:
        yield place
    except BaseException:
        discard(place)
        raise
    move_into_place(place, path)


def open_output(path: Place, overwrite: bool, kind: str) -> Location:
    """Check the output with `check_output_free`, and return the empty location to write it to.

    A complete output stays until `move_into_place`; an incomplete output is removed.
    """
    target = locate(path)
    finish_replacement(target)
    check_output_free(target, overwrite, kind)
    for place in _places_aside(target):
        if place.is_occupied():
            _remove(place)
    if target.is_occupied() and not _is_complete(target):
        _remove(target)
    return _choose_place(target)


def locate_unfinished(path: Place) -> Location:
    """Return where an unfinished output is stored: aside if it is to replace an output at `path`.

    If the process that wrote the output was stopped while it replaced the old output, this is
    finished first.
    """
    finish_replacement(path)
    return find_aside(path) or locate(path)


def find_kept(path: Place) -> Location | None:
    """Return a complete output that an interrupted replacement of `path` left aside, if any."""
    target = locate(path)
    places = (*_places_aside(target), *_old_places(target))
    return next((place for place in places if _is_complete(place)), None)


def find_aside(path: Place) -> Location | None:
    """Return the location of an output that is to replace the output at `path`, if there is one."""
    places = _places_aside(locate(path))
    return next((place for place in places if place.is_occupied()), None)


def check_output_free(path: Place, overwrite: bool, kind: str) -> None:
    """Raise if the output exists, unless `overwrite` is set and this package wrote it as `kind`."""
    target = locate(path)
    if target.url.endswith((folders.NEW, folders.OLD, folders.READY)):
        raise StoreError(
            f"the output {path} has a name that is reserved for unfinished outputs; choose another "
            "path"
        )
    if target.is_remote and not target.parents():
        raise StoreError(f"the output {target} is a whole bucket; give a path inside the bucket")
    if not target.is_remote and Path(target.url).is_symlink():
        raise StoreError(
            f"the output {path} is a symbolic link, which is never replaced; give the path that it "
            "points to"
        )
    occupied = target.is_occupied()
    for parent in target.parents():
        if _kind_of(parent) == RUN_KIND:
            raise StoreError(f"the output {path} is inside the run {parent}; choose another path")
    if not occupied:
        return
    replaceable = _kind_of(target) == kind
    if not overwrite:
        other_way = ", or use --overwrite (overwrite=True) to replace it" if replaceable else ""
        raise StoreError(f"the output {path} exists; choose another path{other_way}")
    if not replaceable:
        raise StoreError(
            f"the output {path} exists and was not written as {kind} by this package, so it cannot "
            "be replaced; choose another path or remove it yourself"
        )


def check_not_inside(path: Place, source: Place | None, what: str) -> None:
    """Raise if the output is or contains the input `source`; `what` names the input."""
    check_none_inside(path, () if source is None else (source,), what)


def check_none_inside(path: Place, sources: Iterable[Place], what: str) -> None:
    """Raise if the output is or contains one of the inputs; `what` names an input."""
    target = locate(path)
    places = (target, *_places_aside(target), *_old_places(target))
    resolve = cache(Path.resolve)  # thousands of files have the same parent folders
    for source in sources:
        given = locate(source)
        if any(is_within(given, place, resolve) for place in places):
            raise StoreError(
                f"the output {path} is or contains an input, {what} {source}; choose another "
                "output, or move the input"
            )


def move_into_place(place: Location, path: Place) -> None:
    """Move the complete output from the location of `open_output` to `path`.

    A local output is renamed. Object stores cannot rename, so the objects are copied.
    """
    target = locate(path)
    if place == target or (not place.is_occupied() and _is_complete(target)):
        return  # written at its path, or moved there by another process
    try:
        _copy_objects(place, target) if target.is_remote else _rename(place, target)
    except (OSError, StoreError) as error:
        error.add_note(
            f"the new output is complete in {place}; the next command that writes {path} first "
            "moves it there"
        )
        raise


def finish_replacement(path: Place) -> None:
    """Complete the replacement of an output if a process was stopped during `move_into_place`."""
    target = locate(path)
    place = find_aside(target)
    if place is not None and _is_complete(place):
        move_into_place(place, target)
    elif not target.is_remote and (target / folders.READY).exists():
        _rename(target / folders.NEW, target)
    for old in _old_places(target):
        if not old.is_occupied():
            continue
        if _is_complete(target):
            _remove(old)
        elif not target.is_occupied() and _is_complete(old):
            Path(old.url).rename(target.url)


def _copy_objects(place: Location, target: Location) -> None:
    """Replace the objects of the target; until the last step, the new objects exist aside."""
    if target.is_occupied():
        _remove(target)
    place.copy_to(target, last=_MARKS)
    _remove(place)


def _rename(place: Location, target: Location) -> None:
    new, folder = Path(place.url), Path(target.url)
    swap = folders.swap_content if new.parent == folder else folders.swap_folder
    old = swap(new, folder, _MARKS)
    if old is not None:
        with suppress(OSError):  # the next command that replaces the output removes it
            _remove(Location(str(old)))


def _choose_place(target: Location) -> Location:
    """Return the location to write to: the target, or aside if the target is occupied."""
    if not target.is_occupied():
        return target
    beside, *inside = _places_aside(target)
    return beside if target.is_remote or folders.is_replaceable(Path(target.url)) else inside[0]


def _places_aside(target: Location) -> list[Location]:
    """Return the locations of a new output that is to replace the target: next to it, inside it."""
    beside = Location(f"{target.url}{folders.NEW}", target.options)
    return [beside] if target.is_remote else [beside, target / folders.NEW]


def _old_places(target: Location) -> list[Location]:
    """Return the locations of a local output that is being replaced."""
    if target.is_remote:
        return []
    return [Location(f"{target.url}{folders.OLD}"), target / folders.OLD]


def _remove(target: Location) -> None:
    """Remove an output; until it is removed, it is marked as incomplete."""
    _unmark(target)
    target.remove(last=_MARKS)


def discard(path: Place) -> None:
    """Remove a failed output, so that it is not mistaken for a result.

    If the removal fails, the remaining files are still marked incomplete.
    """
    target = locate(path)
    if not target.is_remote:
        folders.remove_folder(Path(target.url), ignore_errors=True)
        return
    with suppress(StoreError):
        target.remove(last=_MARKS)


def _kind_of(target: Location) -> str | None:
    """Return the kind of output that this package wrote to `target`; None for other files."""
    mark = _read_mark(target)
    return None if mark is None else str(mark.content[KIND])


def _is_complete(target: Location) -> bool:
    """Return whether this package wrote an output to `target` and completed it."""
    mark = _read_mark(target)
    if mark is None:
        return False
    if mark.name == _STORE_MARK:
        return mark.content.get("complete") is not False
    return mark.content.get("status") == "complete"


@dataclass(frozen=True)
class _Mark:
    """The file that shows that this package wrote an output."""

    name: str
    file: dict[str, Any]

    @property
    def content(self) -> dict[str, Any]:
        """The part of the file that this package wrote."""
        own: dict[str, Any] = self.file["attributes"] if self.name == _STORE_MARK else self.file
        return own


def _read_mark(target: Location) -> _Mark | None:
    """Read the mark of an output; None for files of other software."""
    for name in _MARKS:
        try:
            mark = _Mark(name, json.loads((target / name).read_bytes()))
            return mark if mark.content[KIND] else None
        except OSError:  # the file does not exist
            continue
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
    return None


def _unmark(target: Location) -> None:
    """Mark the output as incomplete before it is removed, because removal may be interrupted."""
    mark = _read_mark(target)
    if mark is None:  # its removal was interrupted at the last file
        return
    mark.content.update({"complete": False} if mark.name == _STORE_MARK else {"status": "removed"})
    (target / mark.name).write_text(json.dumps(mark.file))
