"""TLS of schedulers, and ssh tunnels to dashboards."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dask
import pytest

from scrlm_dask.clusters.job_queue import temporary_certificate
from scrlm_dask.clusters.options import ClusterOptions, Connection
from scrlm_dask.clusters.security import (
    certificates,
    check_certificate,
    check_encrypted,
    describe_connection,
    host_of,
    is_loopback,
    scheme_of,
    tunnel_command,
)
from scrlm_dask.errors import ClusterError, InputError


def test_tunnel_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ann")
    monkeypatch.setattr("socket.gethostname", lambda: "login1")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    assert tunnel_command(None) is None
    assert tunnel_command("http://127.0.0.1:8787/status") is None  # the browser is on the same host
    remote = "http://10.1.2.3:8790/status"
    assert tunnel_command(remote) == "ssh -N -L 8790:10.1.2.3:8790 ann@login1"
    monkeypatch.setenv("SSH_CONNECTION", "203.0.113.9 50000 192.0.2.7 22")
    here = "http://127.0.0.1:8787/status"
    assert tunnel_command(here) == "ssh -N -L 8787:127.0.0.1:8787 ann@192.0.2.7"


@pytest.mark.parametrize(
    ("address", "warned"),
    [
        ("tcp://192.0.2.1:8786", True),
        ("192.0.2.1:8786", True),
        ("tcp://node1:8786", True),
        ("tls://192.0.2.1:8786", False),
        ("tcp://127.0.0.1:8786", False),
        ("tcp://localhost:8786", False),
        ("tcp://[::1]:8786", False),
    ],
)
def test_warning_about_unencrypted_schedulers(address: str, warned: bool) -> None:
    notes: list[Any] = []
    check_encrypted(address, ClusterOptions(), notes.append)
    assert [(note.warning, address in note.text) for note in notes] == [(True, True)] * warned
    if warned:
        with pytest.raises(ClusterError, match=rf"(?=.*{re.escape(address)})(?=.*--require-tls)"):
            check_encrypted(address, ClusterOptions(require_tls=True), notes.append)


@pytest.mark.parametrize(
    ("address", "scheme", "host", "loopback"),
    [
        ("tcp://192.0.2.1:8786", "tcp", "192.0.2.1", False),
        ("tls://node1:8786", "tls", "node1", False),
        ("localhost:8786", "", "localhost", True),
        ("tcp://[::1]:8786", "tcp", "::1", True),
        ("tcp://127.0.0.2:1", "tcp", "127.0.0.2", True),
    ],
)
def test_parts_of_an_address(address: str, scheme: str, host: str, loopback: bool) -> None:
    assert (scheme_of(address), host_of(address)) == (scheme, host)
    assert is_loopback(host) == loopback


def test_invalid_address() -> None:
    with pytest.raises(InputError, match=re.escape("'tcp://[::1'")):
        host_of("tcp://[::1")


def test_certificates_are_set_only_inside_the_block(tmp_path: Path) -> None:
    with ExitStack() as undo:
        made = temporary_certificate(tmp_path, undo)
        cert, key = made.tls_client_cert, made.tls_client_key
        options = ClusterOptions(tls_ca_file=made.tls_ca_file, tls_cert=cert, tls_key=key)
        with certificates(options):
            assert dask.config.get("distributed.comm.tls.ca-file") == made.tls_ca_file
            assert dask.config.get("distributed.comm.tls.worker.key") == key
            assert dask.config.get("distributed.comm.require-encryption") is True
            check_certificate("tls://192.0.2.1:8786")
        check_certificate("tcp://192.0.2.1:8786")
        with pytest.raises(ClusterError, match=r"(?=.*tls://192\.0\.2\.1:8786)(?=.*--tls-cert)"):
            check_certificate("tls://192.0.2.1:8786")
        assert not dask.config.get("distributed.comm.require-encryption")
        # the certificate file does not contain the key
        wrong = ClusterOptions(tls_ca_file=made.tls_ca_file, tls_cert=cert)
        with pytest.raises(InputError, match=f"(?=.*{cert})(?=.*--tls)"), certificates(wrong):
            pass
    with pytest.raises(InputError, match=made.tls_ca_file), certificates(options):
        pass  # the files were removed


class Client:
    """A client whose workers have the given memory limits."""

    dashboard_link = None

    def __init__(self, *limits: int) -> None:
        self.limits = limits

    @property
    def scheduler(self) -> Client:
        return self

    def sync(self, function: Callable[..., Any], **kwargs: Any) -> Any:
        return function(**kwargs)

    def identity(self, n_workers: int) -> Any:
        assert n_workers == -1  # all
        workers = [{"memory_limit": limit, "nthreads": 3} for limit in self.limits]
        return {"workers": dict(enumerate(workers))}


def test_threads_and_memory_of_all_workers() -> None:
    found = describe_connection("two", Client(10, 20))
    assert found == Connection("two", None, nthreads=6, memory=30, tunnel=None)
    assert describe_connection("two", Client(10, 20), nthreads=2).nthreads == 4
    assert describe_connection("two", Client(10, 0)).memory is None  # one worker has no limit
