"""`events.jsonl` of a run: what it told, line by line."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scrlm_dask.errors import MissingError, StoreError
from scrlm_dask.storage.locations import Location, Place, locate
from scrlm_dask.storage.outputs import KIND, RUN_KIND, clear_output

_MOST_TEXT = 2**20  # of a remote log that is written as a whole


_BETWEEN = '"PhaseFinished"', '"RunEnded"'  # after these a remote log is written


class EventLog:
    """Appends lines. Object stores cannot: there the file is written anew after every phase.

    A log that cannot be written ends no run.
    """

    def __init__(self, location: Location) -> None:
        self._location = location
        self._before: str | None = None  # what an earlier attempt left; None: not read yet
        self._text = ""

    def write(self, line: str) -> None:
        with suppress(OSError, StoreError):
            if not self._location.is_remote:
                with Path(self._location.url).open("a") as file:
                    file.write(line)
                return
            self._text = (self._text + line)[-_MOST_TEXT:]
            if any(name in line for name in _BETWEEN):
                if self._before is None:
                    self._before = self._earlier()
                self._location.write_text((self._before + self._text)[-_MOST_TEXT:])

    def _earlier(self) -> str:
        """A store that does not answer raises: what may lie there must not be written over."""
        try:
            return self._location.read_bytes().decode(errors="replace")
        except MissingError:
            return ""


def read_events(location: Location) -> list[dict[str, Any]]:
    """The events of a run, as far as they were written; none for runs of before there were any."""
    try:
        lines = location.read_bytes().splitlines()
    except (OSError, StoreError):
        return []
    events = []
    for line in lines:
        # the last line of a run that was killed, and what a disk made of others
        with suppress(ValueError, RecursionError):
            event = json.loads(line)
            if isinstance(event, dict) and isinstance(event.get("event"), str):
                events.append(event)
    return events


MODEL, LABELS_STORE, RECORD = "model.zarr", "labels.zarr", "run.json"


EVENTS = "events.jsonl"


RUNNING, INTERRUPTED, COMPLETE = "running", "interrupted", "complete"  # what a record says it is


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

    @property
    def events(self) -> Location:
        return self.location / EVENTS

    def looks_like_one(self) -> bool:
        return self.record.is_file()

    def begin(self, overwrite: bool, record: dict[str, Any]) -> None:
        """Make an empty run directory that says it is not finished."""
        clear_output(self.path, overwrite, RUN_KIND)
        if not self.location.is_remote:  # object stores have no folders
            Path(self.location.url).mkdir(parents=True, exist_ok=True)
        self.go_on(record)

    def go_on(self, record: dict[str, Any]) -> None:
        """Say that somebody is at work."""
        write_json(self.record, {KIND: RUN_KIND, **record, "status": RUNNING})

    def stop(self, record: dict[str, Any]) -> None:
        """Say that nobody is at work any more, and that there is no result."""
        write_json(self.record, {KIND: RUN_KIND, **record, "status": INTERRUPTED})

    def finish(self, record: dict[str, Any]) -> None:
        write_json(self.record, {KIND: RUN_KIND, **record, "status": COMPLETE})

    def read_record(self) -> dict[str, Any]:
        try:
            record = json.loads(self.record.read_text())
        except FileNotFoundError as error:
            there = self.location.exists()
            why = f"is not a run directory: it holds no {RECORD}" if there else "does not exist"
            raise StoreError(
                f"{self.path} {why}; "
                "give what `scrlm fit --out` wrote, or, to evaluate, `scrlm predict --out`"
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

    def is_complete(self) -> bool:
        try:
            return bool(self.read_record().get("status") == COMPLETE)
        except StoreError:
            return False

    def record_of(self, attempt: str) -> dict[str, Any] | None:
        """The record if it is still that of the attempt, and not of one that took its place."""
        try:
            record = self.read_record()
        except StoreError:
            return None
        return record if record.get("attempt") == attempt else None

    def check_complete(self) -> dict[str, Any]:
        record = self.read_record()
        if record.get("status") != COMPLETE:
            raise StoreError(
                f"the run {self.path} is not complete (status: {record.get('status')}); "
                "run the fit again to go on with it, or with --overwrite to begin anew"
            )
        return record


def write_json(path: Place, content: dict[str, Any]) -> None:
    locate(path).write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
