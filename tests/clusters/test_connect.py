"""Getting a cluster: real schedulers, real workers, and what is said when there is none."""

from __future__ import annotations

import json
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
    """A process of Dask's own command line, for the length of the block."""
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
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(path: Path) -> Any:
    """The JSON at `path`, once it is there and whole."""
    end = time.monotonic() + 90
    while time.monotonic() < end:
        try:
            return json.loads(path.read_text())
        except (FileNotFoundError, ValueError):
            time.sleep(0.05)
    raise TimeoutError(path)


@pytest.fixture(scope="class")
def cluster_of_others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A scheduler and a worker that we did not start: its address, and its file."""
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
class TestClusterOfOthers:
    @pytest.mark.slow
    def test_an_address_is_honoured(self, cluster_of_others: tuple[str, Path]) -> None:
        address, _ = cluster_of_others
        with connect(ClusterOptions(scheduler=address)) as connection:
            assert connection.description == f"1 worker of the scheduler at {address}"
            check_connected_to(address)
        assert current_client() is None
        # it is not ours to stop
        with connect(ClusterOptions(scheduler=address)):
            check_connected_to(address)

    def test_a_scheduler_file_is_honoured(self, cluster_of_others: tuple[str, Path]) -> None:
        address, file = cluster_of_others
        with connect(ClusterOptions(scheduler_file=str(file))) as connection:
            assert str(file) in connection.description
            check_connected_to(address)
        assert current_client() is None

    def test_the_environment_is_honoured(
        self, cluster_of_others: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        address, _ = cluster_of_others
        monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", address)
        with connect(ClusterOptions()) as connection:
            assert address in connection.description
            check_connected_to(address)

    @pytest.mark.parametrize("how", ["address", "file"])
    def test_what_is_given_wins_over_the_environment(
        self,
        cluster_of_others: tuple[str, Path],
        how: str,
        deaf_port: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        address, file = cluster_of_others
        monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", f"tcp://127.0.0.1:{deaf_port}")
        options = (
            ClusterOptions(scheduler=address)
            if how == "address"
            else ClusterOptions(scheduler_file=str(file))
        )
        with connect(options):
            check_connected_to(address)


def test_threads_that_are_asked_for_win_over_the_environment(
    monkeypatch: pytest.MonkeyPatch, impatient: None, deaf_port: int
) -> None:
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", f"tcp://127.0.0.1:{deaf_port}")
    with connect(ClusterOptions(nworkers=0, nthreads=1)) as connection:
        assert connection.description == "1 thread of this process"


@dataclass
class LostClient:
    """A client whose calls fail as those to a lost scheduler do, there after a long timeout."""

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
def test_a_lost_scheduler_is_reported_without_waiting_for_timeouts(
    monkeypatch: pytest.MonkeyPatch, status: str, calls: int
) -> None:
    client = LostClient(status)
    monkeypatch.setattr("scrlm_dask.engine.workers.current_client", lambda: client)
    for ask in (process_reports, worker_memories):
        client.calls = 0
        with pytest.raises(ClusterError, match=r"was lost .* run the command again"):
            ask()
        assert client.calls == calls


@pytest.mark.parametrize(("status", "calls"), [("running", 1), ("connecting", 0), ("closed", 0)])
def test_no_event_is_sent_to_a_lost_scheduler(status: str, calls: int) -> None:
    client = LostClient(status)
    publish = make_publisher(client, "run", lambda event: None)
    assert publish is not None
    publish(Note("a note"))
    assert client.calls == calls


# --- a client of the caller's own, without workers yet -----------------------------------------


@contextmanager
def no_workers_yet() -> Iterator[LocalCluster]:
    with (
        LocalCluster(
            n_workers=0, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster),
    ):
        yield cluster


def test_no_workers_are_named_and_the_way_out() -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    words = r"the scheduler at inproc://.* has had no workers for 0\.2 s; start some"
    with dask.config.set({"scrlm.wait-workers": "0.2s"}), no_workers_yet():
        for features in (x, da.from_array(x, chunks=(20, 3))):
            with pytest.raises(ClusterError, match=words):
                fit(features, FitConfig(rho=0.5))
            with pytest.raises(ClusterError, match=words):
                kmeans(features, KMeansConfig(2))


@pytest.mark.parametrize("lazy", [False, True])
def test_an_adaptive_cluster_is_given_a_reason_to_start(lazy: bool) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    with no_workers_yet() as cluster:
        cluster.adapt(minimum=0, maximum=1, interval="50ms", wait_count=1000)
        features = da.from_array(x, chunks=(20, 3)) if lazy else x
        config = FitConfig(rho=0.5, n_clusters=2, n_candidates=40)
        found = fit(features, config, collect_labels=True)
    assert len(found.labels) == 40
