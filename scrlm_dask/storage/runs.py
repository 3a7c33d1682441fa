"""A run directory: model, labels and `run.json`, which says last that the run is complete."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scrlm_dask.errors import StoreError

MODEL, LABELS_STORE, RECORD = "model.zarr", "labels.zarr", "run.json"


@dataclass(frozen=True)
class RunDirectory:
    """Paths of a run. Only a record that says "complete" makes it a result."""

    path: str

    @property
    def model(self) -> str:
        return f"{self.path}/{MODEL}"

    @property
    def labels(self) -> str:
        return f"{self.path}/{LABELS_STORE}"

    @property
    def record(self) -> Path:
        return Path(self.path) / RECORD

    def looks_like_one(self) -> bool:
        return self.record.is_file()

    def begin(self, overwrite: bool, record: dict[str, Any]) -> None:
        """Make an empty run directory that says it is not finished."""
        make_way(self.path, overwrite, RECORD)
        Path(self.path).mkdir(parents=True, exist_ok=True)
        write_json(self.record, {**record, "status": "running"})

    def finish(self, record: dict[str, Any]) -> None:
        write_json(self.record, {**record, "status": "complete"})

    def discard(self) -> None:
        """Take back a run that failed: nothing is left that could be mistaken for a result."""
        shutil.rmtree(self.path, ignore_errors=True)

    def read_record(self) -> dict[str, Any]:
        try:
            record = json.loads(self.record.read_text())
        except FileNotFoundError as error:
            raise StoreError(
                f"{self.path} is not a run directory: it holds no {RECORD}; "
                "give what `scrlm fit --out` wrote"
            ) from error
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{self.record} cannot be read ({error}); run the fit again with --overwrite"
            ) from error
        if not isinstance(record, dict):
            raise StoreError(f"{self.record} is not a run's record; run the fit again")
        return record

    def check_complete(self) -> dict[str, Any]:
        record = self.read_record()
        if record.get("status") != "complete":
            raise StoreError(
                f"the run {self.path} is not complete (status: {record.get('status')}); "
                "run the fit again with --overwrite"
            )
        return record


def make_way(path: str, overwrite: bool, marker: str) -> None:
    """See that nothing lies at `path`. Only what carries the marker of our own is ever removed."""
    target = Path(path)
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return
    ours = target.is_dir() and (target / marker).is_file()
    if not overwrite:
        way_out = "choose another path, or --overwrite to replace it" if ours else "choose another"
        raise StoreError(f"the output {path} exists already; {way_out}")
    if not ours:
        raise StoreError(
            f"the output {path} exists and is not what this command writes (no {marker} in it); "
            "it is left alone: choose another path or remove it yourself"
        )
    shutil.rmtree(target)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write in one step: a reader sees the old file or the new one, never a half."""
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    temporary.replace(path)
