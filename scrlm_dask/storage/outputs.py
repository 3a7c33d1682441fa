"""Places that commands write to: never on top of something that another hand put there."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from scrlm_dask.errors import StoreError
from scrlm_dask.storage.locations import Location, Place, is_within, locate

KIND = "scrlm"  # attribute of the groups written here; its value is one of the kinds
FEATURES_KIND, LABELS_KIND, MODEL_KIND, RUN_KIND = "features", "labels", "model", "run"
EXPORT_KIND, EXPORT_RECORD = "export", "export.json"

# what says who wrote: runs and exports have a record, stores an attribute
_STORE_MARK = "zarr.json"
_MARKS = ("run.json", EXPORT_RECORD, _STORE_MARK)


def clear_output(path: Place, overwrite: bool, kind: str) -> None:
    """See that nothing lies at `path`, and remove what may be removed."""
    target = locate(path)
    check_output_free(target, overwrite, kind)
    if not target.is_remote and target.exists():
        shutil.rmtree(target.url)
    elif target.is_occupied():
        _unmark(target)
        target.remove(last=_MARKS)


def check_output_free(path: Place, overwrite: bool, kind: str) -> None:
    """Refuse an output that is in the way. Only what this package wrote may be replaced."""
    target = locate(path)
    if target.is_remote and not target.parents():
        raise StoreError(f"the output {target} is a whole bucket; give a name inside it")
    if not target.is_remote and Path(target.url).is_symlink():
        raise StoreError(f"the output {path} is a link, which is left alone; give where it leads")
    occupied = target.is_occupied()
    for parent in target.parents():
        if _kind_of(parent) == RUN_KIND:
            raise StoreError(f"the output {path} lies inside the run {parent}; choose another path")
    if not occupied:
        return
    ours = _kind_of(target) == kind
    if not overwrite:
        way_out = "choose another path, or --overwrite to replace it" if ours else "choose another"
        raise StoreError(f"the output {path} exists already; {way_out}")
    if not ours:
        raise StoreError(
            f"the output {path} exists and was not written as {kind} by this package, so it is "
            "left alone: choose another path or remove it yourself"
        )


def check_not_inside(path: Place, source: Place | None) -> None:
    """Refuse an output that would swallow what is read."""
    if source is not None and is_within(locate(source), locate(path)):
        raise StoreError(
            f"the features {source} lie at or inside the output {path}; choose another output"
        )


def staging(path: Place) -> Location:
    """Where to write what comes to `path`: beside what it replaces, which may still be read."""
    target = locate(path)
    return Location(f"{target.url}.partial", target.options) if target.exists() else target


def move_into_place(staged: Location, path: Place) -> None:
    """Put what was written at `staging(path)`, now that it is finished, where it belongs."""
    target = locate(path)
    if staged != target:
        _unmark(target)
        target.remove(last=_MARKS)
        staged.rename(target)


def discard(path: Place) -> None:
    """Take back an output that failed: nothing is left that could be mistaken for a result.

    Where even that fails, what is left still says that it is unfinished.
    """
    target = locate(path)
    if not target.is_remote:
        shutil.rmtree(target.url, ignore_errors=True)
        return
    with suppress(StoreError):
        target.remove(last=_MARKS)


def _kind_of(target: Location) -> str | None:
    """What this package wrote there, if it did."""
    try:
        mark, content = _mark_of(target)
        return str(content["attributes"][KIND] if _is_store(mark) else content[KIND])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _unmark(target: Location) -> None:
    """Say that it is unfinished before the first file goes: a removal may stop halfway."""
    mark, content = _mark_of(target)
    if _is_store(mark):
        content["attributes"]["complete"] = False
    else:
        content["status"] = "removed"
    mark.write_text(json.dumps(content))


def _is_store(mark: Location) -> bool:
    return mark.url.endswith(f"/{_STORE_MARK}")


def _mark_of(target: Location) -> tuple[Location, Any]:
    """The file that says who wrote there, and what it says."""
    places = [target / name for name in _MARKS]
    mark = next((place for place in places if place.is_file()), places[-1])
    return mark, json.loads(mark.read_text())
