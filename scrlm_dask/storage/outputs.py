"""Check, clear and replace outputs of commands; files of other software are never overwritten."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

from scrlm_dask.errors import StoreError
from scrlm_dask.storage.locations import Location, Place, is_within, locate

KIND = "scrlm"  # attribute of the groups written here; its value is one of the kinds
FEATURES_KIND, LABELS_KIND, MODEL_KIND, RUN_KIND = "features", "labels", "model", "run"
EXPORT_KIND, EXPORT_RECORD = "export", "export.json"

# files that identify the writer: runs and exports have a record, stores an attribute
_STORE_MARK = "zarr.json"
_MARKS = ("run.json", EXPORT_RECORD, _STORE_MARK)


def clear_output(path: Place, overwrite: bool, kind: str) -> None:
    """Check that the output is free, and remove an earlier output that may be replaced."""
    target = locate(path)
    check_output_free(target, overwrite, kind)
    if target.is_occupied():
        _unmark(target)
        target.remove(last=_MARKS)


def check_output_free(path: Place, overwrite: bool, kind: str) -> None:
    """Reject an occupied output; only outputs of this package can be replaced."""
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
    """Reject an output that contains the input."""
    if source is not None and is_within(locate(source), locate(path)):
        raise StoreError(
            f"the features {source} lie at or inside the output {path}; choose another output"
        )


def staging(path: Place) -> Location:
    """Return where to write the output: next to the one it replaces, which may still be read."""
    target = locate(path)
    return Location(f"{target.url}.partial", target.options) if target.is_occupied() else target


def move_into_place(staged: Location, path: Place) -> None:
    """Move the finished output from `staging(path)` to `path`."""
    target = locate(path)
    if staged != target:
        _unmark(target)
        target.remove(last=_MARKS)
        staged.rename(target)


def discard(path: Place) -> None:
    """Remove a failed output, so that nothing is left that looks like a result.

    Where the removal fails, the remaining files are still marked unfinished.
    """
    target = locate(path)
    if not target.is_remote:
        shutil.rmtree(target.url, ignore_errors=True)
        return
    with suppress(StoreError):
        target.remove(last=_MARKS)


def _kind_of(target: Location) -> str | None:
    """Return the kind of output that this package wrote there; None if it did not."""
    for name in _MARKS:
        try:
            content = json.loads((target / name).read_bytes())
            return str(content["attributes"][KIND] if name == _STORE_MARK else content[KIND])
        except OSError:  # there is no such file
            continue
        except (ValueError, KeyError, TypeError):
            return None
    return None


def _unmark(target: Location) -> None:
    """Mark the output as unfinished before its first file is removed: that may stop halfway."""
    name = next((name for name in _MARKS if (target / name).is_file()), _STORE_MARK)
    content = json.loads((target / name).read_bytes())
    if name == _STORE_MARK:
        content["attributes"]["complete"] = False
    else:
        content["status"] = "removed"
    (target / name).write_text(json.dumps(content))
