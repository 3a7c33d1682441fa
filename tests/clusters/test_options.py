"""What clusters are told: options that contradict each other, and files of arguments."""

from __future__ import annotations

from pathlib import Path
from traceback import format_exception
from typing import Any

import pytest

import scrlm_dask
from scrlm_dask.choices import CLUSTER_KINDS
from scrlm_dask.clusters.options import ClusterOptions, check_options, read_config
from scrlm_dask.errors import InputError

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
