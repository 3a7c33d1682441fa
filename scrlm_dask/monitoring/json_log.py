"""Write events as JSON lines, for --log-json and for `events.jsonl` of a run."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from scrlm_dask.events import BlockDone, Event, PhaseFinished, PhaseStarted
from scrlm_dask.monitoring.run_state import PhaseState

_BLOCK_SECONDS = 1.0  # between two lines about blocks: a phase may have thousands of blocks


def event_record(event: Event) -> dict[str, Any]:
    """Return the fields of an event, and the name of its type under the key `event`."""
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


@dataclass
class JsonLines:
    """Listener that writes one line per event; blocks are summed in one line per second."""

    write: Callable[[str], None]
    _lock: threading.Lock = field(default_factory=threading.Lock)  # another thread reports blocks
    _phase: PhaseState = field(default_factory=PhaseState)
    _written_blocks: int = 0
    _last: float = 0.0

    def __call__(self, event: Event) -> None:
        """Write the event, or add a finished block to the next line about blocks."""
        with self._lock:
            records = [] if isinstance(event, BlockDone) else [event_record(event)]
            match event:
                case BlockDone() if event.name == self._phase.name:  # not a late block
                    self._phase.add_block(event.rows, event.bytes)
                    if time.monotonic() - self._last >= _BLOCK_SECONDS:
                        self._last = time.monotonic()
                        records = self._blocks_done()
                case PhaseStarted():
                    self._phase, self._written_blocks = PhaseState(event.name), 0
                    self._last = time.monotonic()
                case PhaseFinished():
                    records = self._blocks_done() + records
            for record in records:
                stamped = {"time": round(time.time(), 3), **record}
                self.write(json.dumps(stamped, allow_nan=False) + "\n")

    def _blocks_done(self) -> list[dict[str, Any]]:
        """Return one record of all finished blocks of this phase; no record if no block is new."""
        phase, written = self._phase, self._written_blocks
        self._written_blocks = phase.done_blocks
        done = {"blocks": phase.done_blocks, "rows": phase.done_rows, "bytes": phase.done_bytes}
        record = {"event": "BlocksDone", "name": phase.name, **done}
        return [record] if phase.done_blocks > written else []
