"""Threads of this process, and local clusters."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
import pytest
from distributed import default_client

import scrlm_dask
from scrlm_dask.clusters.connect import connect
from scrlm_dask.clusters.local import (
    LocalWorkers,
    available_cores,
    check_memory_limit,
    free_dashboard_port,
    local_workers,
)
from scrlm_dask.clusters.options import ClusterOptions, Connection
from scrlm_dask.engine.threads import process_report
from scrlm_dask.engine.workers import current_client, scheduler_workers
from scrlm_dask.errors import InputError


def test_zero_workers_use_threads_without_client() -> None:
    with connect(ClusterOptions(nworkers=0, nthreads=3)) as connection:
        assert re.search(r"\b3 threads\b", connection.description)
        assert connection == Connection(connection.description, None)
        assert current_client() is None
        assert dask.config.get("scheduler") == "threads"
        assert dask.config.get("num_workers") == 3
        names = dask.compute(*[dask.delayed(_thread_name)(i) for i in range(3)])
        assert "MainThread" not in names
    assert dask.config.get("scheduler", None) is None
    assert dask.config.get("num_workers", None) is None


def _thread_name(i: int) -> str:
    return threading.current_thread().name


def test_default_number_of_threads() -> None:
    with connect(ClusterOptions(nworkers=0)) as connection:
        assert re.search(rf"\b{available_cores()} thread", connection.description)
        assert dask.config.get("num_workers") == available_cores()


def test_cpu_affinity_limits_the_cores() -> None:
    allowed = os.sched_getaffinity(0)
    assert available_cores() == len(allowed)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


def listeners() -> set[tuple[str, int]]:
    """Return each (address, port) on which this process and its children listen."""
    me = psutil.Process()
    found = set()
    for process in (me, *me.children(recursive=True)):
        for connection in process.net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                found.add((connection.laddr.ip, connection.laddr.port))
    return found


@contextmanager
def dashboard_port_taken() -> Iterator[int]:
    """Occupy the port of the dashboard, as another user of a shared machine may do."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with dask.config.set({"scrlm.dashboard-port": port}):
            yield port


@pytest.fixture(scope="class")
def local() -> Iterator[Local]:
    """Start one worker with two threads.

    Return the connection, its client, new listening sockets and the port taken from the dashboard.
    """
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
        # the environment of the user must not override our settings
        patch.setenv("OMP_NUM_THREADS", "7")
        patch.delenv("NUMBA_NUM_THREADS", raising=False)
        taken = stack.enter_context(dashboard_port_taken())
        before = listeners()
        options = ClusterOptions(nworkers=1, nthreads=2, memory_limit="3GB")
        connection = stack.enter_context(connect(options))
        yield connection, default_client(), listeners() - before, taken


Local = tuple[Connection, Any, set[tuple[str, int]], int]


def _environment() -> dict[str, str | None]:
    names = ("OMP", "OPENBLAS", "MKL", "BLIS")
    return {f"{name}_NUM_THREADS": os.environ.get(f"{name}_NUM_THREADS") for name in names}


def _pools() -> list[int]:
    import numpy  # noqa: F401
    from threadpoolctl import threadpool_info

    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


@pytest.mark.parametrize("port", ["web", -1, 70_000])
def test_invalid_dashboard_port_is_rejected(port: object) -> None:
    with (
        dask.config.set({"scrlm.dashboard-port": port}),
        pytest.raises(InputError, match=rf"(?=.*scrlm\.dashboard-port)(?=.*{port})(?=.*8787)"),
        connect(ClusterOptions(nworkers=1)),
    ):
        pass


@pytest.mark.cluster
class TestLocalCluster:
    def test_local_cluster_has_the_requested_size(self, local: Local) -> None:
        connection, client, *_ = local
        assert re.search(r"\b1 worker\b.*\b2 threads\b", connection.description)
        assert current_client() is client
        (worker,) = scheduler_workers(client).values()
        assert worker["nthreads"] == 3  # one of them prefetches
        assert worker["memory_limit"] == 3 * 10**9
        (pid,) = client.run(os.getpid).values()
        assert pid != os.getpid()

    def test_local_cluster_listens_only_on_loopback(self, local: Local) -> None:
        connection, client, listening, _ = local
        assert client.scheduler.address.startswith("tcp://127.0.0.1:")
        assert connection.dashboard is not None
        assert connection.dashboard.startswith("http://127.0.0.1:")
        # at least scheduler, dashboard, nanny and worker
        assert len(listening) >= 4
        assert {ip for ip, _ in listening} == {"127.0.0.1"}

    def test_dashboard_uses_another_port_if_its_port_is_taken(self, local: Local) -> None:
        connection, _, listening, taken = local
        assert connection.dashboard is not None
        port = int(connection.dashboard.split(":")[2].split("/")[0])
        assert port != taken
        assert ("127.0.0.1", port) in listening

    def test_libraries_of_workers_use_one_thread_per_task(self, local: Local) -> None:
        _, client, *_ = local
        (environment,) = client.run(_environment).values()
        names = ("OMP", "OPENBLAS", "MKL", "BLIS")
        assert environment == {f"{name}_NUM_THREADS": "1" for name in names}
        (report,) = client.run(process_report).values()
        assert set(report["threads"].values()) == {1}
        # BLAS is limited even before threads are pinned
        (pools,) = client.run(_pools).values()
        assert pools
        assert set(pools) == {1}


@pytest.mark.cluster
@pytest.mark.parametrize("limit", ["lots", "4 apples"])
def test_invalid_memory_limit(limit: str) -> None:
    with (
        pytest.raises(InputError, match=f"(?=.*'{limit}')(?=.*4GB)"),
        connect(ClusterOptions(nworkers=1, memory_limit=limit)),
    ):
        pass


@pytest.mark.slow
def test_worker_with_little_memory_does_not_prefetch_and_does_not_pause() -> None:
    with connect(ClusterOptions(nworkers=1, nthreads=1, memory_limit="1GB")):
        client = current_client()
        assert client is not None
        assert list(client.nthreads().values()) == [1]
        (pause,) = client.run(_pause_share).values()
        assert pause is False


def _pause_share(dask_worker: Any) -> Any:
    return dask_worker.memory_manager.memory_pause_fraction


def test_size_of_a_local_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scrlm_dask.clusters.local.available_cores", lambda: 6)
    options = ClusterOptions(nthreads=2, memory_limit="3GB")
    assert local_workers(options) == LocalWorkers(3, 2, 1, 3 * 10**9)
    # less than 1.5 GB per thread: no prefetched blocks
    assert local_workers(replace(options, memory_limit="2.9GB")).ahead == 0
    assert local_workers(replace(options, nworkers=5)).nworkers == 5
    assert local_workers(replace(options, max_workers=4)).nworkers == 4
    threads = local_workers(ClusterOptions(nworkers=0))
    assert (threads.nworkers, threads.nthreads, threads.ahead) == (0, 6, 0)
    assert local_workers(ClusterOptions(scheduler="tcp://192.0.2.1:1")) is None
    assert local_workers(ClusterOptions(cluster="slurm")) is None
    for cores, expected in ((6, (6, 1)), (8, (8, 1)), (16, (4, 4))):
        monkeypatch.setattr("scrlm_dask.clusters.local.available_cores", lambda n=cores: n)
        found = local_workers(ClusterOptions())
        assert (found.nworkers, found.nthreads) == expected


def test_memory_limits() -> None:
    assert check_memory_limit(None) is None
    assert check_memory_limit("2GB") == 2 * 10**9
    assert check_memory_limit("1GiB") == 2**30
    with pytest.raises(InputError, match=r"(?=.*400MB)(?=.*450MB)"):
        check_memory_limit("400MB")


def test_default_port_unless_it_is_taken() -> None:
    with dashboard_port_taken():
        assert free_dashboard_port() == 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with dask.config.set({"scrlm.dashboard-port": port}):
        assert free_dashboard_port() == port


@pytest.mark.slow
def test_read_only_shared_memory_is_reported(tmp_path: Path) -> None:
    """Python's locks between processes need /dev/shm; containers may mount it read-only."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(50, 4)))
    scrlm_dask.ingest(tmp_path / "x.npy", tmp_path / "x.zarr")
    mount = "mount -t tmpfs -o ro none /dev/shm"
    private = ["unshare", "-m", "sh", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*private, mount]).returncode:
        pytest.skip("mounting in a private namespace is not permitted")
    scrlm = Path(sys.executable).with_name("scrlm")
    command = f"{scrlm} fit {tmp_path}/x.zarr --out {tmp_path}/run --rho 1"
    done = subprocess.run(
        [*private, f"{mount} && {command} --nworkers 2"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 4
    assert "/dev/shm" in done.stderr
    assert "Traceback" not in done.stderr
