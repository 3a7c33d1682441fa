"""Scheduler plugin with the dashboard page `/scrlm` and `scrlm_*` metrics for Prometheus."""

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

from scrlm_dask.monitoring.listeners import TOPIC
from scrlm_dask.monitoring.run_state import RunState

_MAX_RUNS = 20
_MAX_NAMES = 64  # limit of phase names: each name adds a time series to Prometheus
# The page contains its styles and script, and loads only data from its own server. The policy
# allows other pages, such as JupyterLab, to show it in a frame.
_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'"
)


class Totals:
    """Counters of rows and blocks, over all runs since the scheduler started."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.blocks: Counter[tuple[str, str]] = Counter()

    def add_done(self, phase: str, rows: int) -> None:
        """Count a finished block and its rows."""
        self.add_block(phase, "done")
        if phase in self.rows or len(self.rows) < _MAX_NAMES:
            self.rows[phase] += rows

    def add_block(self, phase: str, state: str) -> None:
        """Count a block as `done`, `failed` or `retried`."""
        if (phase, state) in self.blocks or len(self.blocks) < 3 * _MAX_NAMES:
            self.blocks[phase, state] += 1


class _Collector:
    """Prometheus collector for the newest plugin of this process (usually the only one)."""

    def __init__(self) -> None:
        self.plugins: list[Any] = []

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for plugin in self.plugins[-1:]:
            yield from _counters(plugin.totals, CounterMetricFamily)
            yield from _gauges(plugin, GaugeMetricFamily)


_collector = _Collector()


def register_metrics(plugin: Any) -> None:
    """Add a plugin to the metrics of this process if prometheus_client is installed."""
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        return  # without this package, Dask has no metrics either
    if not _collector.plugins:
        REGISTRY.register(_collector)
    _collector.plugins.append(plugin)


def unregister_metrics(plugin: Any) -> None:
    """Remove a plugin from the metrics of this process."""
    if plugin not in _collector.plugins:
        return
    _collector.plugins.remove(plugin)
    if not _collector.plugins:
        from prometheus_client import REGISTRY

        REGISTRY.unregister(_collector)


def _counters(totals: Totals, family: Any) -> Iterator[Any]:
    rows = family("scrlm_rows", "Rows processed, by phase", labels=["phase"])
    for phase, number in list(totals.rows.items()):
        rows.add_metric([phase], number)
    yield rows
    blocks = family("scrlm_blocks", "Blocks by phase and outcome", labels=["phase", "state"])
    for (phase, state), number in list(totals.blocks.items()):
        blocks.add_metric([phase, state], number)
    yield blocks


def _gauges(plugin: Any, family: Any) -> Iterator[Any]:
    """Yield the current memory of the workers and the state of the latest run."""
    memory = family("scrlm_worker_memory_bytes", "Memory in use by a worker", labels=["worker"])
    for worker in plugin.workers():
        memory.add_metric([worker["name"]], worker["bytes"])
    yield memory
    state = plugin.latest()
    if state is None:
        return
    progress = family("scrlm_phase_progress", "Completed share of a phase", labels=["phase"])
    for phase in list(state.phases.values()):
        progress.add_metric([phase.name], phase.share())
    yield progress
    values = {
        "scrlm_centers": ("Number of centers", state.centers),
        "scrlm_inertia": ("Inertia of the last pass", state.labelled.get("inertia")),
        "scrlm_outlier_share": ("Share of outliers", state.labelled.get("outlier_share")),
        "scrlm_planned_memory_bytes": ("Planned memory per worker", state.plan.get("worker_bytes")),
    }
    for name, (text, value) in values.items():
        if value is not None:
            yield family(name, text, value=value)


class _Handler(RequestHandler):
    def initialize(self, plugin: Any) -> None:
        self.plugin = plugin

    def set_default_headers(self) -> None:
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-store")


class PageHandler(_Handler):
    """Handler of the dashboard page."""

    def get(self) -> None:
        """Send the HTML page."""
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.write((files(__package__) / "page.html").read_bytes())


class StateHandler(_Handler):
    """Handler of the data that the page polls."""

    def get(self) -> None:
        """Send the state of the requested run, or of the latest run, as JSON."""
        self.set_header("Content-Type", "application/json")
        run = self.get_query_argument("run", None)
        self.write(json.dumps(self.plugin.snapshot(run), allow_nan=False))


def add_pages(scheduler: Any, plugin: Any) -> None:
    """Add the page and its link to the dashboard of a scheduler, if it has one."""
    application = getattr(scheduler, "http_application", None)
    if application is None:
        return
    # the URL of the dashboard may have a prefix
    page, state = r"(?:/.*)?/scrlm/?", r"(?:/.*)?/scrlm/state\.json"
    given = {"plugin": plugin}
    application.add_handlers(r".*", [(page, PageHandler, given), (state, StateHandler, given)])
    try:
        from distributed.dashboard.scheduler import template_variables
    except ImportError:  # without Bokeh the dashboard has no links
        return
    pages = template_variables(scheduler)["pages"]  # Dask keeps this list, so changes persist
    if "scrlm" not in pages:
        pages.append("scrlm")


class RunsPlugin(SchedulerPlugin):
    """Scheduler plugin that tracks the latest runs and serves their state."""

    name = "scrlm"
    idempotent = True  # Dask ignores the registrations of later runs

    async def start(self, scheduler: Any) -> None:
        """Attach the plugin when Dask registers it."""
        self.attach(scheduler)

    def attach(self, scheduler: Any) -> None:
        """Initialize the state, and add page and metrics to the scheduler."""
        self._scheduler, self.totals = scheduler, Totals()
        self._runs: OrderedDict[str, RunState] = OrderedDict()
        self._released: set[Any] = set()  # tasks without a worker, until their next transition
        add_pages(scheduler, self)
        register_metrics(self)

    async def close(self) -> None:
        """Remove the metrics when the scheduler closes."""
        unregister_metrics(self)

    def log_event(self, topic: str, msg: Any) -> None:
        """Apply an event that a run or one of its blocks has logged."""
        if not topic.startswith(TOPIC) or not isinstance(msg, dict):
            return
        if topic == TOPIC and isinstance(msg.get("run"), str):
            self._apply(msg["run"], msg)
        elif isinstance(msg.get("block"), dict):
            self._apply(topic, {"event": "BlockDone", **msg["block"]})

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Count blocks that failed, and blocks that are retried because their worker was lost."""
        if start == "processing" and finish == "erred":
            self._count(key, "failed")
        elif finish == "released" and start in ("processing", "memory"):
            self._released.add(key)  # its next state: forgotten, or waiting if it is retried
        elif self._released and key in self._released:
            self._released.discard(key)
            if finish == "waiting":
                self._count(key, "retried")

    def latest(self) -> RunState | None:
        """Return the state of the run that started last, or None."""
        return next(reversed(self._runs.values()), None)

    def snapshot(self, run: str | None) -> dict[str, Any]:
        """Return the data of the page: the state of a run (None: the latest), and the workers."""
        now = time.monotonic()
        state = self._runs.get(run or "") or self.latest()
        runs = [(r.run, r.title, r.ended is None) for r in reversed(self._runs.values())]
        return {
            "now": time.time(),
            "runs": runs,
            "run": None if state is None else state.snapshot(now),
            "workers": self.workers(),
        }

    def workers(self) -> list[dict[str, Any]]:
        """Return the memory of each worker as of its last heartbeat."""
        return [
            {
                "name": str(worker.name),
                "threads": worker.nthreads,
                "bytes": int(worker.metrics.get("memory", 0)),
                "limit": int(worker.memory_limit or 0),
            }
            for worker in sorted(self._scheduler.workers.values(), key=lambda w: str(w.name))
        ]

    def _apply(self, run: str, record: dict[str, Any]) -> None:
        now = time.monotonic()
        if run not in self._runs:
            if record["event"] == "BlockDone":
                return  # a late event of a run that is no longer tracked
            self._runs[run] = RunState(run, now)
            while len(self._runs) > _MAX_RUNS:
                self._runs.popitem(last=False)
        self._runs[run].apply(record, now)
        if record["event"] == "BlockDone":
            self.totals.add_done(record["name"], record["rows"])

    def _count(self, key: Any, outcome: str) -> None:
        """Count a block for the latest active run with its phase: a task key names no run."""
        name = key_split(key)
        for state in reversed(self._runs.values()):
            if name in state.phases and state.ended is None:
                state.count(name, outcome)
                self.totals.add_block(name, outcome)
                return
