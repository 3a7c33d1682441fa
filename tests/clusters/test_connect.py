"""Connections to real schedulers and workers, and errors without a scheduler or workers."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, default_client

from scrlm_dask.clusters.connect import connect
from scrlm_dask.clusters.options import ClusterOptions
from scrlm_dask.config import FitConfig, KMeansConfig
from scrlm_dask.engine.workers import current_client, process_reports, worker_memories
from scrlm_dask.errors import ClusterError
from scrlm_dask.events import Note
from scrlm_dask.monitoring.listeners import make_publisher
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.kmeans import kmeans


@contextmanager
def running(*command: str) -> Iterator[None]:
    """Run a command of Dask in a subprocess for the duration of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "dask", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(path: Path) -> Any:
    """Wait until `path` contains complete JSON, and return it."""
    end = time.monotonic() + 90
    while time.monotonic() < end:
        try:
            return json.loads(path.read_text())
        except (FileNotFoundError, ValueError):
            time.sleep(0.05)
    raise TimeoutError(path)


@pytest.fixture(scope="class")
def external_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Start a scheduler and a worker outside of the package; return address and file."""
    folder = tmp_path_factory.mktemp("cluster")
    file = folder / "scheduler.json"
    loopback = ("--host", "127.0.0.1", "--no-dashboard")
    with running("scheduler", "--port", "0", "--scheduler-file", str(file), *loopback):
        address = wait_for(file)["address"]
        worker = ("--nworkers", "1", "--nthreads", "1", "--no-nanny", "--name", "theirs")
        with running(
            *("worker", address, *worker, *loopback, "--local-directory", str(folder)),
        ):
            with connect(ClusterOptions(scheduler=address)):
                default_client().wait_for_workers(1, timeout=90)
            yield address, file


def check_connected_to(address: str) -> None:
    client = current_client()
    assert client is not None
    assert client.scheduler.address == address
    assert client.submit(_worker_name).result(timeout=90) == "theirs"


def _worker_name() -> Any:
    from distributed import get_worker

    return get_worker().name


@pytest.mark.cluster
class TestExternalCluster:
    @pytest.mark.slow
    def test_address_is_used(self, external_cluster: tuple[str, Path]) -> None:
        address, _ = external_cluster
        with connect(ClusterOptions(scheduler=address)) as connection:
            assert re.search(r"\b1 worker\b", connection.description)
            assert address in connection.description
            check_connected_to(address)
        assert current_client() is None
        # the external cluster is still running
        with connect(ClusterOptions(scheduler=address)):
            check_connected_to(address)

    def test_scheduler_file_is_used(self, external_cluster: tuple[str, Path]) -> None:
        address, file = external_cluster
        with connect(ClusterOptions(scheduler_file=str(file))) as connection:
            assert str(file) in connection.description
            check_connected_to(address)
        assert current_client() is None

    def test_environment_variable_is_used(
        self, external_cluster: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        address, _ = external_cluster
        monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", address)
        with connect(ClusterOptions()) as connection:
            assert address in connection.description
            check_connected_to(address)

    @pytest.mark.parametrize("how", ["address", "file"])
    def test_arguments_override_the_environment(
        self,
        external_cluster: tuple[str, Path],
        how: str,
        closed_port: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        address, file = external_cluster
        monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", f"tcp://127.0.0.1:{closed_port}")
        options = (
            ClusterOptions(scheduler=address)
            if how == "address"
            else ClusterOptions(scheduler_file=str(file))
        )
        with connect(options):
            check_connected_to(address)


def test_requested_threads_override_the_environment(
    monkeypatch: pytest.MonkeyPatch, short_timeout: None, closed_port: int
) -> None:
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", f"tcp://127.0.0.1:{closed_port}")
    with connect(ClusterOptions(nworkers=0, nthreads=1)) as connection:
        assert re.search(r"\b1 thread\b", connection.description)


@dataclass
class LostClient:
    """A client of a lost scheduler: its calls fail, for a real one after a long timeout."""

    status: str = "running"
    calls: int = 0

    def run(self, *args: object, **kwargs: object) -> None:
        self.calls += 1
        raise OSError("Timed out trying to connect")

    @property
    def scheduler(self) -> LostClient:
        return self

    def identity(self, n_workers: int) -> None:
        self.run()

    def sync(self, function: Callable[..., None], **kwargs: Any) -> None:
        function(**kwargs)

    def register_plugin(self, plugin: object) -> None:
        pass

    def log_event(self, topic: str, message: object) -> None:
        self.run()


@pytest.mark.parametrize(("status", "calls"), [("running", 1), ("connecting", 0), ("closed", 0)])
def test_lost_scheduler_is_reported_without_timeouts(
    monkeypatch: pytest.MonkeyPatch, status: str, calls: int
) -> None:
    client = LostClient(status)
    monkeypatch.setattr("scrlm_dask.engine.workers.current_client", lambda: client)
    reason = "Timed out trying to connect" if calls else status
    for request in (process_reports, worker_memories):
        client.calls = 0
        with pytest.raises(ClusterError, match=reason):
            request()
        assert client.calls == calls


@pytest.mark.parametrize(("status", "calls"), [("running", 1), ("connecting", 0), ("closed", 0)])
def test_no_event_is_sent_to_a_lost_scheduler(status: str, calls: int) -> None:
    client = LostClient(status)
    publish = make_publisher(client, "run", lambda event: None)
    assert publish is not None
    publish(Note("a note"))
    assert client.calls == calls


# --- a client of the caller, without workers ---------------------------------------------------


@contextmanager
def no_workers_yet() -> Iterator[LocalCluster]:
    with (
        LocalCluster(
            n_workers=0, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster),
    ):
        yield cluster


def test_missing_workers_are_reported() -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    facts = r"(?=.*inproc://)(?=.*\b0\.2 s\b)(?=.*`dask worker`)"
    with dask.config.set({"scrlm.wait-workers": "0.2s"}), no_workers_yet():
        for features in (x, da.from_array(x, chunks=(20, 3))):
            with pytest.raises(ClusterError, match=facts):
                fit(features, FitConfig(rho=0.5))
            with pytest.raises(ClusterError, match=facts):
                kmeans(features, KMeansConfig(2))


@pytest.mark.parametrize("lazy", [False, True])
def test_adaptive_cluster_starts_workers(lazy: bool) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    with no_workers_yet() as cluster:
        cluster.adapt(minimum=0, maximum=1, interval="50ms", wait_count=1000)
        features = da.from_array(x, chunks=(20, 3)) if lazy else x
        config = FitConfig(rho=0.5, n_clusters=2, n_candidates=40)
        found = fit(features, config, collect_labels=True)
    assert len(found.labels) == 40
