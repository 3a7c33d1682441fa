"""deploy/ssh against a real sshd on loopback: Dask's SSHCluster, and plain ssh."""

from __future__ import annotations

import os
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
    pytest.mark.skipif(os.geteuid() != 0, reason="sshd is started by root"),
    pytest.mark.skipif(
        shutil.which("sshd") is None or shutil.which("ssh") is None,
        reason="ssh needs Debian's openssh-server and openssh-client",
    ),
]


@pytest.fixture(scope="module")
def sshd(run) -> Iterator[Path]:
    """The folder with the keys and settings of an sshd that runs."""
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
    """The file in deploy/, for this site."""
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


def test_an_ssh_cluster_with_tls(run, sshd, certificates, fit, tmp_path) -> None:
    out = tmp_path / "run"
    where = ("--cluster", "ssh", "--cluster-config", cluster_config(sshd, tmp_path))
    said = run("scrlm", *fit.command(out), *where, *certificates, "--require-tls")
    assert "using 2 workers of a cluster by ssh at tls://127.0.0.1:" in said
    fit.check(out)


def test_plain_ssh(run, sshd, fit, tmp_path) -> None:
    (tmp_path / "hosts.txt").write_text(f"# this machine, twice\n{HERE} 1\n{HERE} 1\n")
    out = tmp_path / "run"
    said = run(
        DEPLOY / "ssh" / "run.sh",
        tmp_path / "hosts.txt",
        *fit.command(out),
        cwd=tmp_path,
        SCRLM_HOST=HERE,
        SCRLM_SSH=f"ssh -F {sshd / 'config'}",
        SCRLM_DASHBOARD=f"{HERE}:0",
    )
    assert "of the scheduler at tls://127.0.0.1:" in said
    fit.check(out)
    # nothing that others could use is left
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hosts.txt", "run"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"connect_options": {"port": 9}}, "a cluster by ssh could not be started"),
        ({"hosts": [HERE]}, "needs hosts: [SCHEDULER, WORKER, ...]"),
    ],
)
def test_hosts_that_do_not_answer(run, sshd, fit, tmp_path, changes, words) -> None:
    config = cluster_config(sshd, tmp_path, **changes)
    where = ("--cluster", "ssh", "--cluster-config", config)
    code = 4 if "connect_options" in changes else 3
    said = run("scrlm", *fit.command(tmp_path / "run"), *where, code=code)
    assert words in said
    assert "Traceback" not in said


def test_a_name_that_means_the_loopback(run, tmp_path) -> None:
    """Workers elsewhere would look for the scheduler on their own machine."""
    (tmp_path / "hostname").write_text("#!/bin/sh\necho localhost\n")
    (tmp_path / "hostname").chmod(0o755)
    (tmp_path / "hosts.txt").write_text(f"{HERE} 1\n")
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    words = (DEPLOY / "ssh" / "run.sh", tmp_path / "hosts.txt", "fit")
    said = run(*words, code=1, cwd=tmp_path, PATH=path)
    assert "localhost is this machine's loopback" in said
    assert "set SCRLM_HOST" in said
    assert sorted(file.name for file in tmp_path.iterdir()) == ["hostname", "hosts.txt"]


def test_a_scheduler_that_does_not_start(run, tmp_path) -> None:
    (tmp_path / "hosts.txt").write_text(f"{HERE} 1\n")
    words = (DEPLOY / "ssh" / "run.sh", tmp_path / "hosts.txt", "fit")
    # an address for documents, which no machine has
    said = run(*words, code=1, cwd=tmp_path, timeout=60, SCRLM_HOST="192.0.2.1")
    assert "the scheduler did not start at 192.0.2.1" in said
    assert [file.name for file in tmp_path.iterdir()] == ["hosts.txt"]


def test_certificates_say_what_went_wrong(run, tmp_path) -> None:
    script = DEPLOY / "tls" / "certificates.sh"
    assert '"never" as a number' in run(script, tmp_path / "tls", "never", code=1)
    assert list((tmp_path / "tls").iterdir()) == []
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "sh").symlink_to("/bin/sh")
    said = run(script, tmp_path / "tls", code=1, PATH=str(bare))
    assert "needs openssl, which is not installed" in said
