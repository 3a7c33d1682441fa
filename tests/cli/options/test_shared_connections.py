"""Clusters that nobody should use as they are, and TLS: real schedulers, workers, certificates."""

from __future__ import annotations

import itertools
import os
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dask
import pytest
from scrlm_cli.main import main

import scrlm_dask
from scrlm_dask.engine.workers import scheduler_workers
from scrlm_dask.errors import ClusterError, StoreError

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

DASK = (str(Path(sys.executable).parent / "dask"),)
CERTIFICATES = Path(__file__).parents[3] / "deploy" / "tls" / "certificates.sh"
LOOPBACK = ("--host", "127.0.0.1", "--no-dashboard")
CLUSTER_LOST, INPUT_REJECTED = 4, 3

# a scheduler that says it is of another time; all else about it is real
_ANOTHER_VERSION = """
from distributed import versions

def another(names, true=versions.get_package_info):
    return {**true(names), "distributed": "2023.5.1"}

versions.get_package_info = another
"""
# a worker in an environment where the package was forgotten
_NO_PACKAGE = """
import sys

class Forgotten:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "scrlm_dask":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Forgotten())
for name in [n for n in sys.modules if n.split(".")[0] == "scrlm_dask"]:
    del sys.modules[name]
"""


def made_certificates(folder: Path) -> dict[str, str]:
    subprocess.run([CERTIFICATES, folder, "2"], check=True)
    names = {"tls_ca_file": "ca.pem", "tls_cert": "cert.pem", "tls_key": "key.pem"}
    return {option: str(folder / name) for option, name in names.items()}


def as_arguments(options: dict[str, str]) -> tuple[str, ...]:
    return tuple(w for k, v in options.items() for w in (f"--{k.replace('_', '-')}", v))


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> dict[str, str]:
    return made_certificates(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def strangers(tmp_path_factory) -> dict[str, str]:
    return made_certificates(tmp_path_factory.mktemp("tls") / "strangers")


class Servers:
    """Schedulers and workers of Dask's own command line."""

    def __init__(self, start: Any, ready: Any, folder: Path) -> None:
        self._start, self._ready, self._folder = start, ready, folder
        self._numbers = itertools.count()

    def scheduler(self, *options: Any) -> str:
        file = self._folder / f"scheduler-{next(self._numbers)}.json"
        where = (*LOOPBACK, "--scheduler-file", file)
        running = self._start("scheduler", "--port", 0, *where, *options, program=DASK)
        return str(self._ready(running, file))

    def worker(self, address: str, *options: Any, before: tuple[str, ...] = ()) -> None:
        common = ("--nthreads", 1, "--no-nanny", "--local-directory", self._folder)
        command = ("worker", address, *LOOPBACK, *common, *options)
        self._start(*command, program=(*before, *DASK)).wait_for("Registered to")


@pytest.fixture(scope="module")
def servers(start, dask_scheduler, tmp_path_factory) -> Servers:
    return Servers(start, dask_scheduler, tmp_path_factory.mktemp("servers"))


@pytest.fixture(scope="module")
def tls_scheduler(servers: Servers, ours) -> str:
    certificates = as_arguments(ours)
    address = servers.scheduler("--protocol", "tls", *certificates)
    servers.worker(address, *certificates)
    return address


# --- TLS ---------------------------------------------------------------------------------------


def test_certificates_are_for_the_owner_only(ours) -> None:
    assert {Path(file).stat().st_mode & 0o777 for file in ours.values()} == {0o600}
    assert Path(ours["tls_key"]).parent.stat().st_mode & 0o777 == 0o700


def test_a_fit_over_tls(start, features, round_trip, results_of, tls_scheduler, ours, tmp_path):
    assert tls_scheduler.startswith("tls://")
    out = tmp_path / "run"
    where = ("--scheduler", tls_scheduler, "--require-tls", *as_arguments(ours))
    fit = ("fit", features, "--out", out, "--rho", 0.5, "--clusters", 10, "--block-rows", 1024)
    done = start(*fit, *where).outcome().ok()
    assert f"using 1 worker of the scheduler at {tls_scheduler}; 1 thread(s) and " in done.stderr
    assert results_of(out) == results_of(round_trip.run)


def test_the_scheduler_hangs_up_on_a_client_without_a_certificate(tls_scheduler, ours) -> None:
    """Asked of the socket itself, by one who knows the authority but has no certificate."""
    context = ssl.create_default_context(cafile=ours["tls_ca_file"])
    context.check_hostname = False
    port = int(tls_scheduler.rsplit(":", 1)[1])
    with (
        pytest.raises((ssl.SSLError, ConnectionError)),
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain) as connection,
    ):
        assert connection.recv(1) != b""  # TLS 1.3 rejects with the first byte


def test_a_command_without_a_certificate(start, features, tls_scheduler):
    done = start("inspect", features, "--verify", "--scheduler", tls_scheduler).outcome()
    done.rejected("without a certificate", "--tls-ca-file", code=CLUSTER_LOST)


def test_a_command_with_a_certificate_of_strangers(start, features, tls_scheduler, strangers, ours):
    mixed = {**strangers, "tls_ca_file": ours["tls_ca_file"]}  # it trusts them, not they it
    where = ("--scheduler", tls_scheduler, *as_arguments(mixed))
    done = start("inspect", features, "--verify", *where).outcome()
    done.rejected(tls_scheduler, "trusts the certificates", code=CLUSTER_LOST)


def test_a_command_that_forgot_the_tls_of_the_address(invoke, features, tls_scheduler, monkeypatch):
    """In this process, where it does not try for as long as it does in one of its own."""
    monkeypatch.setattr("scrlm_dask.clusters.remote._CONNECT_TIMEOUT", 1)
    plain = tls_scheduler.replace("tls://", "tcp://")
    done = invoke("inspect", features, "--verify", "--scheduler", plain, threads=False)
    done.rejected(plain, "begin with tls://", code=CLUSTER_LOST)


def test_a_local_cluster_talks_tls_if_told(ours) -> None:
    from distributed import default_client

    with scrlm_dask.connect(nworkers=1, nthreads=1, memory_limit="1GB", **ours):
        client = default_client()
        assert client.scheduler.address.startswith("tls://127.0.0.1:")
        assert [a[:6] for a in scheduler_workers(client)] == ["tls://"]
        assert client.submit(sum, [1, 2]).result(timeout=20) == 3


def test_certificates_that_are_none(invoke, features, ours, tmp_path) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("not a certificate")
    inspect = ("inspect", features, "--verify", "--scheduler", "tls://127.0.0.1:9")
    for option, file in (("tls_cert", junk), ("tls_key", tmp_path / "missing.pem")):
        given = as_arguments({**ours, option: str(file)})
        invoke(*inspect, *given, threads=False).rejected(str(file), "--tls", code=INPUT_REJECTED)


def test_every_command_that_needs_a_cluster_takes_them_all() -> None:
    names = {"tls_ca_file", "tls_cert", "tls_key", "require_tls", "cluster", "cluster_config"}
    taken = {name: {p.name for p in command.params} for name, command in main.commands.items()}
    connecting = {name for name, parameters in taken.items() if "scheduler" in parameters}
    assert connecting >= {"synth", "ingest", "inspect", "plan", "fit", "kmeans", "predict"}
    assert [name for name in connecting if not names <= taken[name]] == []


def test_a_scheduler_without_tls_elsewhere_is_refused_before_it_is_called(
    invoke, features, monkeypatch
):
    where = ("--scheduler", "tcp://192.0.2.1:8786", "--require-tls")
    # the way to that address is long; nobody is called, so nobody is waited for
    monkeypatch.setattr("scrlm_dask.clusters.remote.check_scheduler", pytest.fail)
    done = invoke("inspect", features, "--verify", *where, threads=False)
    done.rejected("tcp://192.0.2.1:8786 talks without TLS", "--tls-cert", code=CLUSTER_LOST)


FEATURES = ("plan", "rho", "fit", "kmeans", "inspect")
RUNS = ("evaluate", "verify", "predict")


@pytest.mark.parametrize("command", [*FEATURES, *RUNS])
def test_input_is_looked_at_before_a_cluster_is_waited_for(invoke, features, tmp_path, command):
    missing, out = tmp_path / "missing", ("--out", tmp_path / "out")
    rest = {
        "fit": out,
        "kmeans": ("--clusters", 2, *out),
        "predict": (features, *out),
        "inspect": ("--verify",),
    }.get(command, ())
    nobody = ("--scheduler", "nonsense")
    done = invoke(command, missing, *rest, *nobody, threads=False)
    done.rejected(str(missing), code=INPUT_REJECTED)


def test_settings_are_looked_at_before_a_cluster_is_waited_for(invoke, features) -> None:
    for command in ("plan", "rho"):
        done = invoke(command, features, "--F", -1, "--scheduler", "nonsense", threads=False)
        done.rejected("F is -1", code=INPUT_REJECTED)


# --- clusters that cannot do the work ----------------------------------------------------------


def test_a_scheduler_of_another_major_version(start, features, servers, tmp_path):
    (tmp_path / "another.py").write_text(_ANOTHER_VERSION)
    address = servers.scheduler("--preload", tmp_path / "another.py")
    done = start("inspect", features, "--verify", "--scheduler", address).outcome()
    ours = scrlm_dask.clusters.remote.version("distributed")
    done.rejected(address, "distributed 2023.5.1", f"distributed {ours}", code=CLUSTER_LOST)


def test_workers_that_lack_the_package(start, features, servers, tmp_path):
    (tmp_path / "forgotten.py").write_text(_NO_PACKAGE)
    address = servers.scheduler()
    servers.worker(address, "--preload", tmp_path / "forgotten.py")
    done = start("inspect", features, "--verify", "--scheduler", address).outcome()
    lacking = ("1 of 1 worker (tcp://127.0.0.1:", "No module named 'scrlm_dask'", "install it")
    done.rejected(*lacking, code=CLUSTER_LOST)


@pytest.fixture(scope="module")
def hidden(tmp_path_factory) -> Path:
    """A folder that a worker will not see."""
    return tmp_path_factory.mktemp("hidden")


@pytest.fixture(scope="module")
def half_blind(servers: Servers, hidden: Path) -> str:
    """Two workers, one of which has nothing mounted at the folder."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"]).returncode:
        pytest.skip("a worker without a mount needs root and a mount namespace")
    address = servers.scheduler()
    servers.worker(address)
    mount = 'mount -t tmpfs none "$0" && exec "$@"'
    servers.worker(address, before=("unshare", "--mount", "sh", "-c", mount, str(hidden)))
    return address


def test_workers_that_lack_the_features(start, features, half_blind, hidden, tmp_path):
    here = hidden / "features.zarr"
    here.symlink_to(features)
    out = tmp_path / "run"
    fit = ("fit", here, "--out", out, "--clusters", 10, "--scheduler", half_blind)
    done = start(*fit).outcome()
    done.rejected("1 of 2 worker(s)", f"do not see {here}", "mount", code=CLUSTER_LOST)
    assert not out.exists()


def test_workers_that_lack_the_output(start, features, half_blind, hidden):
    out = hidden / "run"
    fit = ("fit", features, "--out", out, "--clusters", 10, "--scheduler", half_blind)
    done = start(*fit).outcome()
    done.rejected("1 of 2 worker(s)", f"do not see {out}", code=CLUSTER_LOST)
    # the run may go on with other workers, and nobody takes it for a result
    with pytest.raises(StoreError, match="not complete"):
        scrlm_dask.load_model(out)


# --- in Python ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lonely_scheduler(servers: Servers) -> str:
    return servers.scheduler()


def test_workers_are_waited_for_as_long_as_told(lonely_scheduler) -> None:
    with (
        dask.config.set({"scrlm.wait-workers": "300ms"}),
        pytest.raises(ClusterError, match=r"no workers for 0 s; start some with `dask worker`"),
        scrlm_dask.connect(scheduler=lonely_scheduler),
    ):
        pass


def test_as_many_workers_as_there_is_work_for() -> None:
    from distributed import default_client

    size = {"nthreads": 1, "memory_limit": "1GB"}
    with scrlm_dask.connect(min_workers=1, max_workers=2, **size) as connection:
        assert connection.description == "a local cluster of 1 to 2 workers with 1 thread each"
        client = default_client()
        assert len(client.nthreads()) == 1
        work = client.map(time.sleep, [0.2] * 100, pure=False)
        client.wait_for_workers(2, timeout=60)
        client.cancel(work)
