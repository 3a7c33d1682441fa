"""Places that commands write to: never on top of something that another hand put there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from scrlm_dask.errors import StoreError

KIND = "scrlm"  # attribute of the groups written here; its value is one of the kinds
FEATURES_KIND, LABELS_KIND, MODEL_KIND, RUN_KIND = "features", "labels", "model", "run"


def make_way(path: str, overwrite: bool, kind: str) -> None:
    """See that nothing lies at `path`, and remove what may be removed."""
    check_way(path, overwrite, kind)
    if Path(path).exists():
        shutil.rmtree(path)


def check_way(path: str, overwrite: bool, kind: str) -> None:
    """Refuse an output that is in the way. Only what this package wrote may be replaced."""
    target = Path(path)
    if "://" in path:
        raise StoreError(f"the output {path} is a URL; results are written to a local path")
    if target.is_symlink():
        raise StoreError(f"the output {path} is a link, which is left alone; give where it leads")
    for parent in target.parents:
        if _kind_of(parent) == RUN_KIND:
            raise StoreError(f"the output {path} lies inside the run {parent}; choose another path")
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
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


def check_apart(path: str, source: str | None) -> None:
    """Refuse an output that would swallow what is read."""
    if source is not None and Path(source).resolve().is_relative_to(Path(path).resolve()):
        raise StoreError(
            f"the features {source} lie at or inside the output {path}; choose another output"
        )


def staging(path: str) -> str:
    """Where to write what comes to `path`: beside what it replaces, which may still be read."""
    return f"{path}.partial" if Path(path).exists() else path


def move_into_place(staged: str, path: str) -> None:
    """Put what was written at `staging(path)`, now that it is finished, where it belongs."""
    if staged != path:
        shutil.rmtree(path)
        Path(staged).rename(path)


def discard(path: str) -> None:
    """Take back an output that failed: nothing is left that could be mistaken for a result."""
    shutil.rmtree(path, ignore_errors=True)


def _kind_of(target: Path) -> str | None:
    """What this package wrote there, if it did: runs have a record, stores an attribute."""
    try:
        if (target / "run.json").is_file():
            return str(json.loads((target / "run.json").read_text())[KIND])
        attributes = json.loads((target / "zarr.json").read_text())["attributes"]
        return str(attributes[KIND])
    except (OSError, ValueError, KeyError, TypeError):
        return None
