"""`scrlm_*` among the metrics that the scheduler serves for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

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
