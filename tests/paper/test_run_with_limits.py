"""Limits of time and memory, with real methods; no process is left running."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

from scrlm_dask.errors import InputError
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec, synth_block, true_mixture
from scrlm_dask.paper.baselines import METHODS
from scrlm_dask.paper.run_with_limits import Task, run_with_limits

CHILD = "scrlm_dask.paper.run_with_limits"
SLOW = "t-sne+k-means++"


def rows_of(n_rows: int) -> NDArray[np.float32]:
    spec = MixtureSpec(16, 3, 0.5)
    return synth_block(spec, true_mixture(spec), 0, n_rows).features


def family(pid: int) -> list[psutil.Process]:
    return [
        process
        for process in psutil.Process(pid).children(recursive=True)
        if process.status() != psutil.STATUS_ZOMBIE and CHILD in process.cmdline()
    ]


def test_labels_and_costs(tmp_path: Path) -> None:
    rows = rows_of(2000)
    np.save(tmp_path / "rows.npy", rows)
    began = time.monotonic()
    done = run_with_limits(Task("td", tmp_path / "rows.npy", 4, seed=1), 60.0, 2 * 10**9)
    whole = time.monotonic() - began
    assert done.reason is None
    assert done.labels is not None
    assert np.array_equal(done.labels, METHODS["td"].fit(rows, 4, 1))
    assert done.cpu_seconds is not None
    assert done.wall_seconds is not None
    # the start of the process is not counted, and imports alone take longer than the fit
    assert 0.0 < done.wall_seconds < whole / 2
    assert 0.0 < done.cpu_seconds < 1.0
    assert 50e6 < done.peak_bytes < 2e9
    assert family(psutil.Process().pid) == []


@pytest.mark.slow
def test_method_that_takes_too_long_is_stopped() -> None:
    began = time.monotonic()
    done = run_with_limits(Task(SLOW, rows_of(20_000), 4), 0.5)
    assert time.monotonic() - began < 120
    assert done.labels is None
    assert "0.5 s" in str(done.reason)
    assert done.cpu_seconds is None
    assert done.peak_bytes > 50e6
    assert family(psutil.Process().pid) == []


@pytest.mark.slow
def test_method_that_takes_too_much_memory_is_stopped() -> None:
    # all distances of 16,000 rows take 1 GB
    done = run_with_limits(Task("complete-linkage", rows_of(16_000), 4), 240.0, 600 * 10**6)
    assert done.labels is None
    assert "600.0 MB" in str(done.reason)
    assert done.peak_bytes > 600e6
    assert family(psutil.Process().pid) == []


def test_error_is_reported() -> None:
    done = run_with_limits(Task("k-means++", rows_of(5), 9), 60.0)
    assert done.labels is None
    assert done.reason is not None
    assert done.reason.startswith("ValueError: n_samples=5 should be >= n_clusters=9")


def test_failed_process_is_reported(tmp_path: Path) -> None:
    done = run_with_limits(Task("td", tmp_path / "nothing.npy", 9), 60.0)
    assert done.reason is not None
    assert "nothing.npy" in done.reason


def test_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "superkmeans", None)
    done = run_with_limits(Task("superkmeans", rows_of(100), 3), 60.0)
    assert done.labels is None
    assert "superkmeans" in str(done.reason)


@pytest.mark.parametrize(
    ("timeout", "memory", "facts"),
    [
        (0.0, None, r"(?=.*\b0\b)(?=.*time)"),
        (float("nan"), None, r"(?=.*\bnan\b)(?=.*time)"),
        (1.0, 0, r"(?=.*\b0\b)(?=.*memory)"),
    ],
)
def test_invalid_limits_are_rejected(timeout: float, memory: int | None, facts: str) -> None:
    with pytest.raises(InputError, match=facts):
        run_with_limits(Task("td", rows_of(100), 3), timeout, memory)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_their_parent(number: signal.Signals, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", rows_of(20_000))
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from pathlib import Path\n"
        "from scrlm_dask.paper.run_with_limits import Task, run_with_limits\n"
        f"run_with_limits(Task({SLOW!r}, Path({str(tmp_path / 'rows.npy')!r}), 4), 600.0)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL) as parent:
        deadline = time.monotonic() + 120
        while not (started := family(parent.pid)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)
        parent.send_signal(number)
        gone, alive = psutil.wait_procs(started, timeout=60)
        assert alive == []
        assert len(gone) == 1
