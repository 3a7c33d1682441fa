"""Progress while the system clock is set back before every event."""

from __future__ import annotations

import asyncio
import itertools
import time
from types import SimpleNamespace
from typing import Any

import pytest

from scrlm_dask.events import BlockDone, Event, PhaseFinished, PhaseStarted, RunEnded, RunStarted
from scrlm_dask.monitoring import listeners
from scrlm_dask.monitoring.dashboard import RunsPlugin
from scrlm_dask.monitoring.json_log import event_record

HOUR = 3600.0
EVENTS: tuple[Event, ...] = (
    RunStarted("SCRLM", "x", 100, 2, None),
    PhaseStarted("loss", 2, 100, 800),
    BlockDone("loss", 50, 400),
    BlockDone("loss", 50, 400),
    PhaseFinished("loss", 0.1, 100, 800, 2, 5, 0.0),
    PhaseStarted("assign", 1, 100, 800),
    RunEnded(0.2, "KilledWorker"),
)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the system clock back by an hour each time it is read."""
    read, behind = time.time, itertools.count(0.0, HOUR)
    monkeypatch.setattr(time, "time", lambda: read() - next(behind))


def check_durations(state: dict[str, Any]) -> None:
    for part in (state, *state["phases"]):
        assert 0.0 <= part["seconds"] < HOUR
        assert 0.0 <= (part["seconds_left"] or 0.0) < HOUR
    assert all(phase["rows_per_second"] >= 0.0 for phase in state["phases"])


def test_durations_of_the_dashboard_page() -> None:
    plugin = RunsPlugin()
    plugin.attach(SimpleNamespace(workers={}))
    try:
        for number, event in enumerate(EVENTS):
            plugin.log_event(listeners.TOPIC, {"run": "r", **event_record(event)})
            state = plugin.snapshot("r")["run"]
            check_durations(state)
            if number in (2, 3):  # while blocks are done
                assert state["phases"][0]["rows_per_second"] > 50 / HOUR
    finally:
        asyncio.run(plugin.close())


def test_notebook_cell_is_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    updates: list[str] = []
    handle = SimpleNamespace(update=updates.append)
    display = SimpleNamespace(HTML=str, display=lambda output, display_id: handle)
    monkeypatch.setattr(listeners, "import_module", lambda name: display)
    monkeypatch.setattr(listeners, "_UPDATE_SECONDS", 0.0)
    cell = listeners.NotebookCell()
    for number, event in enumerate(EVENTS):
        cell(event)
        assert len(updates) == number  # the first event creates the output
    check_durations(cell._state.snapshot(time.monotonic()))
