"""The state of the scheduler that a stalled command writes."""

from __future__ import annotations

import time
from types import SimpleNamespace

from scrlm_dask.engine.failures import _scheduler_state


def test_scheduler_whose_clock_was_set_back() -> None:
    worker = SimpleNamespace(
        name="w",
        nthreads=1,
        memory_limit=10**9,
        status=SimpleNamespace(name="running"),
        processing=(),
        metrics={"memory": 5},
        last_seen=time.time() + 3600,  # before the clock was set back
    )
    scheduler = SimpleNamespace(workers={"tcp://w": worker}, tasks={}, get_events=lambda topic: [])
    assert _scheduler_state(scheduler)["workers"]["tcp://w"]["seconds_silent"] == 0.0
