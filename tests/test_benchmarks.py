"""The benchmarks run, in small, and their own verdicts hold. No clock is looked at."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import benchmarks
from benchmarks import ingest, loss_cpu, paper_mixture

pytestmark = pytest.mark.cluster


def test_memory_stays_bounded_while_features_do_not() -> None:
    options = ["--gigabytes", "0.7", "--memory-limit", "700MB", "--clusters", "10"]
    # in a process of its own: the memory of the client is part of the verdict
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", *options],
        cwd=Path(benchmarks.__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    report = json.loads(done.stdout)
    assert report["ok"], report
    assert report["clusters"] == 10
    assert report["spilled_bytes"] == 0
    assert all(peak < 700e6 for peak in report["worker_peaks"].values())
    assert done.returncode == 0


def test_the_paper_mixture_is_recovered() -> None:
    done = CliRunner().invoke(
        paper_mixture.main,
        ["--seeds", "2", "--rows", "4000", "--features", "640", "--clusters", "20"],
    )
    assert "2 of 2 seeds hold" in done.stdout, done.output
    assert done.exit_code == 0


def test_the_loss_is_compared_with_the_product() -> None:
    done = CliRunner().invoke(
        loss_cpu.main,
        ["--rows", "4096", "--features", "64", "--candidates", "256", "--repeats", "1"],
    )
    assert done.exit_code == 0, done.output
    assert re.search(r"ratio +\d", done.stdout)


def test_an_ingest_is_compared_with_a_plain_copy() -> None:
    options = ["--gigabytes", "0.05", "--memory-limit", "700MB", "--chunk-bytes", "4000000"]
    done = CliRunner().invoke(ingest.main, options)
    report = json.loads(done.stdout)
    assert report["bounded"], report
    assert report["same_rows"]
    assert report["copy_bytes_per_second"] > 0
    assert report["ratio"] > 0  # at this size it is the clock's
