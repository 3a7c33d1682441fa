"""Cluster options: contradictions, and configuration files."""

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
    ("options", "named"),
    [
        ({"scheduler": "tcp://h:1", "scheduler_file": "f"}, ["scheduler", "scheduler_file"]),
        ({"scheduler": "tcp://h:1", "nworkers": 0}, ["nworkers", "scheduler"]),
        ({"scheduler_file": "f", "cluster": "slurm"}, ["cluster", "scheduler_file"]),
        ({"scheduler": "tcp://h:1", "max_workers": 2}, ["max_workers", "scheduler"]),
        ({"cluster": "cloud"}, ["'cloud'", "local, slurm"]),
        ({"cluster_config": "f.yaml"}, ["cluster_config", "cluster", "slurm"]),
        (
            {"cluster": "local", "cluster_config": "f.yaml"},
            ["cluster_config", "cluster", "slurm"],
        ),
        ({"nworkers": 0, "memory_limit": "1GB"}, ["memory_limit", "nworkers", "0"]),
        ({"nworkers": 0, "cluster": "slurm"}, ["nworkers", "0", "cluster"]),
        ({"nworkers": 0, **TLS}, ["nworkers", "0", "certificates?"]),
        ({"min_workers": 2}, ["min_workers", "max_workers"]),
        ({"max_workers": 2, "nworkers": 2}, ["nworkers", "min_workers", "max_workers"]),
        ({"min_workers": 3, "max_workers": 2}, ["min_workers", "3", "max_workers", "2"]),
        ({"cluster": "ssh", "nworkers": 2}, ["ssh", "cluster_config"]),
        ({"tls_ca_file": "ca.pem"}, ["tls_ca_file", "tls_cert"]),
        ({"tls_key": "key.pem"}, ["tls_key", "tls_ca_file", "tls_cert"]),
    ],
)
def test_contradictions_are_rejected(options: dict[str, Any], named: list[str]) -> None:
    facts = "".join(rf"(?=.*(?<!\w){name}(?!\w))" for name in named)
    with pytest.raises(InputError, match=facts):
        check_options(ClusterOptions(**options))
    with pytest.raises(InputError, match=facts), scrlm_dask.connect(**options):
        pass


def test_options_are_named_as_they_were_given() -> None:
    with pytest.raises(InputError, match=r"(?=.*--min-workers)(?=.*--max-workers)") as caught:
        check_options(ClusterOptions(min_workers=1), lambda name: f"--{name.replace('_', '-')}")
    assert "_workers" not in str(caught.value)


def test_command_line_offers_the_same_kinds() -> None:
    from scrlm_cli.main import main

    (kinds,) = (p.type.choices for p in main.commands["fit"].params if p.name == "cluster")
    assert tuple(kinds) == CLUSTER_KINDS


def test_unknown_option() -> None:
    with pytest.raises(TypeError, match="wokers"), scrlm_dask.connect(wokers=2):
        pass


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("- a list", "slurm"),
        ("jobqueue: {pbs: {cores: 1}}", "slurm"),
        ("jobqueue: [1]", "slurm"),
        ("a: [", r"line 1, column \d+"),
        ("[" * 5000, "RecursionError"),
        ("!!python/object/apply:os.system ['true']", "line 1, column 1"),
    ],
)
def test_invalid_files(tmp_path: Path, text: str, fact: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=f"(?=.*{file})(?=.*{fact})"):
        read_config(ClusterOptions(cluster="slurm", cluster_config=str(file)))


@pytest.mark.parametrize(
    "text", ['"hunter2" x', "*hunter2", "!hunter2 x", "{hunter2", "hunter2\tb: c: d"]
)
def test_content_of_an_invalid_file_is_not_printed(tmp_path: Path, text: str) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(f"password: {text}\n")
    with pytest.raises(InputError, match=rf"(?=.*{file})(?=.*line \d+, column \d+)") as caught:
        read_config(ClusterOptions(cluster="slurm", cluster_config=str(file)))
    assert "hunter2" not in "".join(format_exception(caught.value))


def test_jobqueue_yaml_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "jobqueue.yaml"
    file.write_text("jobqueue:\n  slurm:\n    cores: 2\n    job-extra-directives: [--requeue]\n")
    found = read_config(ClusterOptions(cluster="slurm", cluster_config=str(file)))
    assert found == {"cores": 2, "job-extra-directives": ["--requeue"]}


def test_little_work_starts_workers_only_on_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    assert ClusterOptions().for_little_work() == ClusterOptions(nworkers=0)
    for requested in (
        ClusterOptions(nworkers=2),
        ClusterOptions(nthreads=1),
        ClusterOptions(memory_limit="2GB"),
        ClusterOptions(cluster="local"),
        ClusterOptions(cluster="slurm"),
        ClusterOptions(scheduler="tcp://127.0.0.1:1"),
        ClusterOptions(scheduler_file="file.json"),
    ):
        assert requested.for_little_work() == requested
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tcp://127.0.0.1:1")
    assert ClusterOptions().for_little_work() == ClusterOptions()
