"""The run directory: its files, its record `run.json` and its log `events.jsonl`."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scrlm_dask.errors import MissingError, StoreError, UnreachableError
from scrlm_dask.storage.locations import Location, Place, locate
from scrlm_dask.storage.outputs import KIND, RUN_KIND, describe_interruption

MODEL, LABELS_STORE, RECORD, EVENTS = "model.zarr", "labels.zarr", "run.json", "events.jsonl"
RUNNING, INTERRUPTED, COMPLETE = "running", "interrupted", "complete"  # status in the record

_MOST_TEXT = 2**20  # maximum size of a remote log, which is always written as a whole
_BETWEEN = '"PhaseFinished"', '"RunEnded"'  # events after which a remote log is written


@dataclass
class EventLog:
    """A log to which lines are appended.

    Object stores cannot append, so a remote log is rewritten after every phase. Errors are
    suppressed: a log that cannot be written does not end the run.
    """

    location: Location
    # log of earlier attempts; None: not read yet
    _before: str | None = field(default=None, init=False)
    _text: str = field(default="", init=False)

    def write(self, line: str) -> None:
        """Append a line, which must include its line break."""
        with suppress(OSError, StoreError):
            if self.location.is_remote:
                self._write_remote(line)
            else:
                self.location.check_regular()
                with Path(self.location.url).open("a") as file:
                    file.write(line)

    def _write_remote(self, line: str) -> None:
        self._text = (self._text + line)[-_MOST_TEXT:]
        if any(name in line for name in _BETWEEN):
            if self._before is None:
                self._before = self._earlier()
            self.location.write_text((self._before + self._text)[-_MOST_TEXT:])

    def _earlier(self) -> str:
        """Read the log of earlier attempts.

        If the store is unreachable, this raises, so that the earlier log is not overwritten.
        """
        try:
            return self.location.read_bytes().decode(errors="replace")
        except MissingError:
            return ""


def read_events(location: Location) -> list[dict[str, Any]]:
    """Read the events in the log of a run; return an empty list if there is no log."""
    try:
        lines = location.read_bytes().splitlines()
    except (OSError, StoreError):
        return []
    events = []
    for line in lines:
        # skip damaged lines, such as the last line of a killed run
        with suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict) and isinstance(event.get("event"), str):
                events.append(event)
    return events


@dataclass
class RunDirectory:
    """Locations of the files of a run; a run is a result only if its status is "complete"."""

    path: Place

    def __post_init__(self) -> None:
        self.location = locate(self.path)
        self.model = self.location / MODEL
        self.labels = self.location / LABELS_STORE
        self.record = self.location / RECORD
        self.events = self.location / EVENTS

    def create(self, record: dict[str, Any]) -> None:
        """Create a run directory with the status "running"."""
        if not self.location.is_remote:  # object stores have no folders
            Path(self.location.url).mkdir(parents=True, exist_ok=True)
        self.write_record(record, RUNNING)

    def write_record(self, record: dict[str, Any], status: str) -> None:
        """Write `run.json` with the given status."""
        write_json(self.record, {KIND: RUN_KIND, **record, "status": status})

    def read_record(self) -> dict[str, Any]:
        """Read `run.json`; raise StoreError if this is not a run directory."""
        try:
            record = json.loads(self.record.read_bytes())
        except FileNotFoundError as error:
            exists, interruption = self.location.exists(), describe_interruption(self.location)
            why = f"is not a run directory: {RECORD} not found" if exists else "does not exist"
            if interruption:
                raise StoreError(f"{self.path} {why}{interruption}") from error
            raise StoreError(
                f"{self.path} {why}; give the output of `scrlm fit --out` or, to evaluate, of "
                "`scrlm predict --out`"
            ) from error
        except StoreError:  # a remote store is unreachable
            raise
        except OSError as error:
            raise UnreachableError(
                f"{self.record} cannot be read ({error}); check the disk and the permissions, then "
                "run the command again"
            ) from error
        except (ValueError, RecursionError) as error:
            raise StoreError(
                f"{self.record} cannot be read ({error}); run the fit again with --overwrite"
            ) from error
        if not isinstance(record, dict) or record.get(KIND) != RUN_KIND:
            raise StoreError(
                f"{self.record} is not the record of a run; give the output of `scrlm fit --out`"
            )
        return record

    def is_complete(self) -> bool:
        """Return whether this is the directory of a run with the status "complete"."""
        try:
            return bool(self.read_record().get("status") == COMPLETE)
        except StoreError:
            return False

    def record_of(self, attempt: str) -> dict[str, Any] | None:
        """Return the record if it belongs to the given attempt; None if it is lost or replaced."""
        try:
            record = self.read_record()
        except UnreachableError:
            raise
        except StoreError:
            return None
        return record if record.get("attempt") == attempt else None

    def check_complete(self) -> dict[str, Any]:
        """Return the record of the run; raise StoreError if the run is not complete."""
        record = self.read_record()
        if record.get("status") != COMPLETE:
            raise StoreError(
                f"the run {self.path} is incomplete (status: {record.get('status')}); "
                "run the fit again to resume it, or use --overwrite (overwrite=True) to start again"
            )
        return record


def write_json(path: Place, content: dict[str, Any]) -> None:
    """Write `content` as indented JSON, atomically; NaN and infinity are rejected."""
    locate(path).write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
