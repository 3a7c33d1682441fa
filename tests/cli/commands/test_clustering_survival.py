"""Commands that are interrupted or killed, and resume later with the same bits."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from holding import Hold

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

ROWS, BLOCK_ROWS, GROUP_BLOCKS = 9_600, 200, 8
HELD_AFTER = 4 * GROUP_BLOCKS  # blocks of the loss pass, which then waits for the test
FIT = (
    "--rho",
    0.5,
    "--candidates",
    400,
    "--block-rows",
    BLOCK_ROWS,
    "--kmeans-iter",
    2,
    "--persist",
    "no",
)
TERMINATED, INTERRUPTED, REJECTED, LOST = 143, 130, 3, 4


@pytest.fixture(scope="module")
def features(invoke, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("features") / "features.zarr"
    size = ("--rows", ROWS, "--features", 32, "--clusters", 5, "--chunk-size", "32kB")
    invoke("synth", out, *size).ok()
    return out


@pytest.fixture(scope="module")
def undisturbed(invoke, features, results_of, tmp_path_factory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    invoke("fit", features, "--out", out, *FIT).ok()
    assert not (out / "checkpoint").exists()
    return results_of(out)


@pytest.fixture
def hold(tmp_path: Path) -> Iterator[Hold]:
    """Block the loss pass after some groups of blocks are done."""
    hold = Hold(tmp_path / "hold", HELD_AFTER)
    hold.take()
    yield hold
    hold.release()


def groups(out: Path) -> list[Path]:
    return list(out.glob("checkpoint/centers-steps/loss-1-*/group.*"))


@pytest.mark.parametrize(
    ("number", "workers", "code"),
    [(signal.SIGTERM, 1, TERMINATED), (signal.SIGUSR1, 0, TERMINATED)],
)
def test_signal_before_preemption(
    start,
    invoke,
    hold,
    features,
    tmp_path,
    number,
    workers,
    code,
    undisturbed,
    results_of,
    record_of,
):
    out = tmp_path / "run"
    where = ("--nworkers", workers)
    fit = start("fit", features, "--out", out, *FIT, *where, **hold.environment)
    fit.until(lambda: len(groups(out)) > 2)
    family = psutil.Process(fit.process.pid).children(recursive=True)
    os.kill(fit.process.pid, number)
    time.sleep(0.5)  # the signal must be handled before the current blocks are done
    hold.release()
    done = fit.outcome(timeout=30)  # the grace period of batch systems
    done.rejected(number.name, f"scrlm fit --resume {out}", code=code)
    assert not psutil.wait_procs(family, timeout=60)[1]
    assert record_of(out)["status"] == "interrupted"
    kept = len(groups(out))
    invoke("fit", "--resume", out).ok()
    assert record_of(out)["attempts"] == 2
    assert record_of(out)["taken_over"] == {
        "survey": ROWS // BLOCK_ROWS,
        "loss": GROUP_BLOCKS * kept,
    }
    assert results_of(out) == undisturbed
    # Resuming a complete run, as a requeued batch job does, prints the result.
    assert invoke("fit", "--resume", out, "--json").ok().json()["run"] == str(out)


@pytest.mark.parametrize("processes", [1, 2, 3])  # Python's resource tracker, and workers
def test_interrupt_while_workers_start(start, features, tmp_path, processes):
    out = tmp_path / "run"
    fit = start("fit", features, "--out", out, *FIT, "--nworkers", 2)
    process = psutil.Process(fit.process.pid)
    fit.until(lambda: len(process.children()) >= processes)
    family = process.children(recursive=True)
    fit.process.send_signal(signal.SIGINT)
    done = fit.outcome()
    assert done.code == INTERRUPTED
    assert done.stderr.splitlines()[-1].startswith("Error: ")
    assert "Traceback" not in done.stderr
    assert not psutil.wait_procs(family, timeout=60)[1]
    assert not out.exists()


def test_second_interrupt_exits_immediately(start, hold, features, tmp_path):
    out = tmp_path / "run"
    fit = start("fit", features, "--out", out, *FIT, "--nworkers", 1, **hold.environment)
    fit.until(lambda: groups(out))
    family = psutil.Process(fit.process.pid).children(recursive=True)
    # The worker is blocked, and a clean shutdown would wait for it. Pending signals of one kind
    # are merged, so it may take more than two signals to deliver two.
    deadline = time.monotonic() + 60
    while fit.process.poll() is None and time.monotonic() < deadline:
        os.kill(fit.process.pid, signal.SIGINT)
        time.sleep(0.1)
    hold.release()
    assert not psutil.wait_procs(family, timeout=60)[1]
    done = fit.outcome(timeout=1)
    assert done.code == INTERRUPTED
    (error,) = (line for line in done.stderr.splitlines() if line.startswith("Error: "))
    assert "--resume" not in error  # which the message of a clean shutdown suggests
    # Neither the workers nor Python's resource tracker print anything to the terminal.
    assert not {"Traceback", "Warning", "resource_tracker"} & set(re.findall(r"\w+", done.stderr))
    assert not (out / "model.zarr").exists()


def test_resumes_after_sigkill_with_damaged_checkpoints(
    start, invoke, hold, features, tmp_path, undisturbed, results_of, record_of
):
    out = tmp_path / "run"
    fit = start("fit", features, "--out", out, *FIT, "--nworkers", 0, **hold.environment)
    fit.until(lambda: len(groups(out)) > 1)
    fit.process.send_signal(signal.SIGSTOP)  # it must not continue during the next checks
    invoke("fit", features, "--out", out, *FIT).rejected(
        str(out), str(fit.process.pid), code=REJECTED
    )
    fit.process.kill()
    fit.process.wait()
    assert record_of(out)["status"] == "running"
    other = invoke("fit", features, "--out", out, *FIT, "--rho", 0.4)
    other.rejected("rho", "0.5", "0.4", "--overwrite", code=REJECTED)
    invoke("kmeans", "--resume", out).rejected("fit", code=REJECTED)
    # A checkpoint with a flipped bit, and one that a full disk has truncated.
    first, second, *_ = sorted(groups(out)) + sorted(out.glob("checkpoint/*/survey-1/group.*"))
    content = first.read_bytes()
    first.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    second.write_bytes(second.read_bytes()[:100])
    done = invoke("fit", features, "--out", out, *FIT).ok()
    assert len(re.findall(r"^warning: .*\bgroup \d+\b", done.stderr, re.MULTILINE)) == 2
    assert results_of(out) == undisturbed
    assert not (out / "checkpoint").exists()


def test_stalled_cluster(start, hold, features, tmp_path, undisturbed, record_of):
    """A hanging worker is detected; kernels are already compiled by the undisturbed run."""
    out = tmp_path / "run"
    options = ("--nworkers", 1, "--stall-timeout", "20s")
    fit = start("fit", features, "--out", out, *FIT, *options, **hold.environment)
    fit.until(lambda: groups(out))
    workers = [
        child
        for child in psutil.Process(fit.process.pid).children(recursive=True)
        if any("spawn_main" in word for word in child.cmdline())
    ]
    try:
        for worker in workers:
            worker.suspend()
        done = fit.outcome(timeout=90)
    finally:
        for worker in workers:
            if worker.is_running():
                worker.kill()
    assert done.code == LOST, done.stderr
    assert "--stall-timeout" in done.stderr
    state = json.loads((out / "cluster-state.json").read_text())
    (stuck,) = state["workers"].values()
    assert any("loss" in key for key in stuck["processing"])
    assert "Traceback" not in done.stderr
    assert record_of(out)["status"] in ("interrupted", "running")


def test_no_workers_connect(start, dask_scheduler, features, tmp_path):
    dask = (str(Path(sys.executable).parent / "dask"),)
    file = tmp_path / "scheduler.json"
    where = ("--host", "127.0.0.1", "--port", 0, "--dashboard-address", "127.0.0.1:0")
    dask_scheduler(start("scheduler", *where, "--scheduler-file", file, program=dask), file)
    options = ("--scheduler-file", file, "--wait-workers", "1s")
    done = start("fit", features, "--out", tmp_path / "run", *options).outcome()
    done.rejected(str(file), "1", "--wait-workers", code=LOST)
    assert not (tmp_path / "run").exists()
