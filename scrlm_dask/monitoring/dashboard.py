"""`scrlm_*` among the metrics that the scheduler serves for Prometheus."""

from __future__ import annotations

import json
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from dask.utils import key_split
from distributed.diagnostics.plugin import SchedulerPlugin
from tornado.web import RequestHandler

from scrlm_dask.monitoring.run_state import RunState

_MOST_NAMES = 64  # of phases: each is a time series


class Totals:
    """What only grows, over all runs since the scheduler began."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.blocks: Counter[tuple[str, str]] = Counter()

    def block_done(self, phase: str, rows: int) -> None:
        self.block(phase, "done")
        if phase in self.rows or len(self.rows) < _MOST_NAMES:
            self.rows[phase] += rows

    def block(self, phase: str, state: str) -> None:
        if (phase, state) in self.blocks or len(self.blocks) < 3 * _MOST_NAMES:
            self.blocks[phase, state] += 1


class _Collector:
    """Asked by Prometheus' client; speaks for the plugins of this process, mostly one."""

    def __init__(self) -> None:
        self.plugins: list[Any] = []

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for plugin in self.plugins[-1:]:
            yield from _totals(plugin.totals, CounterMetricFamily)
            yield from _latest(plugin, GaugeMetricFamily)


_collector = _Collector()


def count_for(plugin: Any) -> None:
    """Register with the metrics of this process, if it has any."""
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        return  # then Dask serves no metrics either
    if not _collector.plugins:
        REGISTRY.register(_collector)
    _collector.plugins.append(plugin)


def stop_counting(plugin: Any) -> None:
    if plugin not in _collector.plugins:
        return
    _collector.plugins.remove(plugin)
    if not _collector.plugins:
        from prometheus_client import REGISTRY

        REGISTRY.unregister(_collector)


def _totals(totals: Totals, family: Any) -> Iterator[Any]:
    rows = family("scrlm_rows", "Rows done, by phase", labels=["phase"])
    for phase, number in list(totals.rows.items()):
        rows.add_metric([phase], number)
    yield rows
    blocks = family("scrlm_blocks", "Blocks by phase and how they went", labels=["phase", "state"])
    for (phase, state), number in list(totals.blocks.items()):
        blocks.add_metric([phase, state], number)
    yield blocks


def _latest(plugin: Any, family: Any) -> Iterator[Any]:
    """Of the latest run, and of the workers as they are."""
    memory = family("scrlm_worker_memory_bytes", "Memory of a worker", labels=["worker"])
    for worker in plugin.workers():
        memory.add_metric([worker["name"]], worker["bytes"])
    yield memory
    state = plugin.latest()
    if state is None:
        return
    progress = family("scrlm_phase_progress", "Share of a phase that is done", labels=["phase"])
    for phase in list(state.phases.values()):
        progress.add_metric([phase.name], phase.share())
    yield progress
    values = {
        "scrlm_centers": ("Centers found", state.centers),
        "scrlm_inertia": ("Inertia of the last pass", state.labelled.get("inertia")),
        "scrlm_outlier_share": ("Share of outliers", state.labelled.get("outlier_share")),
        "scrlm_planned_memory_bytes": ("Planned for a worker", state.plan.get("worker_bytes")),
    }
    for name, (text, value) in values.items():
        if value is not None:
            yield family(name, text, value=value)


# The page holds its own styles and its own script and loads nothing; numbers come from its server.
# It may stand in a frame, as in JupyterLab.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'"
)


class _Handler(RequestHandler):
    def initialize(self, plugin: Any) -> None:
        self.plugin = plugin

    def set_default_headers(self) -> None:
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-store")


class PageHandler(_Handler):
    def get(self) -> None:
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.write((files(__package__) / "page.html").read_bytes())


class StateHandler(_Handler):
    def get(self) -> None:
        self.set_header("Content-Type", "application/json")
        run = self.get_query_argument("run", None)
        self.write(json.dumps(self.plugin.snapshot(run), allow_nan=False))


def add_pages(scheduler: Any, plugin: Any) -> None:
    """Add the page to a scheduler that serves a dashboard, under any prefix, and to its links."""
    application = getattr(scheduler, "http_application", None)
    if application is None:
        return
    given = {"plugin": plugin}
    application.add_handlers(
        r".*",
        # a scheduler may be told to put a prefix before all of its pages
        [
            (r"(?:/.*)?/scrlm/?", PageHandler, given),
            (r"(?:/.*)?/scrlm/state\.json", StateHandler, given),
        ],
    )
    try:
        from distributed.dashboard.scheduler import template_variables
    except ImportError:  # without Bokeh there is no bar of links
        return
    pages = template_variables(scheduler)["pages"]  # the same list each time
    if "scrlm" not in pages:
        pages.append("scrlm")


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
