"""Stalls, lost workers and the state of a stalled cluster."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click
import dask
import pytest
from click.testing import CliRunner
from scrlm_cli.options import watchdog
from scrlm_cli.options.watchdog import StallWatchdog
from scrlm_cli.terminal.console import EXIT_CLUSTER_LOST
from scrlm_cli.terminal.signals import handle_signals

from scrlm_dask.errors import ClusterError
from scrlm_dask.settings import workers_timeout


@pytest.mark.parametrize(("configured", "expected"), [(3, 5), (30, 30), (None, 5)])
def test_higher_limit_of_allowed_failures_is_kept(configured: int | None, expected: int) -> None:
    name = "distributed.scheduler.allowed-failures"
    with dask.config.set({name: configured}), StallWatchdog(0.0, None).settings():
        assert dask.config.get(name) == expected


def test_setting_without_a_default_of_dask() -> None:
    """The defaults are set by `distributed`, which a command may import later."""
    with dask.config.set({"distributed": {}}), StallWatchdog(0.0, None).settings():
        assert dask.config.get("distributed.scheduler.allowed-failures") == 5


def test_state_of_a_cluster_is_written_to_a_private_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("scrlm_dask.engine.failures.cluster_state", lambda client: {"a": 1})
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "cluster-state.json").symlink_to(tmp_path / "victim")
    written: list[Path] = []
    watchdog._dump(object(), "s3://bucket/run", written)
    (file,) = written
    assert file.name.startswith("scrlm-cluster-state-")
    assert file.stat().st_mode & 0o777 == 0o600
    assert json.loads(file.read_text()) == {"a": 1}
    assert (tmp_path / "victim").read_text() == "precious"
    in_run = tmp_path / "run" / "cluster-state.json"
    in_run.parent.mkdir()
    in_run.symlink_to(tmp_path / "victim")
    watchdog._dump(object(), str(in_run.parent), written)
    assert written[1] == in_run
    assert json.loads(in_run.read_text()) == {"a": 1}
    assert (tmp_path / "victim").read_text() == "precious"


def test_unresponsive_cluster_writes_no_file(tmp_path: Path) -> None:
    (tmp_path / "cluster-state.json").write_text("of an earlier stall")
    written: list[Path] = []
    watchdog._dump(object(), str(tmp_path), written)
    assert written == []


def test_stall_raises_in_the_main_thread(tmp_path: Path) -> None:
    stalled = StallWatchdog(0.1, None)
    with (
        pytest.raises(ClusterError, match=r"--stall-timeout") as caught,
        handle_signals(),
        stalled.watching(lambda event: None, str(tmp_path)),
    ):
        time.sleep(30)
    assert caught.value.code == EXIT_CLUSTER_LOST
    assert list(tmp_path.iterdir()) == []  # threads of this process have no state to write


def test_events_are_forwarded_to_the_listener() -> None:
    events: list[int] = []
    idle = StallWatchdog(0.0, None)  # never stops the command
    with idle.watching(events.append, "run"):
        idle(1)
        idle(2)
    assert events == [1, 2]


def test_timeout_for_workers() -> None:
    with dask.config.set({"scrlm.wait-workers": "7s"}):
        with StallWatchdog(0.0, 90.0).settings():
            assert workers_timeout() == 90.0
        with StallWatchdog(0.0, None).settings():
            assert workers_timeout() == 7.0


@pytest.mark.parametrize(
    ("args", "stall", "wait"),
    [((), 3600.0, None), (("--stall-timeout", "90s", "--wait-workers", "2h"), 90.0, 7200.0)],
)
def test_options_are_durations(args: tuple[str, ...], stall: float, wait: float | None) -> None:
    given: list[Any] = []
    command = click.command()(watchdog.watchdog_options(lambda **values: given.append(values)))
    assert CliRunner().invoke(command, args).exit_code == 0
    assert given == [{"stall_timeout": stall, "wait_workers": wait}]
    rejected = CliRunner().invoke(command, ["--stall-timeout", "soon"])
    assert rejected.exit_code == 2
    assert "soon" in rejected.output
