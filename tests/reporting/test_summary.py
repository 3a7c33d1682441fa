"""A run in sentences and tables: the numbers in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from scrlm_dask.reporting.report_data import ReportData
from scrlm_dask.reporting.summary import comparison, method_name, run_facts, summary_sentences

PHASE = {"rows": 6, "bytes": 24, "read_seconds": 0.0}
PHASES = [
    {"name": "survey", "seconds": 1.0, "peak_worker_bytes": 5_000_000, **PHASE},
    {"name": "loss", "seconds": 3.0, "peak_worker_bytes": 7_000_000, **PHASE},
]


@pytest.fixture
def timed(found: ReportData) -> ReportData:
    """The run with times that are known."""
    return replace(found, record={**found.record, "phases": PHASES, "seconds": 4.0})


def test_sentences(timed: ReportData) -> None:
    first, sizes, near, second, time = summary_sentences(timed)
    assert first.startswith("SCRLM found 2 clusters in 6 rows of 1 features")
    assert "1 rows (16.67 %) as outliers" in first
    assert "3 rows, the median one 2 and the smallest 2; one holds half" in sizes
    assert "of the radius" in near
    assert "farther" in second
    assert "4.0 s, 75% of them for loss" in time
    assert "7.0 MB" in time


def test_iterations_have_a_sentence(timed: ReportData) -> None:
    kmeans = {"stopped": "max_iter", "iterations": [{"inertia": 9.0}, {"inertia": 2.5}]}
    refined = replace(timed, record={**timed.record, "kmeans": kmeans})
    sentences = summary_sentences(refined)
    assert sentences[0].startswith("SCRLM + k-means found")
    assert any("2 iterations" in s and "2.5: max_iter" in s for s in sentences)


@pytest.mark.parametrize(
    ("record", "name"),
    [
        ({"method": "scrlm"}, "SCRLM"),
        ({"method": "scrlm", "kmeans": {}}, "SCRLM + k-means"),
        ({"method": "k-means", "kmeans": {}}, "k-means"),
    ],
)
def test_names_of_methods(record: dict[str, object], name: str) -> None:
    assert method_name(record) == name


def test_settings_and_input(found: ReportData, run_by_hand: Path) -> None:
    facts = dict(run_facts(found))
    assert facts["Run"] == str(run_by_hand)
    assert facts["Features"] == str(run_by_hand.parent / "x.zarr")
    assert facts["Shape"] == "6 rows x 1 features"
    assert facts["Stored as"] == "float32, 3 blocks"
    assert (facts["rho"], facts["F"], facts["seed"]) == ("1", "2.5", "0")
    assert facts["radius"] == "1.58114"
    assert facts["preprocess"] == "none"
    assert "n_clusters" not in facts  # not given
    assert "scrlm" in facts["Versions"]
    assert (
        dict(run_facts(replace(found, encoded="texts of a by b")))["Encoded"] == "texts of a by b"
    )


def test_runs_next_to_each_other(timed: ReportData) -> None:
    config = {**timed.record["config"], "rho": None}
    other = replace(timed, record={**timed.record, "config": config, "seconds": 12.25})
    rows = dict(comparison([timed, other]))
    assert rows["rho"] == ["1", "-"]
    assert rows["clusters"] == ["2", "2"]
    assert rows["outliers"] == ["16.67 %", "16.67 %"]
    assert rows["largest cluster"] == ["3 rows", "3 rows"]
    assert rows["inertia"] == ["5.5", "5.5"]
    assert rows["seconds"] == ["4.0", "12.2"]
    assert rows["largest worker"] == ["7.0 MB", "7.0 MB"]
