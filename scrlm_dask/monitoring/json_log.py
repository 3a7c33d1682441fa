"""Write events as lines of JSON: for --log-json and for `events.jsonl` of a run."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from typing import Any

from scrlm_dask.events import BlockDone, Event, PhaseFinished, PhaseStarted
from scrlm_dask.monitoring.run_state import PhaseState

_BLOCK_SECONDS = 1.0  # between two lines of one phase, which may have thousands of blocks


def event_record(event: Event) -> dict[str, Any]:
    """Return the fields of an event, with its type as `event`."""
    return {"event": type(event).__name__, **plain(vars(event))}


def plain(value: Any) -> Any:
    """Return a value that JSON can represent: NaN and infinity become None."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class JsonLines:
    """A listener that writes a line per event; blocks are summed up once per second."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._lock = threading.Lock()  # blocks are reported by a thread of their own
        self._phase = PhaseState()
        self._written_blocks, self._last = 0, 0.0

    def __call__(self, event: Event) -> None:
        with self._lock:
            match event:
                case BlockDone():
                    self._add_block(event)
                    return
                case PhaseStarted():
                    self._phase, self._written_blocks = PhaseState(event.name), 0
                    self._last = time.monotonic()
                case PhaseFinished():
                    self._write_blocks()
            self._write_record(event_record(event))

    def _add_block(self, event: BlockDone) -> None:
        if event.name != self._phase.name:
            return  # late, from a phase that is over
        self._phase.add_block(event.rows, event.bytes)
        if time.monotonic() - self._last >= _BLOCK_SECONDS:
            self._last = time.monotonic()
            self._write_blocks()

    def _write_blocks(self) -> None:
        phase = self._phase
        if phase.done_blocks > self._written_blocks:
            self._written_blocks = phase.done_blocks
            done = {"blocks": phase.done_blocks, "rows": phase.done_rows, "bytes": phase.done_bytes}
            self._write_record({"event": "BlocksDone", "name": phase.name, **done})

    def _write_record(self, record: dict[str, Any]) -> None:
        stamped = {"time": round(time.time(), 3), **record}
        self._write(json.dumps(stamped, allow_nan=False) + "\n")
