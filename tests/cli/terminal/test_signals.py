"""Signals and stalls, where the command is a part of a process that goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import dask
import pytest
from scrlm_cli.options import watchdog
from scrlm_cli.options.watchdog import StallWatchdog

COMMAND = """
import os, signal, sys, threading, time
from scrlm_cli.terminal import signals

signals._GRACE_SECONDS = 0.3
try:
    with signals.handle_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(9)
except signals.SignalInterrupt:
    print("stopped", flush=True)
"""
GOES_ON = "signals.raise_in_main(ValueError('late')); time.sleep(1); print('went on')"
# at its end Python waits for the thread of a pool
HANGS = "from concurrent.futures import ThreadPoolExecutor as P; P().submit(time.sleep, 30)"


@pytest.mark.parametrize(
    ("rest", "code", "said"), [(GOES_ON, 0, "stopped\nwent on\n"), (HANGS, 143, "stopped\n")]
)
def test_only_a_process_that_hangs_is_left(rest: str, code: int, said: str) -> None:
    words = [sys.executable, "-c", COMMAND + rest]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (code, said), done.stderr
    left = "Error: interrupted by SIGTERM; left without waiting any longer\n"
    assert done.stderr == (left if code == 143 else "")


@pytest.mark.parametrize(("configured", "expected"), [(3, 5), (30, 30), (None, 5)])
def test_whoever_expects_more_deaths_keeps_that(configured: int | None, expected: int) -> None:
    name = "distributed.scheduler.allowed-failures"
    with dask.config.set({name: configured}), StallWatchdog(0.0, None).settings():
        assert dask.config.get(name) == expected


def test_dask_may_not_know_the_setting_yet() -> None:
    """Its defaults come with `distributed`, which a command may import later."""
    with dask.config.set({"distributed": {}}), StallWatchdog(0.0, None).settings():
        assert dask.config.get("distributed.scheduler.allowed-failures") == 5


def test_the_state_of_a_cluster_goes_to_a_file_of_ours(
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
    (tmp_path / "run").mkdir()
    watchdog._dump(object(), str(tmp_path / "run"), written)
    assert written[1] == tmp_path / "run" / "cluster-state.json"


def test_a_cluster_that_does_not_answer_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "cluster-state.json").write_text("of an earlier stall")
    written: list[Path] = []
    watchdog._dump(object(), str(tmp_path), written)
    assert written == []
