"""deploy/slurm on a real Slurm with three nodes on the loopback interface."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SBATCH, JOBQUEUE = (ROOT / "deploy" / "slurm" / name for name in ("scrlm.sbatch", "jobqueue.yaml"))
SERVICES = ROOT / "tests" / "services"
NEEDED = ("slurmctld", "slurmd", "sbatch", "munged", "openssl")
# settings that depend on the site: all nodes are on the loopback interface, workers are small
SITE = {"cores": 1, "memory": "1GB", "interface": "lo"}
SMALL = ("--ntasks=2", "--cpus-per-task=1", "--mem-per-cpu=1000")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.deploy,
    pytest.mark.skipif(os.geteuid() != 0, reason="starting Slurm requires root"),
    pytest.mark.skipif(
        any(shutil.which(name) is None for name in NEEDED),
        reason="requires Debian's slurmctld, slurmd, slurm-client, munge and openssl",
    ),
]


class Slurm:
    def __init__(self, run: Callable[..., str], until: Callable[..., None], folder: Path) -> None:
        self._run, self._until = run, until
        self.environment = {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "SCRLM_INTERFACE": "lo",
            "SCRLM_DASHBOARD": "127.0.0.1:0",
        }

    def __call__(self, *command: Any, **options: Any) -> str:
        return self._run(*command, **options, **self.environment).strip()

    def submit(self, folder: Path, *command: str, **environment: str) -> str:
        words = ("--parsable", *SMALL, f"--output={folder}/job.out", SBATCH, *command)
        return self("sbatch", *words, cwd=folder, **environment)

    def jobs(self) -> list[str]:
        return self("squeue", "--noheader", "--format=%i").split()

    def state(self, job: str) -> dict[str, str]:
        words = self("scontrol", "show", "job", job).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, job: str, output: Path) -> dict[str, str]:
        """Wait until the job has ended, and return its state."""
        ends = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        self._until(lambda: self.state(job)["JobState"] in ends, output.read_text)
        return self.state(job)


@pytest.fixture(scope="module")
def slurm(run, until) -> Iterator[Slurm]:
    # the user munge cannot enter the temporary folders of pytest
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        folder = Path(name)
        try:
            run(SERVICES / "slurm-up.sh", folder, 3, 1)
            yield Slurm(run, until, folder)
        finally:
            run(SERVICES / "slurm-down.sh", folder)


def test_job_finishes(slurm: Slurm, fit, tmp_path) -> None:
    out = tmp_path / "run"
    job = slurm.submit(tmp_path, *fit.command(out))
    output = tmp_path / "job.out"
    state = slurm.wait(job, output)
    assert state["JobState"] == "COMPLETED", output.read_text()
    assert re.search(r"\b[12] workers?\b.*\btls://", output.read_text())
    fit.check(out)
    # the certificates and the scheduler file were removed with the job
    assert sorted(p.name for p in tmp_path.iterdir()) == ["job.out", "run"]


def test_preempted_job_resumes(slurm: Slurm, fit, hold, until, tmp_path) -> None:
    """After Slurm's signal the job is requeued, resumes, and gives the same bits."""
    out, output = tmp_path / "run", tmp_path / "job.out"
    job = slurm.submit(tmp_path, *fit.command(out), **hold.environment)
    until(lambda: output.exists() and "survey: " in output.read_text(), lambda: output.read_text())
    secret = tmp_path / f".scrlm-{job}-0"
    modes = {p.name: p.stat().st_mode & 0o777 for p in (secret, *secret.iterdir())}
    slurm("scancel", "--batch", "--signal=USR1", job)
    until(lambda: slurm.state(job)["Restarts"] == "1", lambda: output.read_text())
    hold.release()
    # Slurm delays a requeued job by two minutes
    until(lambda: slurm.state(job)["JobState"] == "PENDING", lambda: output.read_text())
    slurm("scontrol", "update", f"jobid={job}", "StartTime=now+2")
    state = slurm.wait(job, output)
    assert state["JobState"] == "COMPLETED", output.read_text()
    assert "USR1" in output.read_text()
    assert re.search(r"\b143\b", output.read_text())  # the exit code of the interrupted fit
    assert json.loads((out / "run.json").read_text())["attempts"] == 2
    fit.check(out)
    files = ("ca.pem", "cert.pem", "key.pem", "scheduler.json")
    assert modes == {secret.name: 0o700, **dict.fromkeys(files, 0o600)}


def test_workers_as_jobs_and_one_is_cancelled(
    slurm: Slurm, fit, hold, environment, until, tmp_path
):
    config = yaml.safe_load(JOBQUEUE.read_text()) | SITE
    config |= {"log-directory": str(tmp_path / "logs"), "shared-temp-directory": str(tmp_path)}
    (tmp_path / "jobqueue.yaml").write_text(yaml.safe_dump(config))
    out, output = tmp_path / "run", tmp_path / "output"
    where = ("--cluster", "slurm", "--cluster-config", tmp_path / "jobqueue.yaml")
    command = ["scrlm", *fit.command(out), *where, "--nworkers", "2", "--require-tls"]
    with output.open("w") as file:
        ours = environment | slurm.environment | hold.environment
        words = [str(word) for word in command]
        running = subprocess.Popen(words, stdout=file, stderr=file, env=ours)
    try:
        until(lambda: "survey: " in output.read_text(), output.read_text)
        jobs = slurm.jobs()
        keys = [p.stat().st_mode & 0o777 for p in tmp_path.glob(".scrlm-tls-*/*")]
        slurm("scancel", jobs[0])
        hold.release()
        assert running.wait(240) == 0, output.read_text()
    finally:
        running.kill()
        running.wait()
    assert len(jobs) == 2
    assert keys == [0o600] * 3  # authority, certificate and key of the workers
    assert re.search(r"slurm.*\btls://127\.0\.0\.1:", output.read_text())
    fit.check(out)
    until(lambda: slurm.jobs() == [], lambda: str(slurm.jobs()))
    assert list(tmp_path.glob(".scrlm-tls-*")) == []


def test_missing_queue(slurm: Slurm, fit, tmp_path) -> None:
    config = {**SITE, "queue": "nowhere", "shared-temp-directory": str(tmp_path)}
    (tmp_path / "jobqueue.yaml").write_text(yaml.safe_dump(config))
    where = ("--cluster", "slurm", "--cluster-config", tmp_path / "jobqueue.yaml")
    output = slurm("scrlm", *fit.command(tmp_path / "run"), *where, code=4)
    assert "invalid partition" in output.lower()  # the message of Slurm
    assert "Traceback" not in output
    assert not (tmp_path / "run").exists()
