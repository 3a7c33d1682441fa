"""A run in sentences and tables: the numbers in them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scrlm_dask.events import IterationDone, PhaseFinished
from scrlm_dask.reporting.report_data import ReportData
from scrlm_dask.reporting.summary import comparison, method_name, run_facts, summary_sentences
from scrlm_dask.runs.record import KMeansRecord

STEPS = [(1, 9.0), (2, 2.5)]  # iterations and their inertia
PHASES = [
    PhaseFinished("survey", 1.0, 6, 24, 3, 5_000_000, 0.0),
    PhaseFinished("loss", 3.0, 6, 24, 3, 7_000_000, 0.0),
]


def with_record(data: ReportData, **changes: Any) -> ReportData:
    return replace(data, record=replace(data.record, **changes))


@pytest.fixture
def timed(found: ReportData) -> ReportData:
    """The run with times that are known."""
    return with_record(found, phases=PHASES, seconds=4.0)


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
    steps = [IterationDone(n, 6, False, inertia, 0.0, 1, 0, 0, 1.0) for n, inertia in STEPS]
    refined = with_record(timed, kmeans=KMeansRecord(steps, "max_iter"))
    sentences = summary_sentences(refined)
    assert sentences[0].startswith("SCRLM + k-means found")
    assert any("2 iterations" in s and "2.5: max_iter" in s for s in sentences)


@pytest.mark.parametrize(
    ("method", "kmeans", "name"),
    [
        ("scrlm", None, "SCRLM"),
        ("scrlm", KMeansRecord([], "tol"), "SCRLM + k-means"),
        ("k-means", KMeansRecord([], "tol"), "k-means"),
    ],
)
def test_names_of_methods(
    found: ReportData, method: str, kmeans: KMeansRecord | None, name: str
) -> None:
    assert method_name(replace(found.record, method=method, kmeans=kmeans)) == name


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
    other = with_record(timed, config={**timed.record.config, "rho": None}, seconds=12.25)
    rows = dict(comparison([timed, other]))
    assert rows["rho"] == ["1", "-"]
    assert rows["clusters"] == ["2", "2"]
    assert rows["outliers"] == ["16.67 %", "16.67 %"]
    assert rows["largest cluster"] == ["3 rows", "3 rows"]
    assert rows["inertia"] == ["5.5", "5.5"]
    assert rows["seconds"] == ["4.0", "12.2"]
    assert rows["largest worker"] == ["7.0 MB", "7.0 MB"]
