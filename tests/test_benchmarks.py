"""Benchmarks run at a small size and pass their own checks; times are not checked."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import benchmarks
from benchmarks import embeddings, ingest, loss_cpu, paper_mixture, plan, run
from benchmarks.overhead import busy_seconds
from benchmarks.report import Table
from benchmarks.scaling import exponents, worker_numbers

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


def test_memory_stays_below_the_limit_for_larger_features() -> None:
    options = ["--gigabytes", "1.0", "--memory-limit", "800MB", "--clusters", "10"]
    # A separate process, because the memory of the client is part of the result.
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
    assert all(peak < 800e6 for peak in report["worker_peaks"].values())
    assert done.returncode == 0


def test_paper_mixture_is_recovered() -> None:
    done = CliRunner().invoke(
        paper_mixture.main,
        [
            *("--seeds", "2", "--rows", "4000", "--features", "640"),
            *("--clusters", "20", "--nworkers", "1"),
        ],
    )
    assert "2 of 2 seeds" in done.stdout, done.output
    assert done.exit_code == 0


def test_loss_is_compared_with_a_matrix_product() -> None:
    done = CliRunner().invoke(
        loss_cpu.main,
        [
            *("--rows", "4096", "--features", "64", "--candidates", "256"),
            *("--repeats", "1", "--nworkers", "1"),
        ],
    )
    assert done.exit_code == 0, done.output
    assert re.search(r"ratio +\d", done.stdout)


def test_ingest_is_compared_with_a_plain_copy() -> None:
    options = ["--gigabytes", "0.05", "--memory-limit", "700MB", "--chunk-bytes", "4000000"]
    done = CliRunner().invoke(ingest.main, options)
    report = json.loads(done.stdout)
    assert report["bounded"], report
    assert report["same_rows"]
    assert report["copy_bytes_per_second"] > 0
    assert report["ratio"] > 0  # at this size the ratio is noise


def test_all_benchmarks_run_from_one_command(tmp_path: Path) -> None:
    options = ["--size", "smoke", "--out", str(tmp_path / "out"), "--data", str(tmp_path / "data")]
    # A separate process, so that plots and workers do not depend on modules loaded by tests.
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.run", *options],
        cwd=Path(benchmarks.__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["machine"]["cores"]
    parts = results["parts"]
    assert parts.keys() == run.PARTS.keys()
    for name, part in parts.items():
        assert part["status"] == "done", (name, part["why"])
        assert has_numbers(part["tables"]), name
        assert all((tmp_path / "out" / plot).stat().st_size for plot in part["plots"])
    assert [name for name in parts if parts[name]["plots"]] == ["scaling", "overhead", "baselines"]
    report = (tmp_path / "out" / "results.md").read_text()
    for title in (table["title"] for part in parts.values() for table in part["tables"]):
        assert title in report
        assert title in done.stdout


def has_numbers(tables: list[dict[str, Any]]) -> bool:
    return bool(tables) and all(
        any(isinstance(value, float) for value in row.values())
        for table in tables
        for row in table["rows"][:1]  # libraries in later rows may not be installed
    )


def test_failing_part_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(lab: run.Lab) -> Iterator[Table]:
        yield Table("Before", [{"cpu_s": 1.0}])
        raise RuntimeError("no luck")

    def lacks(lab: run.Lab) -> Iterator[Table]:
        raise run.SkippedError("dask-ml missing")
        yield

    def works(lab: run.Lab) -> Iterator[Table]:
        yield Table("After", [{"rows": 131_072, "cpu_s": 2.345678, "peak_MB": None}])

    for name, part in {"loss": fails, "kmeans": lacks, "pruning": works}.items():
        monkeypatch.setitem(run.PARTS, name, part)
    names = ("pruning", "kmeans", "loss")
    only = [word for name in names for word in ("--only", name)]
    done = CliRunner().invoke(run.main, ["--size", "smoke", "--out", str(tmp_path), *only])
    assert done.exit_code == 1, done.output
    parts = json.loads((tmp_path / "results.json").read_text())["parts"]
    assert {name: (part["status"], part["why"]) for name, part in parts.items()} == {
        "loss": ("failed", "RuntimeError: no luck"),
        "kmeans": ("skipped", "dask-ml missing"),
        "pruning": ("done", ""),
    }
    assert parts["loss"]["tables"][0]["rows"] == [{"cpu_s": 1.0}]
    assert "| 131 072 | 2.35 |  |" in (tmp_path / "results.md").read_text()


def test_worker_is_busy_while_any_block_is_processed() -> None:
    def task(name: str, worker: str, start: float, stop: float) -> dict[str, Any]:
        moments = [{"action": "compute", "start": start, "stop": stop}]
        return {"key": (f"{name}-{'0' * 32}", 0), "worker": worker, "startstops": moments}

    stream = [
        task("loss", "a", 0.0, 2.0),
        task("loss", "a", 1.0, 3.0),  # prefetched
        task("loss", "a", 1.5, 1.75),
        task("loss", "a", 5.0, 6.0),
        task("loss", "b", 0.0, 1.0),
        task("loss-merge", "b", 1.0, 9.0),
    ]
    assert busy_seconds(stream, "loss") == 3.0 + 1.0 + 1.0


def test_exponents_of_power_laws() -> None:
    points = [
        {"pass": "loss", "in": axis, "value": x, "cpu_s": 3 * x**power, "product_cpu_s": x}
        for axis, power in (("N", 1.0), ("p", 0.5))
        for x in (2.0, 4.0, 8.0)
    ]
    rows = [(row["in"], row["exponent"], row["product_exponent"]) for row in exponents(points)]
    one, half = pytest.approx(1.0), pytest.approx(0.5)
    assert rows == [("N", one, one), ("p", half, one)]


@pytest.mark.parametrize(("cores", "numbers"), [(1, [1]), (2, [2, 1]), (6, [6, 4, 2, 1])])
def test_numbers_of_workers_double_up_to_the_cores(cores: int, numbers: list[int]) -> None:
    assert worker_numbers(cores) == numbers


def test_plan_is_compared_with_the_fit() -> None:
    options = ["--rows", "8000", "--features", "32", "--clusters", "5", "--kmeans-iter", "1"]
    options += ["--nworkers", "1"]
    done = CliRunner().invoke(plan.main, options)
    report = json.loads(done.stdout)
    assert set(report["phases"]) == {"survey", "loss", "extract", "kmeans-step", "assign"}
    assert all(phase["predicted"] > 0 for phase in report["phases"].values())
    memory = report["worker_bytes"]
    assert max(memory["measured"]) <= memory["predicted"]


def test_methods_are_compared_on_labelled_rows() -> None:
    methods = ["--methods", "scrlm", "--methods", "hdbscan"]
    done = CliRunner().invoke(embeddings.main, ["compare", "digits", "--rows", "300", *methods])
    assert done.exit_code == 0, done.output
    rows = cells(done.stdout)
    assert [(row["data"], row["method"]) for row in rows] == [
        ("digits", "scrlm"),
        ("digits", "hdbscan"),
    ]
    assert all(int(row["clusters"]) >= 0 for row in rows)
    assert all(float(row["AMI"]) <= 1.0 for row in rows)


def test_fits_without_parameters_are_compared_with_the_best_number_of_clusters() -> None:
    options = ["levels", "digits", "--rows", "300", "--seeds", "2"]
    done = CliRunner().invoke(embeddings.main, options)
    assert done.exit_code == 0, done.output
    (row,) = cells(done.stdout)
    assert row["rows x features"] == "300 x 64"
    assert float(row["best AMI"]) > 0.0
    assert 2 <= int(row["at m"]) <= 300 // 8


def cells(table: str) -> list[dict[str, str]]:
    """Return the rows of a Markdown table."""
    titles, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()
    ]
    return [dict(zip(titles, row, strict=True)) for row in rows]
