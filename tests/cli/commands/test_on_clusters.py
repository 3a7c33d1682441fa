"""Commands on real clusters: the same bits as in threads, and a clean exit if a process is lost."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from holding import Hold

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

DASK = (str(Path(sys.executable).parent / "dask"),)
FIT = ("--rho", 0.5, "--clusters", 10, "--block-rows", 500)
# Many blocks: the loss pass is blocked halfway until the test has done something.
LONG_ROWS = 8_000
LONG_FIT = ("--rho", 0.5, "--candidates", 400, "--block-rows", 250)
CLUSTER_LOST, INTERRUPTED = 4, 130
# The time to reconnect to a lost scheduler.
SHORT_TIMEOUT = {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "5s"}


@pytest.fixture(scope="module", autouse=True)
def waiting(start, dask_scheduler, features, tmp_path_factory) -> dict[str, Any]:
    """Commands that end by a timeout; they wait while the other tests run."""
    folder = tmp_path_factory.mktemp("waiting")
    out = folder / "out"
    common = ("fit", features, "--rho", 0.5, "--out", out)
    (folder / "other.json").write_text('{"colour": "red"}')
    lonely = folder / "lonely.json"
    scheduler = ("scheduler", "--host", "127.0.0.1", "--port", 0, "--scheduler-file", lonely)
    running = start(*scheduler, "--dashboard-address", "127.0.0.1:0", program=DASK)
    commands = {
        "out": out,
        "file": folder / "missing.json",
        "other file": folder / "other.json",
        "wrong file": start(*common, "--scheduler-file", folder / "other.json"),
        "no answer": start(*common, "--scheduler", "tcp://127.0.0.1:9"),
        "no file": start(*common, "--scheduler-file", folder / "missing.json"),
    }
    dask_scheduler(running, lonely)
    commands["no workers"] = start(*common[:-1], folder / "never", "--scheduler-file", lonely)
    return commands


@pytest.fixture(scope="module")
def alone(invoke, features, results_of, tmp_path_factory) -> dict[str, bytes]:
    """The results of a fit without a cluster."""
    out = tmp_path_factory.mktemp("alone") / "run"
    invoke("fit", features, "--out", out, *FIT).ok()
    return results_of(out)


@pytest.fixture(scope="module")
def long_features(invoke, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("long") / "features.zarr"
    size = ("--rows", LONG_ROWS, "--features", 32, "--clusters", 5, "--chunk-size", "32kB")
    invoke("synth", out, *size).ok()
    return out


@pytest.fixture(scope="module")
def long_alone(invoke, long_features, results_of, tmp_path_factory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("long-alone") / "run"
    invoke("fit", long_features, "--out", out, *LONG_FIT).ok()
    return results_of(out)


class RemoteCluster:
    """A scheduler and two workers in separate processes, as on a cluster of other machines."""

    def __init__(self, start: Callable[..., Any], ready: Callable[..., str], folder: Path) -> None:
        self.file, self.hold = folder / "scheduler.json", Hold(folder / "hold")
        self._start, self._ready, self._folder = start, ready, folder
        self.scheduler: Any = None
        self.workers: list[Any] = []
        self.address = ""

    def repair(self) -> None:
        """Restart the processes that other tests have killed."""
        if self.scheduler is None or self.scheduler.process.poll() is not None:
            self.stop()
            self.file.unlink(missing_ok=True)
            self.scheduler = self._dask("scheduler", "--host", "127.0.0.1", "--port", 0)
        self.workers = [worker for worker in self.workers if worker.process.poll() is None]
        while len(self.workers) < 2:
            options = ("--nthreads", 1, "--no-nanny", "--local-directory", self._folder)
            self.workers.append(self._dask("worker", "--host", "127.0.0.1", *options))
        self.address = self._ready(self.scheduler, self.file, workers=2)

    def stop(self) -> None:
        for running in (*self.workers, self.scheduler):
            if running is not None:
                running.stop()

    def _dask(self, *args: Any) -> Any:
        common = ("--scheduler-file", self.file, "--dashboard-address", "127.0.0.1:0")
        return self._start(*args, *common, program=DASK, **self.hold.environment)


@pytest.fixture(scope="module")
def breakable(start, dask_scheduler, tmp_path_factory) -> Iterator[RemoteCluster]:
    cluster = RemoteCluster(start, dask_scheduler, tmp_path_factory.mktemp("remote"))
    yield cluster
    cluster.stop()


@pytest.fixture
def remote(breakable: RemoteCluster) -> Iterator[RemoteCluster]:
    breakable.repair()
    yield breakable
    breakable.hold.release()


def test_local_clusters_give_the_same_bits(start, features, tmp_path, alone, results_of, record_of):
    fits = {}
    for workers, threads in ((1, 2), (2, 1)):
        size = ("--nworkers", workers, "--nthreads", threads, "--memory-limit", "2GB")
        fits[workers] = start("fit", features, "--out", tmp_path / str(workers), *FIT, *size)
    for workers, fit in fits.items():
        stderr = fit.outcome().ok().stderr
        size = rf"^(?=.*\b{workers} workers?\b).*\b{3 - workers} threads?\b"
        assert re.search(size, stderr, re.MULTILINE)
        assert re.search(r"http://127\.0\.0\.1:\d+/status", stderr)
        assert results_of(tmp_path / str(workers)) == alone
        reports = record_of(tmp_path / str(workers))["workers"]
        assert len(reports) == workers
        for report in reports.values():
            assert set(report["threads"].values()) == {1}


@pytest.mark.parametrize("way", ["--scheduler", "--scheduler-file", "DASK_SCHEDULER_ADDRESS"])
def test_remote_cluster_gives_the_same_bits(
    start, features, tmp_path, alone, results_of, record_of, remote, way
):
    out, env, options = tmp_path / "run", {}, (way, remote.file)
    if way == "--scheduler":
        options = (way, remote.address)
    elif way == "DASK_SCHEDULER_ADDRESS":
        options, env = (), {way: remote.address}
    done = start("fit", features, "--out", out, *FIT, *options, **env).outcome().ok()
    first = done.stderr.splitlines()[0]
    assert "2 workers" in first
    assert remote.address in first
    assert results_of(out) == alone
    reports = record_of(out)["workers"]
    assert len(reports) == 2
    # These workers were started without OMP_NUM_THREADS.
    for report in reports.values():
        assert set(report["threads"].values()) == {1}


def test_other_commands_on_a_remote_cluster(
    start, features, round_trip, tmp_path, remote, files_of, without_times
):
    where = ("--scheduler", remote.address, "--json")
    drawn, labels = tmp_path / "drawn.zarr", tmp_path / "labels.zarr"
    size = ("--rows", 4000, "--features", 64, "--clusters", 5, "--outliers", 0.3)
    commands = [
        start("synth", drawn, *size, "--chunk-size", "64kB", *where),
        start("predict", round_trip.run, features, "--out", labels, "--block-rows", 1024, *where),
        start("evaluate", round_trip.run, *where),
    ]
    results = [command.outcome().json() for command in commands]
    assert without_times(files_of(drawn)) == without_times(files_of(features))
    assert files_of(labels) == files_of(round_trip.predicted)
    assert results[2]["accuracy"] == 1.0


def test_workers_report_bad_rows(start, store, remote, rows, tmp_path):
    """The error is sent from a worker to the client while the other worker still writes."""
    values = rows.copy()
    values[1999, 3] = np.nan
    path, out = store(tmp_path / "bad.zarr", values), tmp_path / "out"
    options = ("--preprocess", "none", "--candidates", 5, "--loss-rows", 5, "--block-rows", 100)
    done = start("fit", path, "--out", out, *options, "--scheduler", remote.address).outcome()
    done.rejected("row 1999", "block 19", str(path))
    assert not out.exists()


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """Return the worker processes of the local cluster that `process` has started."""
    found = []
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any("spawn_main" in word for word in child.cmdline()):
                found.append(child)
    return found


def have_ended(processes: list[psutil.Process]) -> bool:
    """Wait up to a minute until all processes have ended."""
    _, alive = psutil.wait_procs(processes, timeout=60)
    return not alive


@pytest.mark.parametrize("workers", [0, 2])
def test_interrupt(
    start, invoke, hold, long_features, tmp_path, workers, record_of, long_alone, results_of
):
    """Ctrl-C goes to the whole process group; the fit resumes later from its checkpoints."""
    out = tmp_path / "run"
    where = ("--nworkers", workers)
    fit = start("fit", long_features, "--out", out, *LONG_FIT, *where, **hold.environment)
    fit.wait_for("survey: ")
    assert (out / "run.json").exists()
    family = psutil.Process(fit.process.pid).children(recursive=True)
    fit.interrupt()
    time.sleep(0.5)  # the signal must be handled before the current blocks are done
    hold.release()
    done = fit.outcome()
    assert done.code == INTERRUPTED
    assert "assign: " not in done.stderr
    assert have_ended(family)
    done.rejected("SIGINT", f"--resume {out}", code=INTERRUPTED)
    assert record_of(out)["status"] == "interrupted"
    invoke("evaluate", out).rejected(str(out), "interrupted", code=3)
    invoke("fit", "--resume", out).ok()
    assert record_of(out)["taken_over"]["survey"] > 0
    assert results_of(out) == long_alone


def test_killed_worker_of_a_local_cluster_changes_no_bit(
    start, hold, long_features, tmp_path, long_alone, results_of
):
    out = tmp_path / "run"
    size = ("--nworkers", 2, "--nthreads", 1)
    fit = start("fit", long_features, "--out", out, *LONG_FIT, *size, **hold.environment)
    fit.wait_for("survey: ")
    victim = workers_of(psutil.Process(fit.process.pid))[0]
    victim.kill()
    hold.release()
    done = fit.outcome().ok()
    assert have_ended([victim])
    assert "Traceback" not in done.stderr
    assert results_of(out) == long_alone


def test_killed_worker_of_a_remote_cluster_changes_no_bit(
    start, remote, long_features, tmp_path, long_alone, results_of
):
    out = tmp_path / "run"
    where = ("--scheduler-file", remote.file)
    remote.hold.take()
    fit = start("fit", long_features, "--out", out, *LONG_FIT, *where)
    fit.wait_for("survey: ")
    os.kill(remote.workers[0].process.pid, signal.SIGKILL)
    remote.hold.release()
    done = fit.outcome().ok()
    assert remote.workers[0].process.wait(60) == -signal.SIGKILL
    assert "Traceback" not in done.stderr
    assert results_of(out) == long_alone


def test_lost_scheduler_ends_the_command(
    start, invoke, remote, long_features, tmp_path, record_of, long_alone, results_of
):
    out = tmp_path / "run"
    where = ("--scheduler-file", remote.file)
    remote.hold.take()
    fit = start("fit", long_features, "--out", out, *LONG_FIT, *where, **SHORT_TIMEOUT)
    fit.wait_for("survey: ")
    os.kill(remote.scheduler.process.pid, signal.SIGKILL)
    done = fit.outcome()
    remote.hold.release()
    done.rejected(f"scrlm fit --resume {out}", code=CLUSTER_LOST)
    assert record_of(out)["status"] == "interrupted"
    invoke("fit", long_features, "--out", out, *LONG_FIT).ok()
    assert record_of(out)["attempts"] == 2
    assert results_of(out) == long_alone


def test_lost_scheduler_ends_an_experiment(start, remote, tmp_path):
    args = ("paper", "bounds", "--size", "small", "--out", tmp_path / "out")  # takes minutes
    experiment = start(*args, "--scheduler-file", remote.file, **SHORT_TIMEOUT)
    experiment.until(lambda: list((tmp_path / "out" / "cells").glob("*")))
    os.kill(remote.scheduler.process.pid, signal.SIGKILL)
    done = experiment.outcome()
    done.rejected("Dask", code=CLUSTER_LOST)


def test_too_little_memory_for_a_worker(start, features, tmp_path):
    """A worker that is above its memory limit from the start never takes a task."""
    out = tmp_path / "run"
    options = ("--nworkers", 1, "--memory-limit", "50MB")
    done = start("fit", features, "--out", out, *options).outcome()
    assert done.code in (2, 3, 4)
    done.rejected("memory", code=done.code)
    assert not out.exists()


@pytest.mark.parametrize("address", ["nonsense", "foo://bar:1"])
def test_invalid_address(start, features, tmp_path, address):
    out = tmp_path / "run"
    done = start("fit", features, "--out", out, "--scheduler", address).outcome()
    done.rejected(address, code=CLUSTER_LOST)
    assert not out.exists()


def test_nworkers_takes_precedence_over_the_environment(start, features, tmp_path):
    """DASK_SCHEDULER_ADDRESS is only a default; --nworkers overrides it."""
    env = {"DASK_SCHEDULER_ADDRESS": "nonsense"}
    out = tmp_path / "run"
    done = start("fit", features, "--out", out, *FIT, "--nworkers", 0, **env).outcome().ok()
    assert re.search(r"\b\d+ threads?\b", done.stderr.splitlines()[0])
    assert "nonsense" not in done.stderr


def test_no_scheduler_at_the_address(waiting):
    done = waiting["no answer"].outcome()
    done.rejected("tcp://127.0.0.1:9", code=CLUSTER_LOST)
    assert not waiting["out"].exists()


def test_invalid_scheduler_file(waiting):
    done = waiting["wrong file"].outcome()
    done.rejected(str(waiting["other file"]), code=CLUSTER_LOST)
    assert not waiting["out"].exists()


def test_no_scheduler_file(waiting):
    """The command waits for the file, which may be written soon, up to a timeout."""
    done = waiting["no file"].outcome()
    done.rejected(str(waiting["file"]), code=CLUSTER_LOST)
    assert not waiting["out"].exists()


def test_no_workers(waiting):
    """The command waits for workers, which may connect soon, up to a timeout."""
    done = waiting["no workers"].outcome()
    done.rejected("25", "dask", "--wait-workers", code=CLUSTER_LOST)
