"""`scrlm cut` that a signal stops while it builds the merge tree."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import psutil
import pytest

pytestmark = pytest.mark.slow

CLUSTERS, FEATURES = 9_000, 1024  # more than 5000 clusters; a warning announces the long time


@pytest.fixture(scope="module")
def run(invoke, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("many-clusters")
    rows = np.random.default_rng(0).normal(size=(CLUSTERS, FEATURES)).astype(np.float32)
    np.save(folder / "rows.npy", rows)
    invoke("ingest", folder / "rows.npy", folder / "x.zarr").ok()
    options = ("--clusters", CLUSTERS, "--init", "random", "--max-iter", 1)
    invoke("kmeans", folder / "x.zarr", "--out", folder / "run", *options).ok()
    return folder / "run"


@pytest.mark.parametrize(
    ("signals", "code"),
    [((signal.SIGINT,), 130), ((signal.SIGTERM,), 143), ((signal.SIGINT, signal.SIGINT), 130)],
)
def test_signal_ends_the_construction_of_a_tree(
    start, run, files_of, tmp_path, signals, code
) -> None:
    out, before = tmp_path / "labels.zarr", files_of(run)
    cut = start("cut", run, "--clusters", 10, "--out", out)
    process = psutil.Process(cut.process.pid)
    cut.wait_for(f"{CLUSTERS} clusters")  # the warning
    begin = process.cpu_times().user
    cut.until(lambda: process.cpu_times().user > begin + 2)  # the kernels are loaded and run
    assert cut.process.poll() is None
    for number in signals:
        cut.process.send_signal(number)
    done = cut.outcome()
    assert (done.code, done.stdout) == (code, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("Error: ")
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
    assert files_of(run) == before
