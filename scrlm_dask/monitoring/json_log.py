"""Events as lines of JSON: for logs that programs read, and for `events.jsonl` of a run."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from scrlm_dask.events import BlockDone, Event, PhaseFinished, PhaseStarted

_BLOCK_SECONDS = 1.0  # between two lines of one phase: blocks may be done by the thousand


def event_record(event: Event) -> dict[str, Any]:
    """An event as names and values; `event` says which it is."""
    record = {"event": type(event).__name__, **vars(event)}
    return {name: plain(value) for name, value in record.items()}


def plain(value: Any) -> Any:
    """What JSON can hold of a value: no NaN and no infinity, for which null stands."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class JsonLines:
    """A listener that writes a line an event; of blocks it tells how many are done by now."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._lock = threading.Lock()  # blocks are told by a thread of their own
        self._blocks = _BlocksDone("")

    def __call__(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, PhaseStarted):
                self._blocks = _BlocksDone(event.name)
            if isinstance(event, BlockDone):
                self._line(self._blocks.count(event))
                return
            if isinstance(event, PhaseFinished):
                self._line(self._blocks.rest())
            self._line(event_record(event))

    def _line(self, record: dict[str, Any] | None) -> None:
        if record is not None:
            stamped = {"time": round(time.time(), 3), **record}
            self._write(json.dumps(stamped, allow_nan=False) + "\n")


class _BlocksDone:
    """What was done of a phase, and whether it is time to say so."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._blocks = self._rows = self._bytes = self._told = 0
        self._last = time.monotonic()

    def count(self, event: BlockDone) -> dict[str, Any] | None:
        if event.name != self._name:
            return None  # a late word from a phase that is over
        self._blocks += 1
        self._rows += event.rows
        self._bytes += event.bytes
        now = time.monotonic()
        if now - self._last < _BLOCK_SECONDS:
            return None
        self._last = now
        return self.rest()

    def rest(self) -> dict[str, Any] | None:
        """What there is that was not told yet."""
        if self._told == self._blocks:
            return None
        self._told = self._blocks
        counts = {"blocks": self._blocks, "rows": self._rows, "bytes": self._bytes}
        return {"event": "BlocksDone", "name": self._name, **counts}
