"""Unsuitable clusters and TLS, with real schedulers, workers and certificates."""

from __future__ import annotations

import itertools
import os
import re
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
from scrlm_dask.storage.model_store import load_model

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

DASK = (str(Path(sys.executable).parent / "dask"),)
CERTIFICATES = Path(__file__).parents[3] / "deploy" / "tls" / "certificates.sh"
LOOPBACK = ("--host", "127.0.0.1", "--no-dashboard")
CLUSTER_LOST, INPUT_REJECTED = 4, 3

# A real scheduler that reports another version of distributed.
_ANOTHER_VERSION = """
from distributed import versions

def another(names, true=versions.get_package_info):
    return {**true(names), "distributed": "2023.5.1"}

versions.get_package_info = another
"""
# A worker in an environment without the package.
_NO_PACKAGE = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "scrlm_dask":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
for name in [n for n in sys.modules if n.split(".")[0] == "scrlm_dask"]:
    del sys.modules[name]
"""


def make_certificates(folder: Path) -> dict[str, str]:
    subprocess.run([CERTIFICATES, folder, "2"], check=True)
    names = {"tls_ca_file": "ca.pem", "tls_cert": "cert.pem", "tls_key": "key.pem"}
    return {option: str(folder / name) for option, name in names.items()}


def as_arguments(options: dict[str, str]) -> tuple[str, ...]:
    return tuple(w for k, v in options.items() for w in (f"--{k.replace('_', '-')}", v))


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> dict[str, str]:
    return make_certificates(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def untrusted(tmp_path_factory) -> dict[str, str]:
    return make_certificates(tmp_path_factory.mktemp("tls") / "untrusted")


class Servers:
    """Schedulers and workers that are started by the command line of Dask."""

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


def test_only_the_owner_can_read_certificates(ours) -> None:
    assert {Path(file).stat().st_mode & 0o777 for file in ours.values()} == {0o600}
    assert Path(ours["tls_key"]).parent.stat().st_mode & 0o777 == 0o700


def test_fit_over_tls(start, features, round_trip, results_of, tls_scheduler, ours, tmp_path):
    assert tls_scheduler.startswith("tls://")
    out = tmp_path / "run"
    where = ("--scheduler", tls_scheduler, "--require-tls", *as_arguments(ours))
    fit = ("fit", features, "--out", out, "--rho", 0.5, "--clusters", 10, "--block-rows", 1024)
    done = start(*fit, *where).outcome().ok()
    first = done.stderr.splitlines()[0]
    assert all(fact in first for fact in ("1 worker", tls_scheduler, "1 thread"))
    assert results_of(out) == results_of(round_trip.run)


def test_scheduler_disconnects_a_client_without_a_certificate(tls_scheduler, ours) -> None:
    """The client is a plain socket that trusts the authority but has no certificate."""
    context = ssl.create_default_context(cafile=ours["tls_ca_file"])
    context.check_hostname = False
    port = int(tls_scheduler.rsplit(":", 1)[1])
    with (
        pytest.raises((ssl.SSLError, ConnectionError)),
        socket.create_connection(("127.0.0.1", port), timeout=60) as plain,
        context.wrap_socket(plain) as connection,
    ):
        assert connection.recv(1) != b""  # TLS 1.3 rejects the client at the first read


def test_command_without_a_certificate(start, features, tls_scheduler):
    done = start("inspect", features, "--verify", "--scheduler", tls_scheduler).outcome()
    facts = (tls_scheduler, "--tls-ca-file", "--tls-cert", "--tls-key")
    message = done.rejected(*facts, code=CLUSTER_LOST)
    assert "Error: " not in message.removeprefix("Error: ")  # no connection was tried


def test_command_with_an_untrusted_certificate(start, features, tls_scheduler, untrusted, ours):
    # The command trusts the scheduler, but the scheduler does not trust the command.
    mixed = {**untrusted, "tls_ca_file": ours["tls_ca_file"]}
    where = ("--scheduler", tls_scheduler, *as_arguments(mixed))
    done = start("inspect", features, "--verify", *where).outcome()
    done.rejected(tls_scheduler, "--tls-ca-file", "--tls-cert", "--tls-key", code=CLUSTER_LOST)


def test_address_without_the_tls_protocol(invoke, features, tls_scheduler, monkeypatch):
    """The command runs in this process, where the timeout can be shortened."""
    monkeypatch.setattr("scrlm_dask.clusters.remote._CONNECT_TIMEOUT", 1)
    plain = tls_scheduler.replace("tls://", "tcp://")
    done = invoke("inspect", features, "--verify", "--scheduler", plain, threads=False)
    assert "tls://" in done.rejected(plain, code=CLUSTER_LOST)


def test_local_cluster_with_tls(ours) -> None:
    from distributed import default_client

    with scrlm_dask.connect(nworkers=1, nthreads=1, memory_limit="1GB", **ours):
        client = default_client()
        assert client.scheduler.address.startswith("tls://127.0.0.1:")
        assert [a[:6] for a in scheduler_workers(client)] == ["tls://"]
        assert client.submit(sum, [1, 2]).result(timeout=60) == 3


def test_invalid_certificates(invoke, features, ours, tmp_path) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("not a certificate")
    inspect = ("inspect", features, "--verify", "--scheduler", "tls://127.0.0.1:9")
    for option, file in (("tls_cert", junk), ("tls_key", tmp_path / "missing.pem")):
        given = as_arguments({**ours, option: str(file)})
        invoke(*inspect, *given, threads=False).rejected(str(file), "--tls", code=INPUT_REJECTED)


def test_every_command_that_connects_has_all_cluster_options() -> None:
    names = {"tls_ca_file", "tls_cert", "tls_key", "require_tls", "cluster", "cluster_config"}
    taken = {name: {p.name for p in command.params} for name, command in main.commands.items()}
    connecting = {name for name, parameters in taken.items() if "scheduler" in parameters}
    assert connecting >= {"synth", "ingest", "inspect", "plan", "fit", "kmeans", "predict"}
    assert [name for name in connecting if not names <= taken[name]] == []


def test_remote_scheduler_without_tls_is_rejected_before_connecting(invoke, features, monkeypatch):
    where = ("--scheduler", "tcp://192.0.2.1:8786", "--require-tls")
    # The command must not try to connect: that address does not answer.
    monkeypatch.setattr("scrlm_dask.clusters.remote.check_scheduler", pytest.fail)
    done = invoke("inspect", features, "--verify", *where, threads=False)
    done.rejected("tcp://192.0.2.1:8786", "--tls-cert", "--require-tls", code=CLUSTER_LOST)


FEATURES = ("plan", "rho", "fit", "kmeans", "inspect")
RUNS = ("evaluate", "verify", "predict")


@pytest.mark.parametrize("command", [*FEATURES, *RUNS])
def test_input_is_checked_before_connecting(invoke, features, tmp_path, command):
    missing, out = tmp_path / "missing", ("--out", tmp_path / "out")
    rest = {
        "fit": out,
        "kmeans": ("--clusters", 2, *out),
        "predict": (features, *out),
        "inspect": ("--verify",),
    }.get(command, ())
    done = invoke(command, missing, *rest, "--scheduler", "nonsense", threads=False)
    done.rejected(str(missing), code=INPUT_REJECTED)


def test_settings_are_checked_before_connecting(invoke, features) -> None:
    for command in ("plan", "rho"):
        done = invoke(command, features, "--F", -1, "--scheduler", "nonsense", threads=False)
        done.rejected("F", "-1.0", code=INPUT_REJECTED)


# --- unsuitable clusters -----------------------------------------------------------------------


def test_scheduler_of_another_major_version(start, features, servers, tmp_path):
    (tmp_path / "another.py").write_text(_ANOTHER_VERSION)
    address = servers.scheduler("--preload", tmp_path / "another.py")
    done = start("inspect", features, "--verify", "--scheduler", address).outcome()
    ours = scrlm_dask.clusters.remote.version("distributed")
    done.rejected(address, "distributed 2023.5.1", f"distributed {ours}", code=CLUSTER_LOST)


def test_workers_that_lack_the_package(start, features, servers, tmp_path):
    (tmp_path / "missing.py").write_text(_NO_PACKAGE)
    address = servers.scheduler()
    servers.worker(address, "--preload", tmp_path / "missing.py")
    done = start("inspect", features, "--verify", "--scheduler", address).outcome()
    facts = ("1 of 1", "tcp://127.0.0.1", "No module named 'scrlm_dask'")
    done.rejected(*facts, code=CLUSTER_LOST)


@pytest.fixture(scope="module")
def hidden(tmp_path_factory) -> Path:
    """A folder that one worker cannot see."""
    return tmp_path_factory.mktemp("hidden")


@pytest.fixture(scope="module")
def partial_mount(servers: Servers, hidden: Path) -> str:
    """The address of a scheduler with two workers, one of which does not see the folder."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "true"]).returncode:
        pytest.skip("a worker without a mount needs root and a mount namespace")
    address = servers.scheduler()
    servers.worker(address)
    mount = 'mount -t tmpfs none "$0" && exec "$@"'
    servers.worker(address, before=("unshare", "--mount", "sh", "-c", mount, str(hidden)))
    return address


def test_worker_that_does_not_see_the_features(start, features, partial_mount, hidden, tmp_path):
    here = hidden / "features.zarr"
    here.symlink_to(features)
    out = tmp_path / "run"
    fit = ("fit", here, "--out", out, "--clusters", 10, "--scheduler", partial_mount)
    done = start(*fit).outcome()
    done.rejected("1 of 2", str(here), code=CLUSTER_LOST)
    assert not out.exists()


def test_worker_that_does_not_see_the_output(start, features, partial_mount, hidden):
    out = hidden / "run"
    fit = ("fit", features, "--out", out, "--clusters", 10, "--scheduler", partial_mount)
    done = start(*fit).outcome()
    done.rejected("1 of 2", str(out), code=CLUSTER_LOST)
    # The run can be resumed with other workers, but is not accepted as a result.
    with pytest.raises(StoreError, match=rf"{out}.*\binterrupted\b"):
        load_model(out)


# --- in Python ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lonely_scheduler(servers: Servers) -> str:
    return servers.scheduler()


def test_timeout_for_workers_is_configurable(lonely_scheduler) -> None:
    with (
        dask.config.set({"scrlm.wait-workers": "300ms"}),
        pytest.raises(ClusterError, match=rf"(?=.*{lonely_scheduler})(?=.*\b0\b).*--wait-workers"),
        scrlm_dask.connect(scheduler=lonely_scheduler),
    ):
        pass


def test_number_of_workers_adapts_to_the_work() -> None:
    from distributed import default_client

    size = {"nthreads": 1, "memory_limit": "1GB"}
    with scrlm_dask.connect(min_workers=1, max_workers=2, **size) as connection:
        assert re.findall(r"\d+", connection.description) == ["1", "2", "1"]
        client = default_client()
        assert len(client.nthreads()) == 1
        work = client.map(time.sleep, [0.2] * 100, pure=False)
        client.wait_for_workers(2, timeout=60)
        client.cancel(work)
