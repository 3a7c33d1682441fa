"""Worker processes and threads of this process: memory, reports and timing."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from backends import backend

from scrlm_dask.engine import workers
from scrlm_dask.engine.workers import WorkerMemory
from scrlm_dask.errors import ClusterError
from scrlm_dask.storage.locations import locate


class FakeClient:
    """A client whose scheduler has the given workers, which return the given answers."""

    status = "running"

    def __init__(self, infos: dict[str, dict[str, int]], answers: dict[str, Any]) -> None:
        self.infos, self.answers = infos, answers

    @property
    def scheduler(self) -> Any:
        return self

    def identity(self, n_workers: int) -> dict[str, Any]:
        assert n_workers == -1  # all
        return {"workers": self.infos}

    def sync(self, function: Any, **kwargs: Any) -> Any:
        return function(**kwargs)

    def run(self, function: Any, *args: Any, on_error: str) -> dict[str, Any]:
        if "lost" in self.answers:
            raise OSError(self.answers["lost"])
        return self.answers


def connect_fake(
    monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any], **infos: dict[str, int]
) -> None:
    monkeypatch.setattr(workers, "current_client", lambda: FakeClient(infos, answers))


def test_threads_of_this_process() -> None:
    with backend("three threads"):
        assert workers.current_client() is None
        assert workers.current_worker() is None
        machine = workers.machine_memory()
        assert workers.worker_memories() == [WorkerMemory(machine, 3, 0, own_process=False)]
        assert workers.run_on_all_workers(lambda: 7, int) == {"threads": 7}
    assert machine > 10**8


def test_tasks_in_this_process() -> None:
    threads = set()
    value = dask.delayed(lambda: threads.add(threading.current_thread()))()
    with dask.config.set(scheduler="synchronous"), workers.in_this_process():
        workers.compute(value)
        assert workers.current_client() is None
        assert dask.config.get("scheduler") == "synchronous"  # other threads are not affected
    assert threading.current_thread() not in threads
    assert len(threads) == 1


def test_workers_that_do_not_answer_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    connect_fake(monkeypatch, {"a": 1, "b": OSError("gone"), "c": 3})
    assert workers.run_on_all_workers(int, int) == {"a": 1, "c": 3}


def test_lost_scheduler_is_a_cluster_error(monkeypatch: pytest.MonkeyPatch) -> None:
    connect_fake(monkeypatch, {"lost": "connection closed"})
    with pytest.raises(ClusterError, match="connection closed"):
        workers.run_on_all_workers(int, int)


def test_threads_that_prefetch_do_not_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    info = {"memory_limit": 5, "nthreads": 3}
    unlimited = {"memory_limit": 0, "nthreads": 2}
    connect_fake(monkeypatch, {"a": 1, "b": 4}, a=info, b=info, c=unlimited)
    assert workers.worker_memories() == [
        WorkerMemory(5, 2, 1),
        WorkerMemory(5, 1, 2),  # one thread always computes
        WorkerMemory(None, 2, 0),  # no limit, and no answer
    ]


def test_workers_without_the_path_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    hidden = str(tmp_path / "hidden")
    answers: dict[str, Any] = {"a": None, "b": hidden, "c": OSError("gone")}
    connect_fake(monkeypatch, answers)
    with pytest.raises(ClusterError) as caught:
        workers.check_paths_visible(locate(tmp_path), locate(hidden))
    assert re.search(r"\b1 of 3\b.*\bb\b", str(caught.value))
    assert hidden in str(caught.value)
    assert workers._find_hidden([str(tmp_path), hidden]) == hidden
    assert workers._find_hidden([str(tmp_path)]) is None
    workers.check_paths_visible(locate("memory://x"))  # a URL is the same in every process
    answers["b"] = None
    workers.check_paths_visible(locate(tmp_path))


def test_time_and_rate_of_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    before = workers.process_reports()["threads"]["read_seconds"]
    clock = iter([0.0, 1.0, 10.0, 10.001, 20.0, 25.0])
    large = np.zeros(2 * 10**6, np.uint8)
    with monkeypatch.context() as patch:
        patch.setattr(workers, "time", FakeTime(clock))
        assert workers.timed_read(lambda: large) is large
        assert not workers.reads_are_quick()  # 2 MB in 1 s
        workers.timed_read(lambda: large)
        assert workers.reads_are_quick()  # 2 GB/s
        workers.timed_read(lambda: large[:10])
        assert workers.reads_are_quick()  # a short read does not change the rate
    report = workers.process_reports()["threads"]
    assert report["read_seconds"] - before == pytest.approx(6.001)
    assert report["peak_memory_bytes"] > 0


class FakeTime:
    """A clock that returns the given seconds in turn."""

    def __init__(self, seconds: Any) -> None:
        self.seconds = seconds

    def perf_counter(self) -> float:
        return float(next(self.seconds))


def test_failed_read_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = workers.process_reports()["threads"]["read_seconds"]

    def fail() -> Any:
        raise OSError("damaged")

    with monkeypatch.context() as patch:
        patch.setattr(workers, "time", FakeTime(iter([0.0, 3.0])))
        with pytest.raises(OSError, match="damaged"):
            workers.timed_read(fail)
    assert workers.process_reports()["threads"]["read_seconds"] - before == pytest.approx(3.0)


def test_activities_are_metered_only_if_distributed_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from distributed.metrics import context_meter

    seen: list[Any] = []
    with context_meter.add_callback(lambda *found: seen.append(found)):
        with workers.metered("read"):
            pass
        assert [(found[0], found[2]) for found in seen] == [("read", "seconds")]
        monkeypatch.delitem(sys.modules, "distributed")
        with workers.metered("read"):
            pass
    assert len(seen) == 1
