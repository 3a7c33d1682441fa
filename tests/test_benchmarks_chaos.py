"""Small runs of `benchmarks.chaos` (faults), `fuzz` (odd input) and `soak` (repeated fits)."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import strategies as st
from messages import expecting

from benchmarks import chaos, faults
from benchmarks.chaos import Ended, Inputs, Outcome, _other_reason, attempt, play, summary, table
from benchmarks.faults import FAULTS, Cluster, FlakyStore, Scene
from benchmarks.fuzz import fuzz_fits
from benchmarks.fuzz_files import fuzz_target
from benchmarks.mutations import byte_changes, change_bytes, change_json

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


@pytest.mark.cluster
@pytest.mark.parametrize(
    "fault",
    [
        *("chunk flipped", "disk full", "kill -9 of a worker", "linked chunks", "between attempts"),
        *("weights changed", "SIGTERM with a mount point", "a mount point is replaced"),
        *("store slow and flaky", "store of a cluster", "during the scan", "during a cut"),
    ],
)
def test_fault_at_a_random_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    if "store" in fault and not FlakyStore.is_possible():
        pytest.skip("SeaweedFS is not installed")
    (known,) = (known for known in FAULTS if fault in known.name)
    if known.changes or known.between or known.flaky:  # early, so that no fit ends before
        monkeypatch.setattr(chaos, "MOMENTS", ("centers-steps/survey-",))
        monkeypatch.setattr(chaos, "LONGEST_DELAY", 0.0)
    report = summary(play(tmp_path, 1, seed=3, seconds=math.inf, only=fault))
    print(report)
    if (fault == "disk full" or "mount" in fault) and not report["runs"]:
        pytest.skip("no tmpfs can be mounted here")
    assert report["wrong"] == []
    assert report["changed_rejected"] == report["changed"]
    assert known.changes <= report["changed"]
    if known.flaky:
        assert report["faults"][known.name]["too_late"] == 0
    assert report["runs"] == report["equal_at_once"] + report["equal_when_resumed"] > 0


def test_changes_that_no_run_rejects_are_violations() -> None:
    undetected = 5 * [Outcome("rows changed", 0, True, False, False, False, 1.0)]
    rejected = Outcome("rows changed", 3, True, True, True, False, 1.0)
    assert "no change of inputs in 5 runs" in summary(undetected)["wrong"][0]
    assert summary(undetected[1:])["wrong"] == []
    report = summary([*undetected, rejected])
    assert report["wrong"] == []
    assert (report["changed"], report["changed_rejected"]) == (6, 1)
    assert "0 (5), 3 (1)" in table(report["faults"])


def test_faults_that_came_too_late_are_counted() -> None:
    late = Outcome("SIGTERM", 0, False, False, False, True, 1.0)
    report = summary([late, late, Outcome("SIGTERM", 143, False, True, False, False, 1.0)])
    assert (report["too_late"], report["faults"]["SIGTERM"]["too_late"]) == (2, 2)
    assert report["wrong"] == []


def test_rejection_must_name_the_changed_input(tmp_path: Path) -> None:
    features, weights = tmp_path / "features-1.zarr", tmp_path / "weights-1.npy"
    for inputs, name in (
        (Inputs(features, None), features),
        (Inputs(features, weights), weights),
    ):
        assert _other_reason(Ended(3, f"Error: {name} has changed"), inputs) == ""
        assert str(name) in _other_reason(Ended(3, "Error: the disk is full"), inputs)


def test_attempt_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert attempt(["--version"]).failure == ""
    assert "exit code 2" in attempt(["no-command"]).failure
    monkeypatch.setattr(chaos, "_HANG_SECONDS", 0.01)
    assert attempt(["--version"]) == Ended(None, "")
    assert attempt(["--version"]).failure == "hung"


def test_fault_without_a_worker_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_WORKER_SECONDS", 0.1)
    cluster = Cluster(tmp_path)  # is not started
    try:
        with subprocess.Popen(["sleep", "60"]) as fit:
            place, rng = tmp_path / "none", random.Random(0)
            scene = Scene(fit, cluster, place, place, place, rng, None)
            (fault,) = (fault for fault in FAULTS if fault.name == "kill -9 of a worker")
            fault.do(scene)
            fit.kill()
    finally:
        cluster.link.remove()
    assert scene.missed


def test_odd_options_and_odd_stores(tmp_path: Path) -> None:
    assert fuzz_fits(tmp_path, 100) == []


def test_damaged_files() -> None:
    """The cases run in a new process, because a process with threads must not fork."""
    words = [sys.executable, "-m", "benchmarks.fuzz", "--cases", "39"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert sum(map(sum, map(dict.values, report["files"].values()))) == 39


def test_failing_cases_are_reduced_to_minimal_ones() -> None:
    class Workers:
        def verdict(self, name: str, file: str, changes: list[Any]) -> str:
            changed = change_bytes(bytes(50), changes)
            return (
                "wrong: bad" if changed[9:10] > b"\x02" else "hung" if not changed else "rejected"
            )

    damaged = st.tuples(st.just("x.npy"), byte_changes(50, (0, 20)))
    failures = fuzz_target("npy", 2000, "0", damaged, Workers())
    bad, hung = sorted(failures, key=len, reverse=True)
    assert bad.startswith("npy, ('x.npy', [(")
    assert bad.endswith("]): wrong: bad")
    assert "), (" not in bad  # a single change
    assert hung == "npy, ('x.npy', [('truncate', 0)]): hung"
    assert fuzz_target("npy", 2000, "0", damaged, Workers()) == failures


def test_changes_of_json_have_their_effect() -> None:
    data = b'{"shape": [24, 4], "format": 2}'

    def changed(*changes: Any) -> Any:
        return json.loads(change_json(data, list(changes)))

    assert changed(("set", 0, "x")) == {"shape": "x", "format": 2}
    assert changed(("drop", 2)) == {"shape": [4], "format": 2}
    assert changed(("rename", 1, "x")) == {"shape": [24, 4], "formatx": 2}
    assert changed(("wrap", 3), ("number", 2, 3)) == {"shape": [-24, [4]], "format": 2}
    assert change_json(data, [("bytes", [("truncate", 5)])]) == b'{"sha'
    assert change_json(data, [("nest", "lists")]).count(b"[") == 100_000


def test_unknown_fault_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(click.UsageError, match=expecting("'meteor'", "chunk flipped")):
        play(tmp_path, 1, seed=0, seconds=1, only="meteor")


def test_fits_leave_nothing_behind() -> None:
    """The fits run in a new process, which no other test has used."""
    words = [sys.executable, "-m", "benchmarks.soak", "--fits", "20"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
