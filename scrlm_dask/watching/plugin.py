"""The page /scrlm and the metrics on a scheduler, whoever started it.

Blocks are heard of as they pass through the scheduler on their way to the client; everything else
is told by the client. The plugin reads, and changes nothing that runs.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Any

from dask.utils import key_split
from distributed.diagnostics.plugin import SchedulerPlugin

from scrlm_dask.watching.metrics import Totals, count_for, stop_counting
from scrlm_dask.watching.pages import add_pages
from scrlm_dask.watching.state import RunState

_MOST_RUNS = 20
_TOPIC = "scrlm"


class RunsPlugin(SchedulerPlugin):
    """Keeps the state of the last runs, and serves it."""

    name = "scrlm"
    idempotent = True  # a second one, of the next run, is left out

    async def start(self, scheduler: Any) -> None:
        self.attach(scheduler)

    def attach(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._runs: OrderedDict[str, RunState] = OrderedDict()
        self._gone: set[Any] = set()  # tasks that no worker has any more, until their next move
        self.totals = Totals()
        add_pages(scheduler, self)
        count_for(self)

    async def close(self) -> None:
        stop_counting(self)

    def log_event(self, topic: str, msg: Any) -> None:
        if not topic.startswith(_TOPIC) or not isinstance(msg, dict):
            return
        if topic == _TOPIC and isinstance(msg.get("run"), str):
            self._hear(msg["run"], msg)
        elif isinstance(msg.get("block"), dict):
            self._hear(topic, {"event": "BlockDone", **msg["block"]})

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Blocks that failed, and those that were begun anew after their worker was lost."""
        if start == "processing" and finish == "erred":
            self._count(key, "failed")
        elif finish == "released" and start in ("processing", "memory"):
            self._gone.add(key)  # to be forgotten, or, if it is still needed, to be done again
        elif self._gone and key in self._gone:
            self._gone.discard(key)
            if finish == "waiting":
                self._count(key, "retried")

    def latest(self) -> RunState | None:
        return next(reversed(self._runs.values()), None)

    def snapshot(self, run: str | None) -> dict[str, Any]:
        """What the page shows: the run that is asked for, else the latest."""
        now = time.time()
        state = self._runs.get(run or "") or self.latest()
        runs = [(r.run, r.title, r.ended is None) for r in reversed(self._runs.values())]
        return {
            "now": now,
            "runs": runs,
            "run": None if state is None else state.snapshot(now),
            "workers": self.workers(),
        }

    def workers(self) -> list[dict[str, Any]]:
        """Memory of each worker as it last said."""
        return [
            {
                "name": str(worker.name),
                "threads": worker.nthreads,
                "bytes": int(worker.metrics.get("memory", 0)),
                "limit": int(worker.memory_limit or 0),
            }
            for worker in sorted(self._scheduler.workers.values(), key=lambda w: str(w.name))
        ]

    def _hear(self, run: str, record: dict[str, Any]) -> None:
        now = time.time()
        if run not in self._runs:
            if record["event"] == "BlockDone":
                return  # a late word of a run that is over and forgotten
            self._runs[run] = RunState(run, now)
            while len(self._runs) > _MOST_RUNS:
                self._runs.popitem(last=False)
        self._runs[run].hear(record, now)
        if record["event"] == "BlockDone":
            self.totals.block_done(record["name"], record["rows"])

    def _count(self, key: Any, what: str) -> None:
        """Of the latest run that is in this phase: task keys do not say whose they are."""
        name = key_split(key)
        for state in reversed(self._runs.values()):
            phase = state.phases.get(name)
            if phase is not None and state.ended is None:
                state.count(name, what)
                self.totals.block(name, what)
                return
