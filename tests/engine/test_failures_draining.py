"""Tasks that are still running when their run ends return no result."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
from backends import backend

from scrlm_dask.engine.execution import Execution, Pass
from scrlm_dask.engine.failures import RunIsOverError, drain_tasks
from scrlm_dask.engine.features import as_features
from scrlm_dask.events import warn


@pytest.mark.slow
def test_draining_task_returns_no_result() -> None:
    seen: list[int] = []

    def part(block: Any, start: int) -> int:
        seen.append(start)
        drain_tasks(execution._topic, leaving=True)  # the run fails while the task computes
        return len(block)

    features = as_features(np.zeros((4, 2), np.float32), 2)
    with backend("one thread"), Execution(warn) as execution, pytest.raises(RunIsOverError):
        execution.run(Pass("judge", part, operator.add), features, {})
    assert len(seen) == 1
