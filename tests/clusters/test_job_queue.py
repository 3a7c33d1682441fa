"""Batch systems: job scripts of dask-jobqueue, and certificates."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import dask
import pytest

import scrlm_dask
from scrlm_dask.clusters import job_queue
from scrlm_dask.clusters.options import ClusterOptions
from scrlm_dask.errors import ClusterError, InputError


@pytest.mark.parametrize("kind", ["slurm", "pbs", "sge", "lsf", "htcondor"])
def test_job_script(kind: str, tmp_path: Path) -> None:
    """The job script has our worker settings, for each batch system."""
    import dask_jobqueue

    options = ClusterOptions(cluster=kind, nthreads=3, memory_limit="6GB")
    config = {"processes": 2, "shared-temp-directory": str(tmp_path), "interface": "lo"}
    if kind == "htcondor":
        config["disk"] = "1GB"
    with dask.config.set({"scrlm.read-ahead": 1, "scrlm.dashboard-port": 0}):
        given = job_queue.arguments(options, config)
    with ExitStack() as undo:
        given |= job_queue.security(options, given, undo)
        cluster = undo.enter_context(getattr(dask_jobqueue, job_queue.CLASSES[kind])(**given))
        script = cluster.job_script()
        assert cluster.scheduler_address.startswith("tls://127.0.0.1:")
        secrets = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert [path.stat().st_mode & 0o777 for path in secrets] == [0o600] * 3
    assert list(tmp_path.iterdir()) == []
    assert "--preload scrlm_dask.preload" in script
    assert "--nworkers 2" in script
    assert script.rindex("--nthreads 4") > script.index("--nthreads 3")  # the last one is used
    assert f"--tls-key {tmp_path}" in script
    for name in ("OMP_NUM_THREADS", "MALLOC_ARENA_MAX", "DASK_SCRLM__READ_AHEAD"):
        assert f"{name}=1" in script
    assert "DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE=False" in script


def test_options_override_the_file(tmp_path: Path) -> None:
    options = ClusterOptions(cluster="slurm", nthreads=2, memory_limit="1GB")
    given = job_queue.arguments(options, {"cores": 16, "memory": "64GB", "protocol": "tcp://"})
    assert (given["cores"], given["memory"]) == (2, "1000000000")
    with ExitStack() as undo:
        assert job_queue.security(options, given, undo) == {}  # the file selects tcp
        given["shared_temp_directory"] = str(tmp_path)
        strict = ClusterOptions(cluster="slurm", require_tls=True)
        found = job_queue.security(strict, given, undo)
        assert found["protocol"] == "tls://"
        assert found["security"].require_encryption


def test_job_without_cores_and_memory() -> None:
    with pytest.raises(
        InputError, match=r"(?=.*slurm)(?=.*--nthreads)(?=.*--memory-limit)(?=.*--cluster-config)"
    ):
        job_queue.arguments(ClusterOptions(cluster="slurm"), {})


def test_missing_batch_system(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with (
        pytest.raises(ClusterError, match=r"(?=.*\bqsub\b)(?=.*\bpbs\b)"),
        scrlm_dask.connect(cluster="pbs", nthreads=1, memory_limit="1GB"),
    ):
        pass
