"""What clusters are told: options that contradict each other, job scripts, tunnels, TLS."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from traceback import format_exception
from typing import Any

import dask
import pytest

import scrlm_dask
from scrlm_dask.choices import CLUSTER_KINDS
from scrlm_dask.clusters import job_queue, ssh
from scrlm_dask.clusters.options import ClusterOptions, check_options, read_config
from scrlm_dask.clusters.security import check_encrypted, tunnel_command
from scrlm_dask.errors import ClusterError, InputError

TLS = {"tls_ca_file": "ca.pem", "tls_cert": "cert.pem"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"scheduler": "tcp://h:1", "scheduler_file": "f"},
            "scheduler or scheduler_file, not both",
        ),
        ({"scheduler": "tcp://h:1", "nworkers": 0}, "nworkers starts a cluster of its own"),
        ({"scheduler_file": "f", "cluster": "slurm"}, "cluster starts a cluster of its own"),
        ({"scheduler": "tcp://h:1", "max_workers": 2}, "max_workers starts a cluster of its own"),
        ({"cluster": "cloud"}, "'cloud' is not known; give one of local, slurm"),
        ({"cluster_config": "f.yaml"}, "cluster_config needs cluster, one of slurm"),
        ({"cluster": "local", "cluster_config": "f.yaml"}, "cluster_config needs cluster"),
        ({"nworkers": 0, "memory_limit": "1GB"}, "memory_limit needs workers"),
        ({"nworkers": 0, "cluster": "slurm"}, "nworkers 0 works in this process"),
        ({"nworkers": 0, **TLS}, "nworkers 0 works in this process"),
        ({"min_workers": 2}, "min_workers without max_workers would do nothing"),
        ({"max_workers": 2, "nworkers": 2}, "give nworkers, or min_workers and max_workers"),
        ({"min_workers": 3, "max_workers": 2}, "min_workers 3 is more than max_workers 2"),
        ({"cluster": "ssh", "nworkers": 2}, "hosts of an ssh cluster stand in cluster_config"),
        ({"tls_ca_file": "ca.pem"}, "tls_ca_file alone is no use"),
        ({"tls_key": "key.pem"}, "tls_key alone is no use"),
    ],
)
def test_what_contradicts_itself_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_options(ClusterOptions(**options))
    with pytest.raises(InputError, match=words), scrlm_dask.connect(**options):
        pass


def test_options_are_spelt_as_they_were_given() -> None:
    with pytest.raises(InputError, match=r"^--min-workers without --max-workers"):
        check_options(ClusterOptions(min_workers=1), lambda name: f"--{name.replace('_', '-')}")


def test_the_command_line_knows_the_same_kinds() -> None:
    from scrlm_cli.main import main

    (kinds,) = (p.type.choices for p in main.commands["fit"].params if p.name == "cluster")
    assert tuple(kinds) == CLUSTER_KINDS


def test_a_word_that_is_no_option() -> None:
    with pytest.raises(TypeError, match="wokers"), scrlm_dask.connect(wokers=2):
        pass


# --- batch systems -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["slurm", "pbs", "sge", "lsf", "htcondor"])
def test_jobs_start_workers_as_ours_are(kind: str, tmp_path: Path) -> None:
    """The script that dask-jobqueue would submit, to each batch system."""
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
    assert script.rindex("--nthreads 4") > script.index("--nthreads 3")  # the last counts
    assert f"--tls-key {tmp_path}" in script
    for name in ("OMP_NUM_THREADS", "MALLOC_ARENA_MAX", "DASK_SCRLM__READ_AHEAD"):
        assert f"{name}=1" in script
    assert "DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE=False" in script


def test_words_of_the_command_win_over_the_file(tmp_path: Path) -> None:
    options = ClusterOptions(cluster="slurm", nthreads=2, memory_limit="1GB")
    given = job_queue.arguments(options, {"cores": 16, "memory": "64GB", "protocol": "tcp://"})
    assert (given["cores"], given["memory"]) == (2, "1000000000")
    with ExitStack() as undo:
        assert job_queue.security(options, given, undo) == {}  # the file does not want it
        given["shared_temp_directory"] = str(tmp_path)
        strict = ClusterOptions(cluster="slurm", require_tls=True)
        found = job_queue.security(strict, given, undo)
        assert found["protocol"] == "tls://"
        assert found["security"].require_encryption


def test_a_job_without_a_size() -> None:
    with pytest.raises(InputError, match="needs cores and memory; give --nthreads and"):
        job_queue.arguments(ClusterOptions(cluster="slurm"), {})


def test_a_batch_system_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with (
        pytest.raises(ClusterError, match="the command qsub of pbs is not here"),
        scrlm_dask.connect(cluster="pbs", nthreads=1, memory_limit="1GB"),
    ):
        pass


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a list", "has no arguments for slurm"),
        ("jobqueue: {pbs: {cores: 1}}", "has no arguments for slurm"),
        ("jobqueue: [1]", "has no arguments for slurm"),
        ("a: [", "cannot be read"),
        ("[" * 5000, "cannot be read"),
        ("!!python/object/apply:os.system ['true']", "cannot be read"),
    ],
)
def test_files_that_say_nothing(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=words):
        read_config(ClusterOptions(cluster="slurm", cluster_config=str(file)))


@pytest.mark.parametrize(
    "text", ['"hunter2" x', "*hunter2", "!hunter2 x", "{hunter2", "hunter2\tb: c: d"]
)
def test_what_stands_in_a_broken_file_is_not_shown(tmp_path: Path, text: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(f"password: {text}\n")
    with pytest.raises(InputError, match=r"cannot be read: .* \(line \d+, column \d+\)$") as caught:
        read_config(ClusterOptions(cluster="slurm", cluster_config=str(file)))
    assert "hunter2" not in "".join(format_exception(caught.value))


def test_the_file_of_dask_jobqueue_itself_is_understood(tmp_path: Path) -> None:
    file = tmp_path / "jobqueue.yaml"
    file.write_text("jobqueue:\n  slurm:\n    cores: 2\n    job-extra-directives: [--requeue]\n")
    found = read_config(ClusterOptions(cluster="slurm", cluster_config=str(file)))
    assert found == {"cores": 2, "job-extra-directives": ["--requeue"]}


def test_an_ssh_cluster_that_must_have_tls() -> None:
    with pytest.raises(InputError, match="needs --tls-ca-file and --tls-cert"):
        ssh.arguments(ClusterOptions(cluster="ssh", require_tls=True), {"hosts": ["a", "b"]})
    given = ssh.arguments(ClusterOptions(cluster="ssh", **TLS), {"hosts": ["a", "b"]})
    assert given["scheduler_options"]["protocol"] == given["worker_options"]["protocol"] == "tls"
    assert given["connect_options"]["connect_timeout"] < 30


# --- where the dashboard is, and who may talk ---------------------------------------------------


def test_the_way_to_a_dashboard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ann")
    monkeypatch.setattr("socket.gethostname", lambda: "login1")
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    assert tunnel_command(None) is None
    assert tunnel_command("http://127.0.0.1:8787/status") is None  # the browser is here, too
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
def test_who_is_warned_of(address: str, warned: bool) -> None:
    heard: list[Any] = []
    check_encrypted(address, ClusterOptions(), heard.append)
    assert [(note.warning, address in note.text) for note in heard] == [(True, True)] * warned
    if warned:
        with pytest.raises(ClusterError, match="talks without TLS"):
            check_encrypted(address, ClusterOptions(require_tls=True), heard.append)
