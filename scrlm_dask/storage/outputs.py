"""Check, write and replace outputs of commands; files of other software are never replaced.

A new output is written at its final path. If a complete output exists there, the new output is
written aside: to a folder next to it or, if that is not possible, to a folder inside it. When the
new output is complete, it takes the place of the old output by renames. A command that fails or is
killed therefore leaves the old output as it was.

The mark of an unfinished store or export contains its owner: a token, and the process that writes
it. A second process on the same host is rejected while the owner is alive. If a process on another
host takes over the output, it writes its own token, and the first process stops at its next block.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from glob import escape
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from scrlm_dask.errors import StoreError
from scrlm_dask.storage import folders
from scrlm_dask.storage.locations import Location, Place, is_within, locate

KIND = "scrlm"  # attribute of groups that this package writes; values are the kinds below
FEATURES_KIND, LABELS_KIND, MODEL_KIND, RUN_KIND = "features", "labels", "model", "run"
EXPORT_KIND, EXPORT_RECORD = "export", "export.json"
REPORT_KIND, REPORT_RECORD = "report", "report.json"  # the folder of the figures of a report
FILES = "files"  # field of the records of exports and reports: names of their files
OWNER = "owner"  # attribute of unfinished stores and exports

# Names of the entries that this package writes to outputs of each kind. An output with other
# entries is not replaced, because they belong to the user. The marks of a report and of a complete
# export contain the names of their files.
_ENTRIES = {
    FEATURES_KIND: (
        *("zarr.json", "features", "labels", "ids", "digests", "source_row", "source_file"),
        *("dropped", "true_weights", "true_means", "true_sigmas", ".shuffle"),
    ),
    LABELS_KIND: ("zarr.json", "labels", "distances", "margins", "fine", "coarse"),
    RUN_KIND: ("run.json", "events.jsonl", "cluster-state.json", "checkpoint", "report.html"),
    MODEL_KIND: (
        *("zarr.json", "centers", "center_rows", "losses", "neighbors", "means", "counts"),
        *("weights", "sigmas", "shift", "scale"),
        *("tree_leaves", "tree_weights", "tree_merges", "tree_costs"),
    ),
    EXPORT_KIND: (
        *(EXPORT_RECORD, "labels.parquet", "labels.csv"),
        *("centers.npy", "centers.fbin", "centers.faiss"),
    ),
    REPORT_KIND: (REPORT_RECORD,),
}
# Kinds of the outputs that a run contains; their entries are also checked
_PARTS = {
    "model.zarr": MODEL_KIND,
    "labels.zarr": LABELS_KIND,
    "report": REPORT_KIND,
    f"report{folders.NEW}": REPORT_KIND,
    f"report{folders.OLD}": REPORT_KIND,
}
# temporary files of this package and of Zarr, and files of file systems and file managers
_OTHERS = (folders.PARTIAL, ".nfs*", ".DS_Store")
# Commands that finish an interrupted replacement of an output of each kind
_COMMANDS = {
    FEATURES_KIND: "the next `scrlm ingest`, `scrlm embed` or `scrlm synth` with this output",
    LABELS_KIND: "the next `scrlm predict` or `scrlm cut` with this output",
    RUN_KIND: "`scrlm fit --resume {}` (or `scrlm kmeans`)",
    EXPORT_KIND: "the next `scrlm export` with this output",
    REPORT_KIND: "the next `scrlm report` with this output",
}
# Files that show that this package wrote an output: the JSON record of a run, an export or the
# figures of a report, or the Zarr metadata of a store, which contain the attribute KIND.
_STORE_MARK = "zarr.json"
# Most often, the mark of a store is read.
_MARKS = (_STORE_MARK, "run.json", EXPORT_RECORD, REPORT_RECORD)
_DIGESTS = "digests"  # array: a store of features is resumed with the blocks that have a digest
_active: set[str] = set()  # tokens of the outputs that threads of this process are writing


@contextmanager
def replacing(path: Place, overwrite: bool, kind: str) -> Iterator[Location]:
    """Yield the location to write an output to; move the output to `path` at the end.

    If the caller raises, the new output is discarded, and an old output stays.
    """
    with owning(path) as target:
        place = open_output(target, overwrite, kind)
        try:
            yield place
        except BaseException:
            discard(place, kind)
            raise
        move_into_place(place, target)


@contextmanager
def owning(path: Place) -> Iterator[Location]:
    """Yield the location of an output with a new token of its owner, valid inside the context."""
    token = uuid4().hex
    _active.add(token)
    target = replace(locate(path), owner=token)
    try:
        yield target
    finally:
        _active.discard(token)
        _release(target)


def _release(target: Location) -> None:
    """Remove the process from the mark of an unfinished output, so that others can resume it.

    The process of a notebook, for example, stays alive after its import was interrupted.
    """
    with suppress(OSError, StoreError):
        for place in (target, *_places_aside(target)):
            mark = _read_mark(place)
            if mark is not None and not mark.is_complete and _is_owned(target, mark):
                mark.with_content({OWNER: {"token": target.owner}}).write(place)


def describe_owner(place: Location) -> dict[str, Any]:
    """Return the attribute that the writer of a store or an export adds to its mark."""
    return {OWNER: {"token": place.owner, **describe_process(os.getpid())}} if place.owner else {}


def take_over(place: Location) -> None:
    """Replace the owner of an unfinished output, so that its former owner stops writing."""
    mark = _read_mark(place)
    if mark is not None:
        mark.with_content(describe_owner(place)).write(place)


def check_owner(place: Location) -> None:
    """Raise if the output at `place` is no longer that of the owner in `place`, if any."""
    if place.owner is not None and not _is_owned(place, _read_mark(place)):
        raise StoreError(
            f"another process has taken over the output {place}, and its files were not changed; "
            "choose another output"
        )


def _is_owned(place: Location, mark: Mark | None) -> bool:
    return mark is not None and mark.owner.get("token") == place.owner


def check_not_written(path: Place) -> None:
    """Raise if another process or thread on this host is writing the output."""
    target = locate(path)
    _check_no_links(target)
    for place in (target, *_places_aside(target)):
        mark = _read_mark(place)
        if mark is None or mark.is_complete or mark.owner.get("token") == target.owner:
            continue
        if is_alive(mark.owner):
            raise StoreError(
                f"the output {target} is being written by process {mark.owner['pid']}; wait for it "
                "or stop it"
            )


def is_alive(owner: dict[str, Any]) -> bool:
    """Return whether the owner is a running process of this host that still writes the output."""
    pid = owner.get("pid")
    if not isinstance(pid, int):
        return False
    process = {name: owner.get(name) for name in ("host", "pid", "began")}
    if describe_process(pid) != process:
        return False
    return pid != os.getpid() or owner.get("token") in _active


def describe_process(pid: int) -> dict[str, Any]:
    """Return host, PID and start time of a process; a PID alone may be reused by the system."""
    host = {"host": socket.gethostname()}
    try:
        return host | {"pid": pid, "began": _process_start(pid)}
    except (psutil.Error, ValueError, OverflowError):  # a damaged mark may contain any number
        return host


def _process_start(pid: int) -> str | int:
    """Return when a process started; on Linux, the boot and the time since then.

    On Linux, the start in seconds since 1970 changes when the system clock is set.
    """
    with suppress(OSError, ValueError, IndexError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return f"{boot} {int(fields[19])}"
    began: float = psutil.Process(pid).create_time()
    return round(began)


def open_output(path: Place, overwrite: bool, kind: str) -> Location:
    """Check the output with `check_output_free`, and return the empty location to write it to.

    A complete output stays until `move_into_place`; an incomplete output is removed.
    """
    target = locate(path)
    check_not_written(target)
    finish_replacement(target)
    mark = _check_free(target, overwrite, kind)
    for place in _places_aside(target):
        if place.is_occupied():
            _remove(place)
    if mark is not None and not mark.is_complete:
        _remove(target)
    return _choose_place(target)


def locate_unfinished(path: Place) -> Location:
    """Return where an unfinished output is stored: at `path`, or aside if it is to replace it."""
    return find_aside(path) or locate(path)


def find_complete_copy(path: Place) -> Location | None:
    """Return a complete output that an interrupted replacement of `path` left aside, if any."""
    target = locate(path)
    places = [*_places_aside(target), *_old_places(target)]
    places += [] if target.is_remote else [target / folders.READY]
    return next((place for place in places if _is_complete(place)), None)


def describe_interruption(path: Place) -> str:
    """Return the end of a message if an output is missing because its replacement was interrupted.

    The text starts with a comma. Otherwise, it is empty.
    """
    with suppress(OSError):  # the caller raises an error in any case
        copy = find_complete_copy(path)
        mark = None if copy is None else _read_mark(copy)
        if mark is not None:
            command = _COMMANDS.get(mark.kind, "the command that writes it").format(path)
            return (
                ", because a process was stopped while it replaced the output; the output is "
                f"complete in {copy}, and {command} moves it to its path"
            )
    return ""


def find_aside(path: Place) -> Location | None:
    """Return the location of an output that is to replace the output at `path`, if there is one."""
    places = _places_aside(locate(path))
    return next((place for place in places if _read_mark(place) is not None), None)


def check_output_free(path: Place, overwrite: bool, kind: str) -> None:
    """Raise if the output exists, unless `overwrite` is set and this package wrote it as `kind`.

    If a process was stopped while it replaced the output, `open_output` finishes this, and then
    makes the same check.
    """
    target = locate(path)
    check_not_written(target)
    if not _is_being_replaced(target):
        _check_free(target, overwrite, kind)


def _check_free(target: Location, overwrite: bool, kind: str) -> Mark | None:
    """Make the check of `check_output_free`; return the mark of the existing output, if any."""
    if target.url.endswith((folders.NEW, folders.OLD, folders.READY)):
        raise StoreError(
            f"the output {target} has a name that is reserved for unfinished outputs; choose "
            "another path"
        )
    if target.is_remote and not target.parents():
        raise StoreError(
            f"the output {target} is a whole bucket; give a path inside it, such as "
            f"{target}/out.zarr"
        )
    if _is_link(target):
        raise StoreError(
            f"the output {target} is a symbolic link, which is never replaced; give the path that "
            "it points to"
        )
    for parent in target.parents() if kind != REPORT_KIND else ():  # a report may be in its run
        if _is_run(parent):
            raise StoreError(f"the output {target} is inside the run {parent}; choose another path")
    for place in (*_places_aside(target), *_old_places(target)):
        mark = _read_mark(place)
        _check_entries(place, "" if mark is None else mark.kind)
    if not _has_content(target):
        return None
    mark = _read_mark(target)
    replaceable = mark is not None and mark.kind == kind
    if not overwrite:
        other_way = ", or use --overwrite (overwrite=True) to replace it" if replaceable else ""
        raise StoreError(f"the output {target} exists; choose another path{other_way}")
    if not replaceable:
        raise StoreError(
            f"the output {target} exists and was not written as {kind} by this package, so it "
            "cannot be replaced; choose another path or remove it yourself"
        )
    _check_entries(target, kind)
    return mark


def _check_entries(target: Location, kind: str) -> None:
    """Raise if an output contains entries that this package did not write."""
    _, foreign = _sort_entries(target, kind)
    if foreign:
        raise StoreError(
            f"the output {target} contains {_list_names(foreign)}, which this package did not "
            "write; move these files, or choose another path"
        )


def _sort_entries(target: Location, kind: str) -> tuple[list[str], list[str]]:
    """Return the names of the entries that this package wrote to an output, and of all others.

    A folder of a run that contains both is not named, but its entries are.
    """
    known = (*_names_written(target, kind), *_OTHERS)
    own, foreign = list[str](), list[str]()
    for name in sorted(target.entry_names()):
        place, part = target / name, _PARTS.get(name) if kind == RUN_KIND else None
        if part is None or _is_link(place):
            is_own = part is not None or any(fnmatchcase(name, pattern) for pattern in known)
            (own if is_own else foreign).append(name)
        elif place.is_file():  # each part is a folder
            foreign.append(name)
        else:
            inner, others = _sort_entries(place, part)
            own += [f"{name}/{each}" for each in inner] if others else [name]
            foreign += [f"{name}/{each}" for each in others]
    return own, foreign


def _names_written(target: Location, kind: str) -> tuple[str, ...]:
    """Return patterns of the names of the entries that this package writes to an output."""
    if kind in (EXPORT_KIND, REPORT_KIND):
        mark = _read_mark(target)
        if mark is not None and mark.kind == kind and mark.files:
            return (mark.name, *map(escape, mark.files))
        if mark is not None and mark.kind == REPORT_KIND and FILES not in mark.content:
            return (REPORT_RECORD, "*.png")  # earlier versions did not record the names
    return _ENTRIES.get(kind, ())


def _is_link(place: Location) -> bool:
    return not place.is_remote and Path(place.url).is_symlink()


def _list_names(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def check_not_inside(path: Place, source: Place | None, what: str) -> None:
    """Raise if the output is or contains the input `source`; `what` names the input."""
    check_none_inside(path, () if source is None else (source,), what)


def check_none_inside(path: Place, sources: Iterable[Place], what: str) -> None:
    """Raise if the output is or contains one of the inputs; `what` names an input.

    Folders inside a Zarr store that are links are also inputs: those of its arrays and chunks.
    """
    target = locate(path)
    places = (target, *_places_aside(target), *_old_places(target))
    resolve = cache(Path.resolve)  # thousands of files have the same parent folders
    for source in sources:
        given = locate(source)
        links = [] if given.is_remote else folders.find_links(Path(given.url))
        parts = (given, *(Location(str(link)) for link in links))
        if any(is_within(part, place, resolve) for part in parts for place in places):
            raise StoreError(
                f"the output {path} is or contains an input, {what} {source}; choose another "
                "output, or move the input"
            )


def move_into_place(place: Location, path: Place) -> None:
    """Move the complete output from the location of `open_output` to `path`.

    A local output is renamed. Object stores cannot rename, so the objects are copied. Raise if
    there are now other files at `path`.
    """
    target = locate(path)
    if place == target or (not place.is_occupied() and _is_complete(target)):
        return  # written at its path, or moved there by another process
    mark = _read_mark(place)
    if mark is None:
        raise StoreError(
            f"the new output in {place} was removed or replaced by another process, so it cannot "
            f"be moved to {target}; run the command again"
        )
    _check_replaceable(target, place, mark.kind)
    try:
        _copy_objects(place, target, mark) if target.is_remote else _rename(place, target)
        _remove_old(target)
    except (OSError, StoreError) as error:
        error.add_note(
            f"the new output is complete in {place}; the next command that writes {path} first "
            "moves it there"
        )
        raise


def _check_replaceable(target: Location, place: Location, kind: str) -> None:
    """Raise if there are files at `target` that are not an output of the same kind."""
    found = _read_mark(target)
    if found is None and not target.is_remote:
        # if a process was stopped while it replaced the content of a folder, the mark is here
        found = _read_mark(target / folders.OLD)
        found = found if found is not None and found.is_complete else None
    if not _has_content(target):
        return
    if found is None or found.kind != kind or _sort_entries(target, kind)[1]:
        raise StoreError(
            f"{target} contains files that this package did not write as {kind}, so they are not "
            f"replaced; the new output is complete in {place}: move the files away, and run the "
            "command again"
        )


def finish_replacement(path: Place) -> None:
    """Complete the replacement of an output if a process was stopped during `move_into_place`."""
    target = locate(path)
    _check_no_links(target)
    if not target.is_remote and (target / folders.READY).exists():
        _rename(target / folders.NEW, target)
    for place in _places_aside(target):
        if place.is_occupied() and _is_complete(place):
            move_into_place(place, target)
    for old in _old_places(target):
        if not target.is_occupied() and _is_complete(old):
            Path(old.url).rename(target.url)
    _remove_old(target)


def _is_being_replaced(target: Location) -> bool:
    """Return whether `finish_replacement` has something to finish."""
    aside = find_aside(target)
    if aside is not None and _is_complete(aside):
        return True
    if target.is_remote:
        return False
    old = _old_places(target)[0]
    return (target / folders.READY).exists() or (not target.is_occupied() and _is_complete(old))


def _has_content(target: Location) -> bool:
    """Return whether there are files at `target`, other than those of an unfinished replacement."""
    if target.is_remote or not Path(target.url).is_dir():
        return target.is_occupied()
    # a process that is killed while it writes the first file leaves only a temporary file
    return not all(fnmatchcase(name, folders.PARTIAL) for name in target.entry_names())


def _copy_objects(place: Location, target: Location, mark: Mark) -> None:
    """Replace the objects of the target; until the last step, the new objects exist aside.

    The target has a mark at all times, so that an interrupted copy is known to be one.
    """
    if target.is_occupied():
        _remove(target)
    mark.as_incomplete().write(target)
    place.copy_to(target, last=_MARKS)
    _remove(place)


def _rename(place: Location, target: Location) -> None:
    new, folder = Path(place.url), Path(target.url)
    swap = folders.swap_content if new.parent == folder else folders.swap_folder
    swap(new, folder, _MARKS)


def _remove_old(target: Location) -> None:
    """Remove the old output after its replacement."""
    with suppress(OSError):  # the next command that replaces the output removes it
        for old in filter(Location.is_occupied, _old_places(target)):
            if _is_complete(target):
                _remove(old)


def _choose_place(target: Location) -> Location:
    """Return the location to write to: the target, or aside if the target is occupied."""
    if not target.is_occupied():
        return target
    sibling, *inside = _places_aside(target)
    return sibling if target.is_remote or folders.is_replaceable(Path(target.url)) else inside[0]


def _places_aside(target: Location) -> list[Location]:
    """Return the locations of a new output that is to replace the target: next to it, inside it."""
    sibling = replace(target, url=f"{target.url}{folders.NEW}")
    inside = replace(target, url=f"{target.url}/{folders.NEW}")
    return [sibling] if target.is_remote else [sibling, inside]


def _old_places(target: Location) -> list[Location]:
    """Return the locations of a local output that is being replaced."""
    if target.is_remote:
        return []
    return [Location(f"{target.url}{folders.OLD}"), target / folders.OLD]


def _check_no_links(target: Location) -> None:
    """Raise if a folder of an unfinished replacement is a symbolic link.

    This package creates no such links. The author of a run, or another user of a shared folder,
    could otherwise choose which files are removed or replaced.
    """
    if target.is_remote:
        return
    for place in (*_places_aside(target), *_old_places(target), target / folders.READY):
        if Path(place.url).is_symlink():
            raise StoreError(
                f"{place} is a symbolic link, but this name is reserved for unfinished outputs; "
                f"remove the link, or choose another output than {target}"
            )


def _remove(target: Location) -> None:
    """Remove an output; until it is removed, it is marked as incomplete."""
    mark = _read_mark(target)
    if mark is not None:
        mark.as_incomplete().write(target)
    _remove_entries(target, "" if mark is None else mark.kind)


def _remove_entries(target: Location, kind: str) -> None:
    """Remove the entries that this package wrote to an output, and then the folder if it is empty.

    The digests of the blocks are removed first: without them, a store is not resumed. The mark is
    removed last: with it, the next command can remove the rest.
    """
    own, _ = _sort_entries(target, kind)
    target.remove(sorted(own, key=lambda name: (name in _MARKS, name != _DIGESTS)))


def discard(path: Place, kind: str) -> None:
    """Remove a failed output, so that it is not mistaken for a result; files of the user stay.

    If the removal fails, the remaining files are still marked incomplete. If another process has
    taken over the output, or if it is unknown whether one has, it is not removed.
    """
    target = locate(path)
    with suppress(OSError):
        mark = _read_mark(target)
        is_lost = target.owner is not None and not _is_owned(target, mark)
        target.remove(()) if is_lost else _remove_entries(target, kind)


@dataclass(frozen=True)
class Mark:
    """The file that shows that this package wrote an output."""

    name: str
    file: dict[str, Any]

    @property
    def content(self) -> dict[str, Any]:
        """The part of the file that this package wrote."""
        own: dict[str, Any] = self.file["attributes"] if self.name == _STORE_MARK else self.file
        return own

    @property
    def kind(self) -> str:
        """Kind of the output."""
        return str(self.content[KIND])

    @property
    def is_complete(self) -> bool:
        """Return whether the output was completed."""
        if self.name == _STORE_MARK:
            return self.content.get("complete") is not False
        return self.content.get("status") == "complete"

    @property
    def owner(self) -> dict[str, Any]:
        """Token and process of the owner; empty if they are not known."""
        owner = self.content.get(OWNER)
        return owner if isinstance(owner, dict) else {}

    @property
    def files(self) -> list[str]:
        """Names of the files of an export or a report; empty if they are not known."""
        files = self.content.get(FILES)
        return [str(name) for name in files] if isinstance(files, list) else []

    def as_incomplete(self) -> Mark:
        """Return the mark of the same output while it is removed or copied."""
        is_store = self.name == _STORE_MARK
        return self.with_content({"complete": False} if is_store else {"status": "removed"})

    def with_content(self, changes: dict[str, Any]) -> Mark:
        """Return the mark with other values."""
        content = self.content | changes
        is_store = self.name == _STORE_MARK
        return Mark(self.name, self.file | {"attributes": content} if is_store else content)

    def write(self, target: Location) -> None:
        """Write the mark to an output."""
        (target / self.name).write_text(json.dumps(self.file, indent=2))


def _is_complete(target: Location) -> bool:
    """Return whether this package wrote an output to `target` and completed it."""
    mark = _read_mark(target)
    return mark is not None and mark.is_complete


def _is_run(folder: Location) -> bool:
    """Return whether a folder is known to be a run."""
    with suppress(OSError):  # the user may not be allowed to read a folder above the output
        mark = _read_mark(folder)
        return mark is not None and mark.kind == RUN_KIND
    return False


def _read_mark(target: Location) -> Mark | None:
    """Read the mark of an output; None if there is no file, or a file of other software.

    A file that exists but cannot be read raises: if it counted as missing, its complete output
    would be removed.
    """
    for name in _MARKS:
        try:
            mark = Mark(name, json.loads((target / name).read_bytes()))
            return mark if mark.content[KIND] else None
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            continue
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
    return None
