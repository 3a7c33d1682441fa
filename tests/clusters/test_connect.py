"""Getting a cluster: real schedulers, real workers, and what is said when there is none."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster, default_client

from scrlm_dask.clusters import remote as remote_module
from scrlm_dask.clusters.connect import connect
from scrlm_dask.clusters.local import available_cores
from scrlm_dask.clusters.options import ClusterOptions, Connection
from scrlm_dask.config import FitConfig, KMeansConfig
from scrlm_dask.engine.threads import process_report
from scrlm_dask.engine.workers import current_client, process_reports
from scrlm_dask.errors import ClusterError, InputError
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.kmeans import kmeans


@pytest.fixture(autouse=True)
def no_address_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_module, "_CONNECT_TIMEOUT", 0.5)


@cache
def _bound() -> socket.socket:
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    return bound


def deaf_port() -> int:
    """Where nobody listens, and nobody else can begin to: it is taken as long as tests run."""
    port: int = _bound().getsockname()[1]
    return port


# --- threads of this process -------------------------------------------------------------------


def test_no_workers_means_threads_and_no_client() -> None:
    with connect(ClusterOptions(nworkers=0, nthreads=3)) as connection:
        assert connection == Connection("3 threads of this process", None)
        assert current_client() is None
        assert dask.config.get("scheduler") == "threads"
        assert dask.config.get("num_workers") == 3
        names = dask.compute(*[dask.delayed(_thread_name)(i) for i in range(3)])
        assert "MainThread" not in names
    assert dask.config.get("scheduler", None) is None
    assert dask.config.get("num_workers", None) is None


def _thread_name(i: int) -> str:
    return threading.current_thread().name


def test_as_many_threads_as_cores_unless_told() -> None:
    with connect(ClusterOptions(nworkers=0)) as connection:
        assert connection.description == f"{available_cores()} threads of this process"
        assert dask.config.get("num_workers") == available_cores()


def test_little_work_starts_no_workers_that_nobody_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    assert ClusterOptions().for_little_work() == ClusterOptions(nworkers=0)
    for asked in (
        ClusterOptions(nworkers=2),
        ClusterOptions(nthreads=1),
        ClusterOptions(memory_limit="2GB"),
        ClusterOptions(cluster="local"),
        ClusterOptions(cluster="slurm"),
        ClusterOptions(scheduler="tcp://127.0.0.1:1"),
        ClusterOptions(scheduler_file="file.json"),
    ):
        assert asked.for_little_work() == asked
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tcp://127.0.0.1:1")
    assert ClusterOptions().for_little_work() == ClusterOptions()


def test_the_cores_are_those_this_process_may_use() -> None:
    allowed = os.sched_getaffinity(0)
    assert available_cores() == len(allowed)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)


# --- a local cluster ---------------------------------------------------------------------------


def listeners() -> set[tuple[str, int]]:
    """(address, port) on which this process and its children listen."""
    me = psutil.Process()
    found = set()
    for process in (me, *me.children(recursive=True)):
        for connection in process.net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                found.add((connection.laddr.ip, connection.laddr.port))
    return found


@contextmanager
def dashboard_port_taken() -> Iterator[int]:
    """Somebody else is on the port that the dashboard would have, as on any shared machine."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with dask.config.set({"scrlm.dashboard-port": port}):
            yield port


@pytest.fixture(scope="class")
def local() -> Iterator[Local]:
    """One worker of two threads: the connection, its client, what listens because of it, and the
    port that the dashboard could not have.
    """
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
        # a user's environment must not win
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
def test_a_port_that_is_none_is_refused(port: object) -> None:
    with (
        dask.config.set({"scrlm.dashboard-port": port}),
        pytest.raises(InputError, match=r"scrlm\.dashboard-port is .*; give a port such as 8787"),
        connect(ClusterOptions(nworkers=1)),
    ):
        pass


@pytest.mark.cluster
class TestLocalCluster:
    def test_a_local_cluster_has_what_was_asked_for(self, local: Local) -> None:
        connection, client, *_ = local
        assert connection.description == "a local cluster of 1 worker with 2 threads each"
        assert current_client() is client
        (worker,) = client.scheduler_info(n_workers=-1)["workers"].values()
        assert worker["nthreads"] == 3  # one reads ahead
        assert worker["memory_limit"] == 3 * 10**9
        (pid,) = client.run(os.getpid).values()
        assert pid != os.getpid()

    def test_nothing_of_a_local_cluster_can_be_reached_from_outside(self, local: Local) -> None:
        connection, client, listening, _ = local
        assert client.scheduler.address.startswith("tcp://127.0.0.1:")
        assert connection.dashboard is not None
        assert connection.dashboard.startswith("http://127.0.0.1:")
        # scheduler, dashboard, nanny and worker at the least, and what else there is
        assert len(listening) >= 4
        assert {ip for ip, _ in listening} == {"127.0.0.1"}

    def test_the_dashboard_moves_when_its_port_is_taken(self, local: Local) -> None:
        connection, _, listening, taken = local
        assert connection.dashboard is not None
        port = int(connection.dashboard.split(":")[2].split("/")[0])
        assert port != taken
        assert ("127.0.0.1", port) in listening

    def test_workers_have_one_thread_a_task_whatever_the_environment_says(
        self, local: Local
    ) -> None:
        _, client, *_ = local
        (environment,) = client.run(_environment).values()
        names = ("OMP", "OPENBLAS", "MKL", "BLIS")
        assert environment == {f"{name}_NUM_THREADS": "1" for name in names}
        (report,) = client.run(process_report).values()
        assert set(report["threads"].values()) == {1}
        # BLAS also before anything is pinned
        (pools,) = client.run(_pools).values()
        assert pools
        assert set(pools) == {1}


@pytest.mark.cluster
@pytest.mark.parametrize("limit", ["lots", "4 apples"])
def test_a_memory_limit_that_is_no_size(limit: str) -> None:
    with (
        pytest.raises(
            InputError, match=rf"memory limit .{limit}. is not a size; write it like 4GB"
        ),
        connect(ClusterOptions(nworkers=1, memory_limit=limit)),
    ):
        pass


# --- a cluster that runs already ---------------------------------------------------------------


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
        self, cluster_of_others: tuple[str, Path], how: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        address, file = cluster_of_others
        monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", f"tcp://127.0.0.1:{deaf_port()}")
        options = (
            ClusterOptions(scheduler=address)
            if how == "address"
            else ClusterOptions(scheduler_file=str(file))
        )
        with connect(options):
            check_connected_to(address)


def test_threads_that_are_asked_for_win_over_the_environment(
    monkeypatch: pytest.MonkeyPatch, impatient: None
) -> None:
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", f"tcp://127.0.0.1:{deaf_port()}")
    with connect(ClusterOptions(nworkers=0, nthreads=1)) as connection:
        assert connection.description == "1 thread of this process"


# --- nobody there ------------------------------------------------------------------------------


def refusal(options: ClusterOptions) -> str:
    with pytest.raises(ClusterError) as caught, connect(options):
        pass
    assert current_client() is None
    assert dask.config.get("scheduler", None) is None
    return str(caught.value)


def test_an_address_where_nobody_listens(impatient: None) -> None:
    address = f"tcp://127.0.0.1:{deaf_port()}"
    begin = time.monotonic()
    message = refusal(ClusterOptions(scheduler=address))
    assert time.monotonic() - begin < 10
    assert f"no Dask scheduler answers at {address}" in message
    assert "check the address, or leave it out for a local cluster" in message


def test_an_address_where_nobody_says_anything(impatient: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        message = refusal(ClusterOptions(scheduler=address))
    assert re.match(rf"no Dask scheduler answers at {address} \(\w.*\); something", message)


def test_an_address_in_the_environment_where_nobody_listens(
    monkeypatch: pytest.MonkeyPatch, impatient: None
) -> None:
    address = f"tcp://127.0.0.1:{deaf_port()}"
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", address)
    assert f"no Dask scheduler answers at {address}" in refusal(ClusterOptions())


def test_the_file_of_a_scheduler_that_is_gone(tmp_path: Path, impatient: None) -> None:
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"address": f"tcp://127.0.0.1:{deaf_port()}"}))
    assert str(file) in refusal(ClusterOptions(scheduler_file=str(file)))


def test_a_file_that_a_scheduler_is_about_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where both are started by one script: there is none, then a part of it, then all."""
    file, waited = tmp_path / "scheduler.json", []
    contents = iter(["", '{"address": "tcp', '{"address": "tcp://127.0.0.1:8786"}'])

    def write_on(seconds: float) -> None:
        waited.append(seconds)
        file.write_text(next(contents))

    monkeypatch.setattr("scrlm_dask.clusters.remote.time.sleep", write_on)
    assert remote_module.read_address(str(file)) == "tcp://127.0.0.1:8786"
    assert len(waited) == 3


@pytest.mark.parametrize("content", [None, '{"address": "tcp'])
def test_a_file_that_nobody_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    monkeypatch.setattr(remote_module, "_FILE_SECONDS", 0.2)
    file = tmp_path / "scheduler.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ClusterError, match=r"scheduler\.json .*start one with `dask scheduler"):
        remote_module.read_address(str(file))


def test_a_file_of_something_else_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scrlm_dask.clusters.remote.time.sleep", pytest.fail)
    (tmp_path / "other.json").write_text('{"colour": "red"}')
    for file in (tmp_path / "other.json", tmp_path):
        with pytest.raises(ClusterError, match="no scheduler's address"):
            remote_module.read_address(str(file))


# What follows runs in processes of its own: a client that did not start may stay the current one,
# for which every later computation waits in vain.

_TRY = """
import json, os, sys
import scrlm_dask
from scrlm_dask.clusters import remote
from scrlm_dask.engine.workers import current_client

remote._CONNECT_TIMEOUT = remote._FILE_SECONDS = 0.5
kept, seen = [], {}
for name, (environment, options) in json.loads(sys.argv[1]).items():
    os.environ.update(environment)
    before = current_client()
    try:
        with scrlm_dask.connect(scrlm_dask.ClusterOptions(**options)) as connection:
            seen[name] = {"error": None, "text": connection.description}
    except Exception as error:
        kept.append(error)  # as a notebook keeps the last one
        seen[name] = {"error": type(error).__name__, "text": str(error)}
    seen[name]["left behind"] = current_client() is not before
    for key in environment:
        del os.environ[key]
print(json.dumps(seen))
sys.stdout.flush()
os._exit(0)  # whatever was left behind
"""


def attempts(*, timeout: float, **what: tuple[dict[str, str], dict[str, Any]]) -> Any:
    """What comes of each (environment, options), tried in one fresh interpreter."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _TRY, json.dumps(what)],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.fail(f"still waiting after {timeout} s")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="class")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("files")
    (folder / "empty.json").write_text("{}")
    (folder / "text.json").write_text("not JSON")
    return attempts(
        timeout=120,
        word=({}, {"scheduler": "nonsense"}),
        scheme=({}, {"scheduler": "foo://bar:1"}),
        tls=({}, {"scheduler": f"tls://127.0.0.1:{deaf_port()}"}),
        empty_file=({}, {"scheduler_file": str(folder / "empty.json")}),
        text_file=({}, {"scheduler_file": str(folder / "text.json")}),
        empty_variable=({"DASK_SCHEDULER_ADDRESS": ""}, {"nworkers": 0, "nthreads": 1}),
    )


@pytest.mark.cluster
class TestWhatIsNoScheduler:
    @pytest.mark.parametrize(
        ("name", "where"),
        [
            ("word", "nonsense"),
            ("scheme", "foo://bar:1"),
            ("tls", "tls://127.0.0.1"),  # without certificates
            ("empty_file", "empty.json"),
            ("text_file", "text.json"),
        ],
    )
    def test_it_is_refused_in_words(self, seen: Any, name: str, where: str) -> None:
        assert seen[name]["error"] == "ClusterError", seen[name]
        assert where in seen[name]["text"]

    def test_no_client_is_left_behind(self, seen: Any) -> None:
        assert [name for name, found in seen.items() if found["left behind"]] == []

    def test_an_empty_variable_is_no_address(self, seen: Any) -> None:
        assert seen["empty_variable"]["text"] == "1 thread of this process"

    def test_a_file_that_never_comes_is_not_waited_for_for_ever(self, tmp_path: Path) -> None:
        file = str(tmp_path / "scheduler.json")
        seen = attempts(timeout=60, missing=({}, {"scheduler_file": file}))
        assert seen["missing"]["error"] == "ClusterError"
        assert file in seen["missing"]["text"]


@pytest.mark.slow
@pytest.mark.cluster
def test_the_environment_of_the_client_is_as_before() -> None:
    before = dict(os.environ)
    with connect(ClusterOptions(nworkers=1, nthreads=1, memory_limit="1GB")):
        pass
    assert {k: v for k, v in os.environ.items() if "THREADS" in k or "MALLOC" in k} == {
        k: v for k, v in before.items() if "THREADS" in k or "MALLOC" in k
    }


@pytest.mark.slow
@pytest.mark.cluster
def test_workers_compile_kernels_also_when_the_main_module_has_imported_numba(
    tmp_path: Path,
) -> None:
    # spawned workers import the main module of a script, and Numba with it, before Dask sets their
    # environment; and on a new machine no kernel is compiled yet
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "no-kernels-yet")}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "{1}"


_SCRIPT = """
import numpy as np
from scrlm_dask import SCRLM, ClusterOptions, connect

if __name__ == "__main__":
    with connect(ClusterOptions(nworkers=1, nthreads=1, memory_limit="1GB")):
        x = np.random.default_rng(0).normal(size=(100, 4)).astype("float32")
        x[-1] = 100
        model = SCRLM(rho=1.0, preprocess="none").fit(x)
        threads = {n for w in model.record_["workers"].values() for n in w["threads"].values()}
        print(threads)
"""


@pytest.mark.slow
def test_a_worker_with_little_memory_does_not_read_ahead_and_none_ever_pauses() -> None:
    with connect(ClusterOptions(nworkers=1, nthreads=1, memory_limit="1GB")):
        client = current_client()
        assert client is not None
        assert list(client.nthreads().values()) == [1]
        (pause,) = client.run(_pause_share).values()
        assert pause is False


def _pause_share(dask_worker: Any) -> Any:
    return dask_worker.memory_manager.memory_pause_fraction


def test_a_scheduler_that_is_lost_between_two_phases_is_told_as_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gone:
        def run(self, *args: object, **kwargs: object) -> None:
            raise OSError("Timed out trying to connect")

    monkeypatch.setattr("scrlm_dask.engine.workers.current_client", Gone)
    with pytest.raises(ClusterError, match=r"was lost .* run the command again"):
        process_reports()


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
