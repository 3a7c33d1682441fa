"""Commands that are told to stop, or stop by themselves, and go on later with the same bits."""

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
HELD_AFTER = 4 * GROUP_BLOCKS  # blocks of the loss, which then waits for a test
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
    """The loss waits in its middle, when some groups of blocks are done."""
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
def test_a_warning_before_preemption(
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
    time.sleep(0.5)  # blocks that are computed now must not be done before it is heard
    hold.release()
    done = fit.outcome(timeout=30)  # so long batch systems wait
    done.rejected(f"interrupted by {number.name}", f"scrlm fit --resume {out}", code=code)
    assert not psutil.wait_procs(family, timeout=60)[1]
    assert record_of(out)["status"] == "interrupted"
    kept = len(groups(out))
    went_on = invoke("fit", "--resume", out).ok()
    assert "going on with a run that was stopped" in went_on.stderr
    assert record_of(out)["taken_over"] == {
        "survey": ROWS // BLOCK_ROWS,
        "loss": GROUP_BLOCKS * kept,
    }
    assert results_of(out) == undisturbed
    # whoever asks again, as a batch job does that is requeued, gets the result
    assert invoke("fit", "--resume", out, "--json").ok().json()["run"] == str(out)


def test_a_second_interrupt_stops_at_once(start, hold, features, tmp_path):
    out = tmp_path / "run"
    fit = start("fit", features, "--out", out, *FIT, "--nworkers", 1, **hold.environment)
    fit.until(lambda: groups(out))
    family = psutil.Process(fit.process.pid).children(recursive=True)
    # the worker is held in a block, and an orderly end waits for it; signals of one kind that come
    # together are one, so it may take more of them to have two
    deadline = time.monotonic() + 60
    while fit.process.poll() is None and time.monotonic() < deadline:
        os.kill(fit.process.pid, signal.SIGINT)
        time.sleep(0.1)
    hold.release()
    assert not psutil.wait_procs(family, timeout=60)[1]
    done = fit.outcome(timeout=1)
    assert done.code == INTERRUPTED
    assert "Error: stopped at once" in done.stderr.splitlines()
    # nothing of what is left behind complains on the terminal: not the workers, and not the process
    # of Python's that removes semaphores
    assert not {"Traceback", "Warning", "resource_tracker"} & set(re.findall(r"\w+", done.stderr))
    assert not (out / "model.zarr").exists()


def test_kill_nine_and_what_is_asked_the_next_time(
    start, invoke, hold, features, tmp_path, undisturbed, results_of, record_of
):
    out = tmp_path / "run"
    fit = start("fit", features, "--out", out, *FIT, "--nworkers", 0, **hold.environment)
    fit.until(lambda: len(groups(out)) > 1)
    fit.process.send_signal(signal.SIGSTOP)  # else it goes on while the others are looked at
    invoke("fit", features, "--out", out, *FIT).rejected(
        "is being written", str(fit.process.pid), code=REJECTED
    )
    fit.process.kill()
    fit.process.wait()
    assert record_of(out)["status"] == "running"
    other = invoke("fit", features, "--out", out, *FIT, "--rho", 0.4)
    other.rejected("config rho was 0.5 and is 0.4", "--overwrite", code=REJECTED)
    invoke("kmeans", "--resume", out).rejected("fit", code=REJECTED)
    # a group on a bad disk, and one that a full disk cut short
    first, second, *_ = sorted(groups(out)) + sorted(out.glob("checkpoint/*/survey-1/group.*"))
    content = first.read_bytes()
    first.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    second.write_bytes(second.read_bytes()[:100])
    done = invoke("fit", features, "--out", out, *FIT).ok()
    assert done.stderr.count("damaged; it is computed again") == 2
    assert results_of(out) == undisturbed
    assert not (out / "checkpoint").exists()


def test_a_stalled_cluster(start, hold, features, tmp_path, undisturbed, record_of):
    """A worker that hangs, and nobody notices; kernels are compiled by the undisturbed run."""
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
    assert "no block was finished for" in done.stderr
    state = json.loads((out / "cluster-state.json").read_text())
    (stuck,) = state["workers"].values()
    assert any("loss" in key for key in stuck["processing"])
    assert "Traceback" not in done.stderr
    assert record_of(out)["status"] in ("interrupted", "running")


def test_workers_that_never_come(start, dask_scheduler, features, tmp_path):
    dask = (str(Path(sys.executable).parent / "dask"),)
    file = tmp_path / "scheduler.json"
    where = ("--host", "127.0.0.1", "--port", 0, "--dashboard-address", "127.0.0.1:0")
    dask_scheduler(start("scheduler", *where, "--scheduler-file", file, program=dask), file)
    options = ("--scheduler-file", file, "--wait-workers", "1s")
    done = start("fit", features, "--out", tmp_path / "run", *options).outcome()
    done.rejected("no workers for 1 s", "--wait-workers", code=LOST)
    assert not (tmp_path / "run").exists()
