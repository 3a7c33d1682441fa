"""Commands whose system clock is set back while they run, or before they resume."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from holding import Hold
from shifted_clock import DAY, HOUR, ShiftedClock, needs_compiler

import scrlm_dask

pytestmark = [pytest.mark.slow, pytest.mark.cluster, needs_compiler]

ROWS, BLOCK_ROWS, GROUP_BLOCKS = 9_600, 200, 8
FIT = (
    *("--rho", 0.5, "--candidates", 400, "--block-rows", BLOCK_ROWS),
    *("--kmeans-iter", 2, "--persist", "no"),
)
# Dask's timers wait until the system clock has caught up, so it is set back by less on clusters.
STEPS = {"seconds": 1, "every": 2.0}
FUTURE = 2**33  # the year 2242, in seconds since 1970
REJECTED, LOST = 3, 4
DASK = (str(Path(sys.executable).parent / "dask"),)
LOOPBACK = ("--host", "127.0.0.1")


@pytest.fixture(scope="module")
def features(invoke, tmp_path_factory) -> Path:
    """Write a store whose files are newer than the clock."""
    out = tmp_path_factory.mktemp("features") / "features.zarr"
    size = ("--rows", ROWS, "--features", 32, "--clusters", 5, "--chunk-size", "32kB")
    invoke("synth", out, *size).ok()
    for path in out.rglob("*"):
        os.utime(path, (FUTURE, FUTURE))
    return out


@pytest.fixture(scope="module")
def undisturbed(invoke, features, results_of, tmp_path_factory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    invoke("fit", features, "--out", out, *FIT).ok()
    return results_of(out)


@pytest.fixture
def clock(tmp_path: Path) -> ShiftedClock:
    return ShiftedClock(tmp_path)


def durations_in(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for key, each in value.items():
            if key.endswith("seconds") and isinstance(each, int | float):
                yield each
            yield from durations_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from durations_in(each)


def check_times(out: Path, record: dict[str, Any]) -> None:
    """Check that no duration shows that the clock was set back."""
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    for content in (record, events):
        durations = list(durations_in(content))
        assert len(durations) > 5
        assert all(0.0 <= seconds < HOUR / 2 for seconds in durations)


@pytest.mark.parametrize(("workers", "steps"), [(2, STEPS), (0, {})], ids=["workers", "threads"])
def test_clock_set_back_during_a_fit(
    workers, steps, start, invoke, clock, features, tmp_path, undisturbed, results_of, record_of
):
    out = tmp_path / "run"
    fit = start("fit", features, "--out", out, *FIT, "--nworkers", workers, **clock.environment)
    with clock.set_back_repeatedly(**steps):
        done = fit.outcome().ok()
    assert "Traceback" not in done.stderr
    assert results_of(out) == undisturbed
    check_times(out, record_of(out))
    invoke("report", out, threads=False).ok()


def test_clock_of_one_worker_set_back(
    start, dask_scheduler, clock, features, tmp_path, undisturbed, results_of
):
    """The clocks of the scheduler, of the client and of the other worker are right."""
    file, out = tmp_path / "scheduler.json", tmp_path / "run"
    where = (*LOOPBACK, "--port", 0, "--dashboard-address", "127.0.0.1:0")
    scheduler = start("scheduler", *where, "--scheduler-file", file, program=DASK)
    options = ("--nthreads", 1, "--no-dashboard", "--preload", "scrlm_dask.preload")
    for environment in ({}, clock.environment):
        place = ("--scheduler-file", file, *LOOPBACK, "--local-directory", tmp_path)
        start("worker", *place, *options, program=DASK, **environment)
    dask_scheduler(scheduler, file, workers=2)
    fit = start("fit", features, "--out", out, *FIT, "--scheduler-file", file)
    with clock.set_back_repeatedly(**STEPS):
        fit.outcome().ok()
    assert results_of(out) == undisturbed


def test_resume_with_an_earlier_clock(
    start, clock, features, tmp_path, undisturbed, results_of, record_of
):
    out = tmp_path / "run"
    hold = Hold(tmp_path / "hold", after=4 * GROUP_BLOCKS)
    hold.take()
    common = ("--nworkers", 0, "--nthreads", 2)  # few, so that whole groups are done
    fit = start(
        "fit", features, "--out", out, *FIT, *common, **clock.environment, **hold.environment
    )
    fit.until(lambda: len(list(out.glob("checkpoint/centers-steps/loss-1-*/group.*"))) > 1)
    clock.set_back(DAY)
    # The first process is alive, so its lock of the run must not expire.
    other = start("fit", features, "--out", out, *FIT, *common, **clock.environment)
    other.outcome().rejected(str(out), str(fit.process.pid), code=REJECTED)
    fit.process.kill()
    fit.process.wait()
    kept = len(list(out.glob("checkpoint/centers-steps/loss-1-*/group.*")))
    began = record_of(out)["started"]
    done = start("fit", "--resume", out, *common, **clock.environment).outcome().ok()
    assert "Traceback" not in done.stderr
    record = record_of(out)
    assert datetime.fromisoformat(record["started"]) < datetime.fromisoformat(began)
    assert record["attempts"] == 2
    assert record["taken_over"] == {"survey": ROWS // BLOCK_ROWS, "loss": GROUP_BLOCKS * kept}
    assert results_of(out) == undisturbed
    check_times(out, record)


class StoppedError(Exception):
    pass


def test_ingest_resumed_with_an_earlier_clock(start, clock, tmp_path, files_of, without_times):
    rows = np.random.default_rng(0).normal(size=(ROWS, 8)).astype(np.float32)
    source, out, expected = tmp_path / "rows.npy", tmp_path / "out.zarr", tmp_path / "expected.zarr"
    np.save(source, rows)
    os.utime(source, (FUTURE, FUTURE))
    config = scrlm_dask.IngestConfig(chunk_bytes=BLOCK_ROWS * rows[0].nbytes)
    blocks = []

    def stop(event: Any) -> None:
        blocks.extend([event] if type(event).__name__ == "BlockDone" else [])
        if len(blocks) == 5:
            raise StoppedError

    with dask.config.set(scheduler="sync"):
        scrlm_dask.ingest([source], expected, config)
        with pytest.raises(StoppedError):
            scrlm_dask.ingest([source], out, config, listener=stop)
    clock.set_back(DAY)
    options = ("--chunk-size", config.chunk_bytes, "--nworkers", 0, "--json")
    ingest = start("ingest", source, out, *options, **clock.environment)
    with clock.set_back_repeatedly():
        assert ingest.outcome().json()["kept_blocks"] == 5
    assert without_times(files_of(out)) == without_times(files_of(expected))


def test_time_to_wait_for_workers(start, dask_scheduler, clock, features, tmp_path):
    file = tmp_path / "scheduler.json"
    where = (*LOOPBACK, "--port", 0, "--dashboard-address", "127.0.0.1:0")
    dask_scheduler(start("scheduler", *where, "--scheduler-file", file, program=DASK), file)
    options = ("--scheduler-file", file, "--wait-workers", "2s")
    fit = start("fit", features, "--out", tmp_path / "run", *options, **clock.environment)
    with clock.set_back_repeatedly():
        fit.outcome().rejected(str(file), "2", "--wait-workers", code=LOST)
