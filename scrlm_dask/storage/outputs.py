"""Check, remove and replace outputs of commands; files of other software are never replaced."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

from scrlm_dask.errors import StoreError
from scrlm_dask.storage.locations import Location, Place, is_within, locate

KIND = "scrlm"  # attribute of groups that this package writes; values are the kinds below
FEATURES_KIND, LABELS_KIND, MODEL_KIND, RUN_KIND = "features", "labels", "model", "run"
EXPORT_KIND, EXPORT_RECORD = "export", "export.json"

# Files that show that this package wrote an output: the JSON record of a run or an export, or the
# Zarr metadata of a store, which contain the attribute KIND.
_STORE_MARK = "zarr.json"
_MARKS = ("run.json", EXPORT_RECORD, _STORE_MARK)


def clear_output(path: Place, overwrite: bool, kind: str) -> None:
    """Check the output with `check_output_free`, then remove an earlier output if there is one."""
    target = locate(path)
    check_output_free(target, overwrite, kind)
    if target.is_occupied():
        _unmark(target)
        target.remove(last=_MARKS)


def check_output_free(path: Place, overwrite: bool, kind: str) -> None:
    """Raise if the output exists, unless `overwrite` is set and this package wrote it as `kind`."""
    target = locate(path)
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


def check_not_inside(path: Place, source: Place | None) -> None:
    """Raise if the output is or contains the input."""
    if source is not None and is_within(locate(source), locate(path)):
        raise StoreError(
            f"the features {source} are at or inside the output {path}; choose another output"
        )


def staging(path: Place) -> Location:
    """Return where to write the output: `path`, or a name next to it if `path` is occupied.

    An existing output may still be in use while the new output is written.
    """
    target = locate(path)
    return Location(f"{target.url}.partial", target.options) if target.is_occupied() else target


def move_into_place(staged: Location, path: Place) -> None:
    """Move the complete output from `staging(path)` to `path`; replace an existing output."""
    target = locate(path)
    if staged != target:
        _unmark(target)
        target.remove(last=_MARKS)
        staged.rename(target)


def discard(path: Place) -> None:
    """Remove a failed output, so that it is not mistaken for a result.

    If the removal fails, the remaining files are still marked incomplete.
    """
    target = locate(path)
    if not target.is_remote:
        shutil.rmtree(target.url, ignore_errors=True)
        return
    with suppress(StoreError):
        target.remove(last=_MARKS)


def _kind_of(target: Location) -> str | None:
    """Return the kind of output that this package wrote to `target`; None for other files."""
    for name in _MARKS:
        try:
            content = json.loads((target / name).read_bytes())
            return str(content["attributes"][KIND] if name == _STORE_MARK else content[KIND])
        except OSError:  # the file does not exist
            continue
        except (ValueError, KeyError, TypeError):
            return None
    return None


def _unmark(target: Location) -> None:
    """Mark the output as incomplete before it is removed, because removal may be interrupted."""
    name = next((name for name in _MARKS if (target / name).is_file()), _STORE_MARK)
    content = json.loads((target / name).read_bytes())
    if name == _STORE_MARK:
        content["attributes"]["complete"] = False
    else:
        content["status"] = "removed"
    (target / name).write_text(json.dumps(content))
