"""A run directory: model, labels and `run.json`, which says last that the run is complete."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scrlm_dask.errors import StoreError
from scrlm_dask.storage.locations import Location, Place, locate
from scrlm_dask.storage.outputs import KIND, RUN_KIND, make_way

MODEL, LABELS_STORE, RECORD = "model.zarr", "labels.zarr", "run.json"


@dataclass(frozen=True)
class RunDirectory:
    """Places of a run. Only a record that says "complete" makes it a result."""

    path: Place

    @property
    def location(self) -> Location:
        return locate(self.path)

    @property
    def model(self) -> Location:
        return self.location / MODEL

    @property
    def labels(self) -> Location:
        return self.location / LABELS_STORE

    @property
    def record(self) -> Location:
        return self.location / RECORD

    def looks_like_one(self) -> bool:
        return self.record.is_file()

    def begin(self, overwrite: bool, record: dict[str, Any]) -> None:
        """Make an empty run directory that says it is not finished."""
        make_way(self.path, overwrite, RUN_KIND)
        if not self.location.is_remote:  # object stores have no folders
            Path(self.location.url).mkdir(parents=True, exist_ok=True)
        write_json(self.record, {KIND: RUN_KIND, **record, "status": "running"})

    def finish(self, record: dict[str, Any]) -> None:
        write_json(self.record, {KIND: RUN_KIND, **record, "status": "complete"})

    def read_record(self) -> dict[str, Any]:
        try:
            record = json.loads(self.record.read_text())
        except FileNotFoundError as error:
            raise StoreError(
                f"{self.path} is not a run directory: it holds no {RECORD}; "
                "give what `scrlm fit --out` wrote"
            ) from error
        except StoreError:  # a remote store that cannot be reached
            raise
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{self.record} cannot be read ({error}); run the fit again with --overwrite"
            ) from error
        if not isinstance(record, dict) or record.get(KIND) != RUN_KIND:
            raise StoreError(
                f"{self.record} is not the record of a run; give what `scrlm fit --out` wrote"
            )
        return record

    def check_complete(self) -> dict[str, Any]:
        record = self.read_record()
        if record.get("status") != "complete":
            raise StoreError(
                f"the run {self.path} is not complete (status: {record.get('status')}); "
                "run the fit again with --overwrite"
            )
        return record


def write_json(path: Place, content: dict[str, Any]) -> None:
    locate(path).write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
