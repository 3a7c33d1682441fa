"""`events.jsonl` of a run: what it told, line by line."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from scrlm_dask.errors import MissingError, StoreError
from scrlm_dask.storage.locations import Location

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
