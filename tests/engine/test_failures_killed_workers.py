"""A block that kills its workers is named; the tests kill real worker processes."""

from __future__ import annotations

import operator
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import KilledWorker

from scrlm_dask import connect, synth
from scrlm_dask.engine import failures
from scrlm_dask.engine.execution import Execution, Pass, task
from scrlm_dask.engine.failures import explain_killed_workers
from scrlm_dask.engine.features import Features, as_features, persist_features, placeholder_blocks
from scrlm_dask.engine.workers import in_this_process
from scrlm_dask.errors import ClusterError
from scrlm_dask.events import warn
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

DEADLY_ROW, BLOCK_ROWS = 300, 100


def _deadly_part(block: Any, start: int, extra: int) -> int:
    if start == DEADLY_ROW:
        os.kill(os.getpid(), signal.SIGKILL)
    return len(block) + extra


def _deadly_read(block: Any, block_id: Any = None) -> Any:
    if block_id[0] == DEADLY_ROW // BLOCK_ROWS:
        os.kill(os.getpid(), signal.SIGKILL)
    return block


def _large_part(block: Any, start: int) -> int:
    """Use more memory than the worker may, and wait until the nanny kills the worker."""
    if start == DEADLY_ROW:
        used = np.ones(10**8)
        time.sleep(120)
        return len(used)
    return len(block)


def _deadly_task() -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Features]:
    path: Path = tmp_path_factory.mktemp("deadly") / "features.zarr"
    synth(path, 6 * BLOCK_ROWS, MixtureSpec(8, 3))
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        connect(nworkers=1, nthreads=1),
    ):
        yield as_features(path, BLOCK_ROWS)


@pytest.mark.parametrize(
    ("blocks", "extra", "named"),
    [
        # other blocks that were assigned to each lost worker are also suspected
        (None, 0, r"(?=.*\b3\W+rows 300\D+399\b)(?=.*features\.zarr)"),
        ([1, 3, 5], 0, r"(?=.*\b3\W+rows 300\D+399\b)(?=.*features\.zarr)"),
        # Dask may give up on any task of the pass first: a key and no block is named
        ([1], None, r"(?!.*\brows\b)(?=.*-[0-9a-f]{32}\b)"),
    ],
)
def test_block_that_kills_its_workers_is_named(
    features: Features,
    monkeypatch: pytest.MonkeyPatch,
    blocks: list[int] | None,
    extra: int | None,
    named: str,
) -> None:
    find_suspects = failures._suspects

    def find_later() -> list[Any]:
        """Give the scheduler time to forget tasks that the client has released."""
        time.sleep(0.5)
        return find_suspects()

    monkeypatch.setattr(failures, "_suspects", find_later)
    extra_input = task("extra", _deadly_task) if extra is None else extra
    judge = Pass("judge", _deadly_part, operator.add)
    with Execution(warn) as execution, pytest.raises(ClusterError, match=named) as caught:
        execution.run(judge, features, {"extra": extra_input}, blocks=blocks)
    assert "judge" in str(caught.value)  # the name of the pass


@pytest.fixture
def deadly_to_read(features: Features) -> Features:
    array = features.array.map_blocks(_deadly_read, dtype=features.array.dtype)
    return replace(features, array=array)


def test_block_whose_read_kills_workers_is_named(deadly_to_read: Features) -> None:
    named = r"(?=.*\b3\W+rows 300\D+399\b)(?=.*\bhold\b)"
    with (
        connect(nworkers=1, nthreads=1),  # a new cluster, which has lost no worker yet
        Execution(warn) as execution,
        pytest.raises(ClusterError, match=named),
        execution.read_phase("hold", deadly_to_read),
    ):
        persist_features(deadly_to_read)


def test_block_that_exceeds_the_memory_of_its_workers_is_named(features: Features) -> None:
    judge = Pass("judge", _large_part, operator.add)
    with (
        connect(nworkers=1, nthreads=1, memory_limit="500MB"),
        Execution(warn) as execution,
        pytest.raises(ClusterError, match=r"(?=.*\b3\W+rows 300\D+399\b)(?=.*\bmemory\b)"),
    ):
        execution.run(judge, features, {})


def test_all_blocks_of_a_batch_are_suspected() -> None:
    blocks = placeholder_blocks((650, 8), np.dtype("float32"), BLOCK_ROWS)
    batched = replace(blocks, array=blocks.array.rechunk({0: 400}))
    for key, named in (
        (("judge-mine", 0, 0), r"\b0 to 3\W+rows 0\D+399\b"),
        (("judge-mine", 1, 0), r"\b4 to 6\W+rows 400\D+649\b"),
        ((batched.array.name, 1, 0), r"\b4 to 6\W+rows 400\D+649\b"),
    ):
        with (
            pytest.raises(ClusterError, match=named),
            in_this_process(),
            explain_killed_workers("judge", batched, range(7), "judge-mine"),
        ):
            raise KilledWorker(key, None, 1)


def test_only_tasks_of_the_pass_are_suspected() -> None:
    small = placeholder_blocks((600, 8), np.dtype("float32"), BLOCK_ROWS)
    large = small.in_blocks_for(BLOCK_ROWS)
    for key, named in (
        (("judge-mine", 1, 0), r"\b2\W+rows 400\D+599\b"),
        ((large.array.name, 1, 0), r"\b1\W+rows 200\D+399\b"),
        ((small.array.name, 1, 0), r"\b0\W+rows 0\D+199\b"),
        (("judge-other", 1, 0), r"(?=.*judge-other)(?!.*\brows\b)"),
        (("read-other", 1, 0), r"(?=.*read-other)(?!.*\brows\b)"),
    ):
        with (
            pytest.raises(ClusterError, match=named) as caught,
            in_this_process(),
            explain_killed_workers("judge", large, [0, 2], "judge-mine"),
        ):
            raise KilledWorker(key, None, 1)
        assert str(caught.value).count("rows ") <= 1  # no other block is suspected
        assert "judge" in str(caught.value)
