"""Small runs of `benchmarks.chaos` (faults), `fuzz` (odd input) and `soak` (repeated fits)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from messages import expecting

from benchmarks.chaos import play, summary
from benchmarks.fuzz import fuzz_fits

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


@pytest.mark.cluster
@pytest.mark.parametrize(
    "fault",
    [
        *("chunk flipped", "disk full", "kill -9 of a worker", "linked chunks", "between attempts"),
        *("weights changed", "SIGTERM with a mount point", "a mount point is replaced"),
    ],
)
def test_fault_at_a_random_moment(tmp_path: Path, fault: str) -> None:
    report = summary(play(tmp_path, 1, seed=3, seconds=100, only=fault))
    print(report)
    if (fault == "disk full" or "mount" in fault) and not report["runs"]:
        pytest.skip("no tmpfs can be mounted here")
    assert report["wrong"] == []
    assert report["runs"] == report["equal_at_once"] + report["equal_when_resumed"] > 0


def test_odd_options_and_odd_stores(tmp_path: Path) -> None:
    assert fuzz_fits(tmp_path, 100) == []


def test_damaged_files() -> None:
    """The cases run in a new process, because a process with threads must not fork."""
    words = [sys.executable, "-m", "benchmarks.fuzz", "--cases", "39", "--first", "400"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sum(map(sum, map(dict.values, json.loads(done.stdout)["files"].values()))) == 39


def test_unknown_fault_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match=expecting("'meteor'", "chunk flipped")):
        play(tmp_path, 1, seed=0, seconds=1, only="meteor")


def test_fits_leave_nothing_behind() -> None:
    """The fits run in a new process, which no other test has used."""
    words = [sys.executable, "-m", "benchmarks.soak", "--fits", "20"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
