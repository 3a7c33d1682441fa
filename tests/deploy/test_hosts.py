"""Two hosts in network namespaces, with and without TLS."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NAME, NET = f"scrlm{os.getpid()}", "10.77.3"


pytestmark = [
    pytest.mark.slow,
    pytest.mark.deploy,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces require root"),
]


def _skip_without_namespaces() -> None:
    try:
        subprocess.run(["ip", "netns", "add", NAME], check=True, capture_output=True)
        subprocess.run(["ip", "netns", "del", NAME], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"network namespaces are not available: {error}")


@pytest.fixture(scope="module")
def hosts(run) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return the command prefixes that run a command on the first and on the second host."""
    _skip_without_namespaces()
    run(ROOT / "tests" / "services" / "hosts-up.sh", NAME, NET)
    one, two = (("nsenter", f"--net=/run/netns/{NAME}-{i}") for i in (1, 2))
    yield one, two
    for i in (1, 2):
        run("ip", "netns", "del", f"{NAME}-{i}")


def test_two_hosts_with_tls(hosts, run, until, environment, fit, tmp_path) -> None:
    one, two = hosts
    run(ROOT / "deploy" / "tls" / "certificates.sh", tmp_path / "tls")
    files = {"--tls-ca-file": "ca.pem", "--tls-cert": "cert.pem", "--tls-key": "key.pem"}
    tls = [word for k, v in files.items() for word in (k, str(tmp_path / "tls" / v))]
    log = tmp_path / "log"
    started: list[subprocess.Popen[bytes]] = []

    def start(*command: Any) -> None:
        words = [str(word) for word in command]
        with log.open("a") as file:
            started.append(subprocess.Popen(words, stdout=file, stderr=file, env=environment))

    try:
        address = ("--host", f"{NET}.1", "--port", 8786, "--no-dashboard")
        start(*one, "dask", "scheduler", "--protocol", "tls", *address, *tls)
        until(lambda: "Scheduler at:" in log.read_text(), log.read_text)
        scheduler = f"tls://{NET}.1:8786"
        for number, host in enumerate(hosts, 1):
            size = ("--nworkers", 1, "--nthreads", 1, "--no-dashboard", "--host", f"{NET}.{number}")
            start(*host, "dask", "worker", scheduler, "--protocol", "tls", *size, *tls)
        until(lambda: log.read_text().count("Registered to") >= 2, log.read_text)
        out = tmp_path / "run"
        where = ("--scheduler", scheduler, "--require-tls")
        # the client runs on the host without the scheduler
        output = run(*two, "scrlm", *fit.command(out), *where, *tls)
        assert "2 workers" in output
        assert scheduler in output
        assert "warning: " not in output
        fit.check(out)
        # a client without certificate is rejected
        command = ("scrlm", *fit.command(tmp_path / "no"), "--scheduler", scheduler)
        output = run(*two, *command, code=4)
        assert scheduler in output
        assert "--tls-cert" in output
    finally:
        for process in reversed(started):
            process.terminate()
        for process in started:
            process.wait(60)


def test_scheduler_on_the_network_without_tls(
    hosts, run, until, environment, fit, tmp_path
) -> None:
    one, two = hosts
    file = tmp_path / "scheduler.json"
    options = ("--host", f"{NET}.1", "--port", "0", "--scheduler-file", str(file))
    scheduler = subprocess.Popen(
        [*one, "dask", "scheduler", *options, "--no-dashboard"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )
    try:
        until(file.exists, lambda: f"{file} was not written")
        where = ("--scheduler-file", file)
        inspect = ("scrlm", "inspect", fit.features, "--verify", *where)
        output = run(*two, *inspect, code=4, DASK_SCRLM__WAIT_WORKERS="1s")
        assert re.search(r"^warning: (?=.*tcp://10\.77\.3\.1:)(?=.*TLS)", output, re.M)
        output = run(*two, *inspect, "--require-tls", code=4)
        assert re.search(r"^(?=.*tcp://10\.77\.3\.1:)(?=.*--require-tls)", output, re.M)
        assert "warning" not in output
    finally:
        scheduler.terminate()
        scheduler.wait(60)
