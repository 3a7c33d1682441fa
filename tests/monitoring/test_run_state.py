"""State of a run, computed by hand from its events."""

from __future__ import annotations

import json

import pytest

from scrlm_dask.events import (
    BlockDone,
    CentersFound,
    Event,
    IterationDone,
    Note,
    PhaseFinished,
    PhaseStarted,
    Planned,
    RunEnded,
    RunStarted,
)
from scrlm_dask.monitoring.dashboard import Totals
from scrlm_dask.monitoring.json_log import event_record
from scrlm_dask.monitoring.run_state import RunState

PLAN = Planned({"loss": 8000, "assign": 2000}, {"loss": 80.0, "assign": 20.0}, 700, 900)
NASTY = "<img src=x onerror=alert(1)>"


def apply_events(*events: tuple[float, Event]) -> RunState:
    """Return the state of a run that started at 0 and reported these events."""
    state = RunState("r", 0.0)
    for now, event in events:
        state.apply(event_record(event), now)
    return state


def test_rate_share_and_remaining_time_of_a_phase() -> None:
    state = apply_events(
        (0.0, PLAN),
        (10.0, PhaseStarted("loss", 4, 100, 800)),
        (12.0, BlockDone("loss", 25, 200)),
    )
    (phase,) = state.snapshot(14.0)["phases"]
    assert phase["share"] == 0.25
    assert phase["rows_per_second"] == 25 / 4
    assert phase["gflops"] == pytest.approx(25 / 4 * 80 / 1e9)
    assert phase["seconds_left"] == 75 * 4 / 25
    assert (phase["done_blocks"], phase["blocks"]) == (1, 4)
    assert state.snapshot(14.0)["seconds_left"] is None  # the number of clusters is not known yet


def test_remaining_time_of_a_run_depends_on_remaining_flops() -> None:
    state = apply_events(
        (0.0, PLAN),
        (0.0, PhaseStarted("loss", 4, 100, 800)),
        (8.0, PhaseFinished("loss", 8.0, 100, 800, 4, 650, 0.1)),
        (8.0, CentersFound(3)),
        (8.0, PhaseStarted("assign", 4, 100, 800)),
        (9.0, BlockDone("assign", 50, 400)),
    )
    # 8,000 + 1,000 FLOPs took 9 s, and 1,000 remain
    assert state.snapshot(9.0)["seconds_left"] == pytest.approx(1.0)
    assert state.snapshot(9.0)["centers"] == 3
    assert state.snapshot(9.0)["planned_worker_bytes"] == 700


def test_iterations_are_one_phase() -> None:
    events: list[tuple[float, Event]] = []
    for start in (0.0, 10.0):
        events += [
            (start, PhaseStarted("kmeans-step", 2, 10, 80)),
            (start + 1, BlockDone("kmeans-step", 5, 40)),
            (start + 2, PhaseFinished("kmeans-step", 2.0, 10, 80, 2, 5, 0.0)),
        ]
    (phase,) = apply_events(*events).snapshot(20.0)["phases"]
    assert phase["times"] == 2
    assert phase["seconds"] == 4.0
    assert phase["rows_per_second"] == 20 / 4
    assert phase["share"] == 1.0
    assert not phase["running"]


def test_late_and_unknown_events_are_ignored() -> None:
    state = apply_events((0.0, PhaseStarted("loss", 1, 10, 80)), (0.1, BlockDone("survey", 10, 80)))
    state.apply({"event": "Invented", "by": "another version"}, 0.2)
    assert state.snapshot(1.0)["phases"][0]["done_rows"] == 0
    state.apply(event_record(BlockDone("loss", 99, 80)), 0.3)
    assert state.snapshot(1.0)["phases"][0]["share"] == 1.0


def test_memory_of_the_state_is_bounded() -> None:
    state = apply_events((0.0, RunStarted("SCRLM", "x" * 10_000, 5, 2, None)))
    for number in range(3000):
        done = IterationDone(number, 5, False, 1.0, float("inf"), None, 0, 0, 0.1)
        state.apply(event_record(done), 1.0)
        state.apply(event_record(Note("long " * 1000)), 1.0)
        state.apply(event_record(PhaseStarted(f"phase {number}", 1, 1, 1)), 1.0)
    text = json.dumps(state.snapshot(2.0), allow_nan=False)
    assert len(text) < 150_000
    totals = Totals()
    for number in range(3000):
        totals.add_done(f"phase {number}", 1)
    assert len(totals.rows) <= 64
    assert len(totals.blocks) <= 3 * 64


def test_end_of_a_run_stops_the_clock() -> None:
    state = apply_events(
        (0.0, PhaseStarted("loss", 1, 10, 80)), (5.0, RunEnded(5.0, "KilledWorker"))
    )
    snapshot = state.snapshot(99.0)
    assert snapshot["seconds"] == 5.0
    assert snapshot["running"] is False
    assert snapshot["error"] == "KilledWorker"
    assert "KilledWorker" in snapshot["messages"][-1][1]
