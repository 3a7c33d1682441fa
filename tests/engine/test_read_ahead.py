"""Prefetching: overlap of reading and computing, limits, memory and timing."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from distributed import get_client
from numpy.typing import NDArray

from scrlm_dask.clusters.connect import connect
from scrlm_dask.clusters.options import ClusterOptions
from scrlm_dask.config import FitConfig
from scrlm_dask.engine import read_ahead
from scrlm_dask.engine.execution import Execution, Pass, task
from scrlm_dask.engine.failures import drain_tasks, track_task
from scrlm_dask.engine.features import as_features
from scrlm_dask.engine.read_ahead import compute_slot
from scrlm_dask.engine.workers import (
    WorkerMemory,
    run_on_all_workers,
    scheduler_workers,
    worker_memories,
)
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.synth import synth
from scrlm_dask.planning.memory import kmeans_memory

N_BLOCKS, BLOCK = 24, 8
TIMEOUT = 120.0  # seconds; only a failing test waits this long


class Watch:
    """Counts blocks in memory and parts being computed in the threads of a worker."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.read = self.begun = 0
        self.in_time = True
        self.now = {"blocks": 0, "computing": 0}
        self.most = dict(self.now)

    def count(self, name: str, change: int) -> None:
        with self.changed:
            self.now[name] += change
            self.most[name] = max(self.most[name], self.now[name])

    def block_is_read(self, block: NDArray[Any]) -> None:
        self.count("blocks", 1)
        weakref.finalize(block, self.count, "blocks", -1)
        with self.changed:
            self.read += 1
            self.changed.notify_all()

    def next_is_read(self) -> bool:
        """Wait, while a part computes, until one more block is read than parts have begun."""
        with self.changed:
            self.begun += 1
            expected = min(N_BLOCKS, self.begun + 1)
            self.in_time &= self.changed.wait_for(
                lambda: self.read >= expected, TIMEOUT if self.in_time else 0.0
            )
            return self.in_time


watch = Watch()  # each worker process imports this module and has its own instance


def read(block_info: Any = None) -> NDArray[np.float32]:
    block = np.ones(block_info[None]["chunk-shape"], np.float32)
    watch.block_is_read(block)
    return block


def part(block: NDArray[Any], start: int) -> list[bool]:
    watch.count("computing", 1)
    found = watch.next_is_read()
    time.sleep(0.02)  # long enough for another thread to compute as well, if it is allowed to
    watch.count("computing", -1)
    return [found]


def seen() -> dict[str, int]:
    return watch.most


def alone(_: int) -> int:
    watch.count("computing", 1)
    time.sleep(0.02)
    watch.count("computing", -1)
    return 1


@contextmanager
def local(nthreads: int, nworkers: int = 1) -> Iterator[None]:
    options = ClusterOptions(nworkers=nworkers, nthreads=nthreads, memory_limit="4GB")
    with connect(options) as connection:
        assert re.search(rf"\b{nthreads} thread", connection.description)
        yield


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.parametrize("nthreads", [1, 2])
def test_next_block_is_prefetched(nthreads: int) -> None:
    rows = da.map_blocks(
        read, chunks=((BLOCK,) * N_BLOCKS, (4,)), dtype=np.float32, meta=np.empty((0, 0), "f4")
    )
    features = as_features(rows, BLOCK)
    with local(nthreads):
        with Execution(lambda event: None) as execution:
            found = execution.run(Pass("watched", part, list.__add__), features, {})
        (most,) = run_on_all_workers(seen, dict).values()
        tasks = [task("alone", alone, i) for i in range(8)]
        assert dask.compute(*tasks) == (1,) * 8
        (with_others,) = run_on_all_workers(seen, dict).values()
    # no part could finish before the next block was read
    assert found == [True] * N_BLOCKS
    assert most["computing"] == nthreads
    assert most["blocks"] <= nthreads + 1
    assert with_others == most  # single tasks do not use the prefetching thread either


@pytest.mark.cluster
def test_planned_memory_includes_the_prefetched_block() -> None:
    x = np.zeros((100, 4), np.float32)
    with local(2):
        assert worker_memories() == [WorkerMemory(4 * 10**9, 2, 1)]
        plan = kmeans_memory(as_features(x, 50).layout, 3, n_workers=1)
    # the block exists encoded, decoded and as an array
    assert plan.worker_bytes(2, 1) - plan.worker_bytes(2) == 3 * 50 * 4 * 4


@pytest.mark.slow
@pytest.mark.cluster
def test_restarted_worker_prefetches() -> None:
    with local(1):
        client = get_client()
        ((address, pid),) = client.run(os.getpid).items()
        os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + TIMEOUT
        while address in scheduler_workers(client) and time.monotonic() < end:
            time.sleep(0.05)
        client.wait_for_workers(1, timeout=TIMEOUT)
        assert worker_memories() == [WorkerMemory(4 * 10**9, 1, 1)]


@pytest.mark.cluster
def test_prefetching_can_be_disabled() -> None:
    with dask.config.set({"scrlm.read-ahead": 0}), local(1):
        assert set(get_client().nthreads().values()) == {1}
        assert worker_memories() == [WorkerMemory(4 * 10**9, 1, 0)]


# --- compute slots -------------------------------------------------------------------------------


class FakeWorker:
    """A worker with two threads, which is also its own state."""

    nthreads = 2

    @property
    def state(self) -> FakeWorker:
        return self


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    worker = FakeWorker()
    monkeypatch.setattr(read_ahead, "current_worker", lambda: worker)
    with dask.config.set({"scrlm.read-ahead": 1}):
        yield


def test_waiting_task_stops_when_its_run_ends(two_threads: None) -> None:
    waiting, left = threading.Event(), []

    def wait_for_slot() -> None:
        with track_task("a run") as still:
            waiting.set()
            with compute_slot(still) as granted:
                left.append(granted)

    thread = threading.Thread(target=wait_for_slot, daemon=True)
    with compute_slot() as granted:
        assert granted
        thread.start()
        assert waiting.wait(TIMEOUT)
        drain_tasks("a run")
        assert left == [False]
    with compute_slot() as granted:  # the task that stopped waiting did not take a slot
        assert granted
    thread.join(TIMEOUT)


def test_slot_is_released_after_an_error(two_threads: None) -> None:
    for _ in range(3):
        with pytest.raises(KeyError), compute_slot():
            raise KeyError


def test_threads_of_this_process_have_no_slots() -> None:
    with dask.config.set({"scrlm.read-ahead": 1}), compute_slot() as a, compute_slot() as b:
        assert a
        assert b


# --- time spent reading --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("features") / "x.zarr"
    with connect(ClusterOptions(nworkers=0, nthreads=1)):
        synth(path, 2000, MixtureSpec(16, 5, 0.2, seed=1), chunk_bytes=100 * 16 * 4)
    return path


def read_by_phase(features: Any) -> dict[str, float]:
    result = fit(features, FitConfig(rho=0.5, n_clusters=10), block_rows=100)
    return {phase["name"]: phase["read_seconds"] for phase in result.record["phases"]}


def check_read(seconds: dict[str, float]) -> None:
    assert seconds.pop("extract") == 0.0
    assert set(seconds) == {"survey", "loss", "assign"}
    assert min(seconds.values()) > 0.0


@pytest.mark.slow
def test_read_seconds_in_threads(store: Path) -> None:
    with connect(ClusterOptions(nworkers=0, nthreads=2)):
        check_read(read_by_phase(store))
        x = zarr.open_group(store, mode="r")["features"]
        check_read(read_by_phase(zarr.array(x[:], chunks=(100, 16))))  # an array without a path
        assert set(read_by_phase(x[:]).values()) == {0.0}


@pytest.mark.slow
@pytest.mark.cluster
def test_read_seconds_on_workers_and_in_dask_metrics(store: Path) -> None:
    with local(1, nworkers=2):
        seconds = read_by_phase(store)
        metrics = read_seconds_in_dask_metrics()
    for name in ("survey", "loss", "assign"):
        # Dask's timer runs inside ours
        assert 0.0 < metrics[name] <= seconds[name] + 1e-3
    check_read(seconds)


def read_seconds_in_dask_metrics() -> dict[str, float]:
    """Return the seconds of "read" in the metrics of all workers, by name of the task."""
    total: dict[str, float] = {}
    for found in get_client().run(_digests).values():
        for name, value in found:
            total[name] = total.get(name, 0.0) + value
    return total


def _digests(dask_worker: Any) -> list[tuple[str, float]]:
    return [
        (key[2], value)
        for key, value in dask_worker.digests_total.items()
        if isinstance(key, tuple) and key[0] == "execute" and key[3:] == ("read", "seconds")
    ]
