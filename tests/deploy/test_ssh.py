"""deploy/ssh with a real sshd on the loopback interface: Dask's SSHCluster, and plain ssh."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
HERE = "127.0.0.1"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.deploy,
    pytest.mark.skipif(os.geteuid() != 0, reason="starting sshd requires root"),
    pytest.mark.skipif(
        shutil.which("sshd") is None or shutil.which("ssh") is None,
        reason="requires Debian's openssh-server and openssh-client",
    ),
]


@pytest.fixture(scope="module")
def sshd(run) -> Iterator[Path]:
    """Start an sshd, and return the folder with its keys and settings."""
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="sshd-") as folder:
        run(ROOT / "tests" / "services" / "sshd-up.sh", folder, port)
        yield Path(folder)
        os.kill(int((Path(folder) / "sshd.pid").read_text()), signal.SIGTERM)


@pytest.fixture(scope="module")
def certificates(run, tmp_path_factory) -> tuple[str, ...]:
    folder = tmp_path_factory.mktemp("tls")
    run(DEPLOY / "tls" / "certificates.sh", folder)
    names = {"--tls-ca-file": "ca.pem", "--tls-cert": "cert.pem", "--tls-key": "key.pem"}
    return tuple(word for name, file in names.items() for word in (name, str(folder / file)))


def cluster_config(sshd: Path, folder: Path, **changes: object) -> Path:
    """Write the file of deploy/ with the settings of this host."""
    config = yaml.safe_load((DEPLOY / "ssh" / "cluster.yaml").read_text())
    port = int(next(w for w in (sshd / "config").read_text().split() if w.isdigit()))
    config["hosts"] = [HERE, HERE, HERE]
    config["connect_options"] = {
        "port": port,
        "client_keys": [str(sshd / "key")],
        "known_hosts": str(sshd / "known_hosts"),
    }
    config["worker_options"] = {"nthreads": 1, "memory_limit": "1GB", "host": HERE}
    config["scheduler_options"] = {"host": HERE, "dashboard_address": f"{HERE}:0"}
    file = folder / "cluster.yaml"
    file.write_text(yaml.safe_dump(config | changes))
    return file


def test_ssh_cluster_with_tls(run, sshd, certificates, fit, tmp_path) -> None:
    out = tmp_path / "run"
    where = ("--cluster", "ssh", "--cluster-config", cluster_config(sshd, tmp_path))
    output = run("scrlm", *fit.command(out), *where, *certificates, "--require-tls")
    assert re.search(r"\b2 workers\b.*\btls://127\.0\.0\.1:", output)
    fit.check(out)


def test_plain_ssh(run, sshd, fit, tmp_path) -> None:
    (tmp_path / "hosts.txt").write_text(f"# the same host twice\n{HERE} 1\n{HERE} 1\n")
    out = tmp_path / "run"
    output = run(
        DEPLOY / "ssh" / "run.sh",
        tmp_path / "hosts.txt",
        *fit.command(out),
        cwd=tmp_path,
        SCRLM_HOST=HERE,
        SCRLM_SSH=f"ssh -F {sshd / 'config'}",
        SCRLM_DASHBOARD=f"{HERE}:0",
    )
    assert "tls://127.0.0.1:" in output
    fit.check(out)
    # the certificates were removed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hosts.txt", "run"]


@pytest.mark.parametrize(
    ("changes", "code", "fact"),
    [
        ({"connect_options": {"port": 9}}, 4, "cluster.yaml"),
        ({"hosts": [HERE]}, 3, "[SCHEDULER, WORKER, ...]"),
    ],
)
def test_unreachable_or_missing_hosts(run, sshd, fit, tmp_path, changes, code, fact) -> None:
    config = cluster_config(sshd, tmp_path, **changes)
    where = ("--cluster", "ssh", "--cluster-config", config)
    output = run("scrlm", *fit.command(tmp_path / "run"), *where, code=code)
    assert "ssh" in output
    assert fact in output
    assert "Traceback" not in output


def test_host_name_of_the_loopback_interface(run, tmp_path) -> None:
    """Workers on other hosts would look for the scheduler on their own host."""
    (tmp_path / "hostname").write_text("#!/bin/sh\necho localhost\n")
    (tmp_path / "hostname").chmod(0o755)
    (tmp_path / "hosts.txt").write_text(f"{HERE} 1\n")
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    words = (DEPLOY / "ssh" / "run.sh", tmp_path / "hosts.txt", "fit")
    output = run(*words, code=1, cwd=tmp_path, PATH=path)
    assert "localhost" in output
    assert "SCRLM_HOST" in output
    assert sorted(file.name for file in tmp_path.iterdir()) == ["hostname", "hosts.txt"]


def test_scheduler_that_does_not_start(run, tmp_path) -> None:
    (tmp_path / "hosts.txt").write_text(f"{HERE} 1\n")
    words = (DEPLOY / "ssh" / "run.sh", tmp_path / "hosts.txt", "fit")
    # an address reserved for documentation, which no host has
    output = run(*words, code=1, cwd=tmp_path, timeout=60, SCRLM_HOST="192.0.2.1")
    assert "192.0.2.1" in output
    assert [file.name for file in tmp_path.iterdir()] == ["hosts.txt"]


def test_errors_of_the_certificates_script(run, tmp_path) -> None:
    script = DEPLOY / "tls" / "certificates.sh"
    assert "never" in run(script, tmp_path / "tls", "never", code=1)
    assert list((tmp_path / "tls").iterdir()) == []
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "sh").symlink_to("/bin/sh")
    assert "openssl" in run(script, tmp_path / "tls", code=1, PATH=str(bare))
