"""How a run stands, from what it told: the same for the page, the metrics and a notebook's cell.

Everything is bounded: a scheduler lives longer than its runs.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

_MOST_ITERATIONS, _MOST_MESSAGES, _MOST_TEXT, _MOST_PHASES = 200, 50, 500, 32
_TITLES = {"SCRLM": "fit", "k-means": "kmeans"}


@dataclass
class PhaseState:
    """A phase; its iterations follow each other in one."""

    name: str
    times: int = 0
    blocks: int = 0  # of the iteration that is under way, or was the last
    rows: int = 0
    done_blocks: int = 0
    done_rows: int = 0
    began: float = 0.0
    running: bool = False
    seconds: float = 0.0  # of iterations that are over
    all_rows: int = 0  # of all iterations so far
    all_blocks: int = 0
    failed: int = 0
    retried: int = 0
    peak_worker_bytes: int = 0

    def share(self) -> float:
        return min(1.0, self.done_rows / self.rows) if self.rows else float(not self.running)

    def spent(self, now: float) -> float:
        """Seconds of all iterations."""
        return self.seconds + (max(0.0, now - self.began) if self.running else 0.0)

    def rate(self, now: float) -> float:
        """Rows a second, of all iterations."""
        spent = self.spent(now)
        return self.all_rows / spent if spent > 0.0 else 0.0

    def left(self, now: float) -> float | None:
        """Seconds to the end of this iteration."""
        here = max(0.0, now - self.began)
        if not self.running or not self.done_rows:
            return None
        return max(0, self.rows - self.done_rows) * here / self.done_rows


class RunState:
    """Hears the events of one run as records, each with the time at which it came."""

    def __init__(self, run: str, now: float) -> None:
        self.run = run
        self.began = self.heard = now
        self.title = ""
        self.facts: dict[str, Any] = {}
        self.plan: dict[str, Any] = {}
        self.phases: dict[str, PhaseState] = {}
        self.losses: dict[str, Any] = {}
        self.centers: int | None = None
        self.labelled: dict[str, Any] = {}
        self.iterations: deque[dict[str, Any]] = deque(maxlen=_MOST_ITERATIONS)
        self.messages: deque[tuple[float, str]] = deque(maxlen=_MOST_MESSAGES)
        self.ended: float | None = None
        self.error: str | None = None
        self._lock = threading.Lock()  # blocks are heard of in another thread than the rest

    def hear(self, record: dict[str, Any], now: float) -> None:
        handler = getattr(self, f"_on_{record.get('event')}", None)
        with self._lock:
            self.heard = now
            if handler is not None:
                handler(record, now)

    def count(self, name: str, what: str) -> None:
        """A block that failed, or had to be done again."""
        phase = self.phases.get(name)
        if phase is not None:
            setattr(phase, what, getattr(phase, what) + 1)

    def snapshot(self, now: float) -> dict[str, Any]:
        """All of it as JSON can hold it."""
        with self._lock:
            now = now if self.ended is None else self.ended
            return {
                "run": self.run,
                "title": self.title or self._untold_title(),
                "facts": self.facts,
                "began": self.began,
                "seconds": now - self.began,
                "running": self.ended is None,
                "error": self.error,
                "seconds_left": self._left(now),
                "phases": [self._phase(phase, now) for phase in self.phases.values()],
                "losses": self.losses,
                "centers": self.centers,
                "labelled": self.labelled,
                "iterations": list(self.iterations),
                "planned_worker_bytes": self.plan.get("worker_bytes"),
                "messages": list(self.messages),
            }

    def _phase(self, phase: PhaseState, now: float) -> dict[str, Any]:
        rate = phase.rate(now)
        flops = self.plan.get("row_flops", {}).get(phase.name)
        return {
            "name": phase.name,
            "times": phase.times,
            "running": phase.running,
            "share": phase.share(),
            "rows": phase.rows,
            "done_rows": phase.done_rows,
            "blocks": phase.blocks,
            "done_blocks": phase.done_blocks,
            "failed": phase.failed,
            "retried": phase.retried,
            "seconds": phase.spent(now),
            "seconds_left": phase.left(now),
            "rows_per_second": rate,
            "gflops": None if flops is None else rate * flops / 1e9,
            "peak_worker_bytes": phase.peak_worker_bytes,
        }

    def _left(self, now: float) -> float | None:
        """Seconds to the end of the run, at most, if what is left goes as fast as what is done.

        By FLOPs: those of a plan are counted as if every iteration were taken.
        """
        flops, row_flops = self.plan.get("flops", {}), self.plan.get("row_flops", {})
        known = [phase for phase in self.phases.values() if row_flops.get(phase.name)]
        spent = sum(phase.spent(now) for phase in known)
        done = sum(min(p.all_rows * row_flops[p.name], flops[p.name]) for p in known)
        if self.ended is not None or not done or spent <= 0.0 or self.centers is None:
            return None
        left: float = max(0.0, sum(flops.values()) - done) * spent / done
        return left

    def _untold_title(self) -> str:
        return ", ".join(self.phases) or "run"

    def _say(self, text: str, now: float) -> None:
        self.messages.append((now, text[:_MOST_TEXT]))

    def _on_RunStarted(self, record: dict[str, Any], now: float) -> None:  # noqa: N802
        self.title = f"{_TITLES.get(record['method'], record['method'])} {record['features']}"[:200]
        names = ("method", "features", "rows", "n_features", "out")
        self.facts = {name: _cut(record.get(name)) for name in names}
        self._say(f"{record['method']} on {record['features']}", now)

    def _on_Planned(self, record: dict[str, Any], now: float) -> None:  # noqa: N802
        self.plan = record

    def _on_PhaseStarted(self, record: dict[str, Any], now: float) -> None:  # noqa: N802
        name = str(record["name"])[:40]
        if name not in self.phases and len(self.phases) >= _MOST_PHASES:
            return
        phase = self.phases.setdefault(name, PhaseState(name))
        phase.times += 1
        phase.blocks, phase.rows = record["blocks"], record["rows"]
        phase.done_blocks = phase.done_rows = 0
        phase.began, phase.running = now, True
        if phase.times == 1:
            self._say(f"{name}: {phase.rows:,} rows in {phase.blocks:,} block(s)", now)

    def _on_BlockDone(self, record: dict[str, Any], now: float) -> None:  # noqa: N802
        phase = self.phases.get(record["name"])
        if phase is None or not phase.running:
            return
        phase.done_blocks = min(phase.blocks, phase.done_blocks + 1)
        added = min(record["rows"], phase.rows - phase.done_rows)
        phase.done_rows += added
        phase.all_rows += added
        phase.all_blocks += 1

    def _on_PhaseFinished(self, record: dict[str, Any], now: float) -> None:  # noqa: N802
        phase = self.phases.get(record["name"])
        if phase is None:
            return
        phase.running = False
        phase.seconds += record["seconds"]
        phase.all_rows += phase.rows - phase.done_rows
        phase.done_rows, phase.done_blocks = phase.rows, phase.blocks
        phase.peak_worker_bytes = max(phase.peak_worker_bytes, record["peak_worker_bytes"])
        if phase.times == 1:
            self._say(f"{phase.name}: done in {record['seconds']:.2f} s", now)

    def _on_CandidatesJudged(self, record: dict[str, Any], now: float) -> None:  # noqa: N802
        self.losses = {"ranks": record["ranks"][:200], "losses": record["losses"][:200]}

    def _on_CentersFound(self, record: dict[str, Any], now: float) -> None:  # noqa: N802
        self.centers = record["centers"]
        self._say(f"{self.centers:,} centers", now)

    def _on_RowsLabelled(self, record: dict[str, Any], now: float) -> None:  # noqa: N802
        self.labelled = {
            "outlier_share": record["outliers"] / max(record["rows"], 1),
            "inertia": record["inertia"],
            "sizes": record["sizes"][:64],
            "empty": record["empty"],
        }

    def _on_IterationDone(self, record: dict[str, Any], now: float) -> None:  # noqa: N802
        names = ("number", "inertia", "shift", "moved", "empty", "seconds", "sampled")
        self.iterations.append({name: record[name] for name in names})

    def _on_Note(self, record: dict[str, Any], now: float) -> None:  # noqa: N802
        self._say(f"{'warning: ' if record['warning'] else ''}{record['text']}", now)

    def _on_RunEnded(self, record: dict[str, Any], now: float) -> None:  # noqa: N802
        self.ended, self.error = now, _cut(record["error"])
        for phase in self.phases.values():
            if phase.running:
                phase.seconds, phase.running = phase.spent(now), False
        self._say("done" if self.error is None else f"ended by {self.error}", now)


def _cut(value: Any) -> Any:
    return value[:_MOST_TEXT] if isinstance(value, str) else value
