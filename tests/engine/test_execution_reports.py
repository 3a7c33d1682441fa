"""Times that workers report at the end of a phase."""

from __future__ import annotations

import pytest

from scrlm_dask.engine import workers
from scrlm_dask.engine.execution import Execution
from scrlm_dask.events import warn


def test_read_time_of_a_worker_that_was_restarted_at_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its count starts again at 0."""
    reports = {
        "a": {"read_seconds": 2.0, "peak_memory_bytes": 1},
        "b": {"read_seconds": 9.0, "peak_memory_bytes": 1},
    }
    monkeypatch.setattr(workers, "run_on_all_workers", lambda *_: {"a": 7.0, "b": 8.0})
    monkeypatch.setattr(workers, "process_reports", lambda: reports)
    with Execution(warn) as execution, execution.phase("loss", 1, 1, 1):
        pass
    assert execution.phases[0].read_seconds == 2.0 + (9.0 - 8.0)
