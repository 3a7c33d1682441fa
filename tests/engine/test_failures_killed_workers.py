"""A block that ends every worker which touches it is named: real processes, killed for real."""

from __future__ import annotations

import operator
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import KilledWorker

from scrlm_dask import connect, synth
from scrlm_dask.engine.execution import Execution, Pass, task
from scrlm_dask.engine.failures import explain_killed_workers
from scrlm_dask.engine.features import Features, as_features, persist_features, placeholder_blocks
from scrlm_dask.engine.workers import in_this_process
from scrlm_dask.errors import ClusterError
from scrlm_dask.events import warn
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

POISON_ROW, BLOCK_ROWS = 300, 100


def _deadly_part(block: Any, start: int, extra: int) -> int:
    if start == POISON_ROW:
        os.kill(os.getpid(), signal.SIGKILL)
    return len(block) + extra


def _deadly_read(block: Any, block_id: Any = None) -> Any:
    if block_id[0] == POISON_ROW // BLOCK_ROWS:
        os.kill(os.getpid(), signal.SIGKILL)
    return block


def _deadly_task() -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Features]:
    path: Path = tmp_path_factory.mktemp("poison") / "features.zarr"
    synth(path, 6 * BLOCK_ROWS, MixtureSpec(8, 3))
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        connect(nworkers=1, nthreads=1),
    ):
        yield as_features(path, BLOCK_ROWS)


@pytest.mark.parametrize(
    ("blocks", "extra", "named"),
    [
        # others that the worker had before it each time are suspected, too
        (None, 0, r"block.* 3 \(rows 300 to 399\).* of the features store .* the pass judge"),
        ([1, 3, 5], 0, r"block.* 3 \(rows 300 to 399\).* of the features store .* the pass judge"),
        ([1], None, r"lost again and again in the pass judge, at last with the task"),
    ],
)
def test_what_kills_its_workers_is_named(
    features: Features, blocks: list[int] | None, extra: int | None, named: str
) -> None:
    extra_input = task("extra", _deadly_task) if extra is None else extra
    judge = Pass("judge", _deadly_part, operator.add)
    with Execution(warn) as execution, pytest.raises(ClusterError, match=named):
        execution.run(judge, features, {"extra": extra_input}, blocks=blocks)


@pytest.fixture
def deadly_to_read(features: Features) -> Features:
    array = features.array.map_blocks(_deadly_read, dtype=features.array.dtype)
    return replace(features, array=array)


def test_a_read_that_kills_those_who_hold_it_is_named(deadly_to_read: Features) -> None:
    named = r"block.* 3 \(rows 300 to 399\).* the pass hold"
    with (
        connect(nworkers=1, nthreads=1),  # a new one, whose worker nobody has killed yet
        Execution(warn) as execution,
        pytest.raises(ClusterError, match=named),
        execution.read_phase("hold", deadly_to_read),
    ):
        persist_features(deadly_to_read)


def test_only_tasks_of_this_run_are_suspected() -> None:
    small = placeholder_blocks((600, 8), np.dtype("float32"), BLOCK_ROWS)
    large = small.in_blocks_for(BLOCK_ROWS)
    for key, named in (
        (("judge-mine", 1, 0), r"^block 2 \(rows 400 to 599\)"),
        ((large.array.name, 1, 0), r"^block 1 \(rows 200 to 399\)"),
        ((small.array.name, 1, 0), r"^block 0 \(rows 0 to 199\)"),
        (("judge-other", 1, 0), "^workers were lost again and again in the pass judge"),
        (("read-other", 1, 0), "^workers were lost again and again in the pass judge"),
    ):
        with (
            pytest.raises(ClusterError, match=named),
            in_this_process(),
            explain_killed_workers("judge", large, [0, 2], "judge-mine"),
        ):
            raise KilledWorker(key, None, 1)
