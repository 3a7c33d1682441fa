"""State of a run, built from its events, for progress bars, logs, notebooks and the dashboard.

All fields are limited in size, because a scheduler serves many runs.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

_MAX_ITERATIONS, _MAX_MESSAGES, _MAX_TEXT, _MAX_PHASES = 200, 50, 500, 32
_TITLES = {"SCRLM": "fit", "k-means": "kmeans"}


@dataclass
class PhaseState:
    """Progress of a phase; all iterations of k-means share one state."""

    name: str = ""
    times: int = 0
    blocks: int = 0  # number in the current or last iteration; the same for `rows`
    rows: int = 0
    done_blocks: int = 0  # blocks that are repeated after the loss of a worker count again
    done_rows: int = 0
    done_bytes: int = 0
    began: float = 0.0
    running: bool = False
    seconds: float = 0.0  # spent in finished iterations
    earlier_rows: int = 0  # processed in earlier iterations
    failed: int = 0
    retried: int = 0
    peak_worker_bytes: int = 0

    def start(self, blocks: int, rows: int, now: float) -> None:
        """Start an iteration."""
        self.earlier_rows += min(self.rows, self.done_rows)
        self.times += 1
        self.blocks, self.rows, self.began, self.running = blocks, rows, now, True
        self.done_blocks = self.done_rows = self.done_bytes = 0

    def add_block(self, rows: int, n_bytes: int = 0) -> None:
        """Count a finished block."""
        self.done_blocks += 1
        self.done_rows += rows
        self.done_bytes += n_bytes

    def finish(self, seconds: float) -> None:
        """Finish an iteration: count all blocks as done, also blocks from checkpoints."""
        self.running = False
        self.seconds += seconds
        self.done_rows, self.done_blocks = self.rows, self.blocks

    def share(self) -> float:
        """Return the completed share of the current iteration."""
        return min(1.0, self.done_rows / self.rows) if self.rows else float(not self.running)

    def spent(self, now: float) -> float:
        """Return the seconds spent in all iterations."""
        return self.seconds + (max(0.0, now - self.began) if self.running else 0.0)

    def rate(self, now: float) -> float:
        """Return rows per second over all iterations."""
        spent = self.spent(now)
        return self.all_rows() / spent if spent > 0.0 else 0.0

    def all_rows(self) -> int:
        """Return the rows processed in all iterations."""
        return self.earlier_rows + min(self.rows, self.done_rows)

    def left(self, now: float) -> float | None:
        """Estimate the seconds until the end of this iteration; None if unknown."""
        if not self.running or not self.done_rows:
            return None
        elapsed = max(0.0, now - self.began)
        return max(0, self.rows - self.done_rows) * elapsed / self.done_rows

    def snapshot(self, now: float, row_flops: float | None) -> dict[str, Any]:
        """Return the progress as values that JSON can represent."""
        rate = self.rate(now)
        return {
            "name": self.name,
            "times": self.times,
            "running": self.running,
            "share": self.share(),
            "rows": self.rows,
            "done_rows": min(self.rows, self.done_rows),
            "blocks": self.blocks,
            "done_blocks": min(self.blocks, self.done_blocks),
            "failed": self.failed,
            "retried": self.retried,
            "seconds": self.spent(now),
            "seconds_left": self.left(now),
            "rows_per_second": rate,
            "gflops": None if row_flops is None else rate * row_flops / 1e9,
            "peak_worker_bytes": self.peak_worker_bytes,
        }


class RunState:
    """State of one run, updated by `apply` with a record of each event and its time of arrival.

    Times of arrival (`now`) are from `time.monotonic()`, so durations do not depend on changes of
    the system clock. The times of messages are from the system clock.
    """

    def __init__(self, run: str, now: float) -> None:
        self.run, self.began = run, time.time()
        self._start = now
        self.title = ""
        self.facts: dict[str, Any] = {}
        self.plan: dict[str, Any] = {}
        self.phases: dict[str, PhaseState] = {}
        self.losses: dict[str, Any] = {}
        self.centers: int | None = None
        self.labelled: dict[str, Any] = {}
        self.iterations: deque[dict[str, Any]] = deque(maxlen=_MAX_ITERATIONS)
        self.messages: deque[tuple[float, str]] = deque(maxlen=_MAX_MESSAGES)
        self.ended: float | None = None
        self.error: str | None = None
        self._lock = threading.Lock()  # a separate thread reports blocks

    def apply(self, record: dict[str, Any], now: float) -> None:
        """Update the state with an event; ignore unknown events, which other versions may send."""
        with self._lock:
            match record.get("event"):
                case "RunStarted":
                    self._start_run(record)
                case "Planned":
                    self.plan = record
                case "PhaseStarted":
                    self._start_phase(record, now)
                case "BlockDone":
                    self._add_block(record)
                case "PhaseFinished":
                    self._finish_phase(record)
                case "CandidatesJudged":
                    self.losses = {name: record[name][:200] for name in ("ranks", "losses")}
                case "CentersFound":
                    self.centers = record["centers"]
                    self._log(f"{self.centers:,} centers")
                case "RowsLabelled":
                    self._label_rows(record)
                case "IterationDone":
                    names = ("number", "inertia", "shift", "moved", "empty", "seconds", "sampled")
                    self.iterations.append({name: record[name] for name in names})
                case "Note":
                    self._log(f"{'warning: ' if record['warning'] else ''}{record['text']}")
                case "RunEnded":
                    self._end_run(record, now)

    def count(self, name: str, outcome: str) -> None:
        """Count a block of the phase as `failed` or `retried`."""
        phase = self.phases.get(name)
        if phase is not None:
            setattr(phase, outcome, getattr(phase, outcome) + 1)

    def snapshot(self, now: float) -> dict[str, Any]:
        """Return the state as values that JSON can represent."""
        with self._lock:
            now = now if self.ended is None else self.ended
            row_flops = self.plan.get("row_flops", {})
            return {
                "run": self.run,
                "title": self.title or ", ".join(self.phases) or "run",
                "facts": self.facts,
                "began": self.began,
                "seconds": now - self._start,
                "running": self.ended is None,
                "error": self.error,
                "seconds_left": self._left(now),
                "phases": [p.snapshot(now, row_flops.get(p.name)) for p in self.phases.values()],
                "losses": self.losses,
                "centers": self.centers,
                "labelled": self.labelled,
                "iterations": list(self.iterations),
                "planned_worker_bytes": self.plan.get("worker_bytes"),
                "messages": list(self.messages),
            }

    def _left(self, now: float) -> float | None:
        """Return an upper bound of the seconds until the end of the run, from the planned FLOPs.

        It is an upper bound because the plan includes every iteration that k-means may take.
        """
        flops, row_flops = self.plan.get("flops", {}), self.plan.get("row_flops", {})
        known = [phase for phase in self.phases.values() if row_flops.get(phase.name)]
        spent = sum(phase.spent(now) for phase in known)
        done = sum(min(p.all_rows() * row_flops[p.name], flops[p.name]) for p in known)
        if self.ended is not None or not done or spent <= 0.0 or self.centers is None:
            return None
        left: float = max(0.0, sum(flops.values()) - done) * spent / done
        return left

    def _log(self, text: str) -> None:
        self.messages.append((time.time(), text[:_MAX_TEXT]))

    def _start_run(self, record: dict[str, Any]) -> None:
        self.title = f"{_TITLES.get(record['method'], record['method'])} {record['features']}"[:200]
        names = ("method", "features", "rows", "n_features", "out")
        self.facts = {name: _shorten(record.get(name)) for name in names}
        self._log(f"{record['method']} on {record['features']}")

    def _start_phase(self, record: dict[str, Any], now: float) -> None:
        name = str(record["name"])[:40]
        if name not in self.phases and len(self.phases) >= _MAX_PHASES:
            return
        phase = self.phases.setdefault(name, PhaseState(name))
        phase.start(record["blocks"], record["rows"], now)
        if phase.times == 1:
            self._log(f"{name}: {phase.rows:,} rows in {phase.blocks:,} block(s)")

    def _add_block(self, record: dict[str, Any]) -> None:
        phase = self.phases.get(record["name"])
        if phase is not None and phase.running:
            phase.add_block(record["rows"])

    def _finish_phase(self, record: dict[str, Any]) -> None:
        phase = self.phases.get(record["name"])
        if phase is None:
            return
        phase.finish(record["seconds"])
        phase.peak_worker_bytes = max(phase.peak_worker_bytes, record["peak_worker_bytes"])
        if phase.times == 1:
            self._log(f"{phase.name}: done in {record['seconds']:.2f} s")

    def _label_rows(self, record: dict[str, Any]) -> None:
        self.labelled = {
            "outlier_share": record["outliers"] / max(record["rows"], 1),
            "inertia": record["inertia"],
            "sizes": record["sizes"][:64],
            "empty": record["empty"],
        }

    def _end_run(self, record: dict[str, Any], now: float) -> None:
        self.ended, self.error = now, _shorten(record["error"])
        for phase in self.phases.values():
            if phase.running:
                phase.seconds, phase.running = phase.spent(now), False
        self._log("done" if self.error is None else f"failed with {self.error}")


def _shorten(value: Any) -> Any:
    return value[:_MAX_TEXT] if isinstance(value, str) else value
