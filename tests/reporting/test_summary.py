"""Numbers in the sentences and tables about a run."""

from __future__ import annotations

import re
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
    """Return the data with known times."""
    return with_record(found, phases=PHASES, seconds=4.0)


def test_sentences(timed: ReportData) -> None:
    first, sizes, near, second, time = summary_sentences(timed)
    for fact in ("SCRLM", "2 clusters", "6 rows", "1 feature", "16.67 %"):
        assert fact in first
    assert re.search(r"\b3\b.*\b2\b.*\b2\b", sizes)  # largest, median, smallest
    distance, margin = timed.columns.median_distance, timed.columns.median_margin
    assert distance is not None
    assert timed.record.radius is not None
    for fact in (f"{distance:.4g}", f"{distance / timed.record.radius:.0%}"):
        assert fact in near
    assert f"{margin:.4g}" in second
    for fact in ("4.0 s", "75%", "loss", "7.0 MB"):
        assert fact in time


def test_iterations_have_a_sentence(timed: ReportData) -> None:
    steps = [IterationDone(n, 6, False, inertia, 0.0, 1, 0, 0, 1.0) for n, inertia in STEPS]
    refined = with_record(timed, kmeans=KMeansRecord(steps, "max_iter"))
    sentences = summary_sentences(refined)
    assert "SCRLM + k-means" in sentences[0]
    assert any(all(fact in s for fact in ("2 iterations", "2.5", "max_iter")) for s in sentences)


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
    assert re.match(r"6\b.*\b1\b", facts["Shape"])
    assert any("float32" in value and "3 blocks" in value for value in facts.values())
    assert (facts["rho"], facts["F"], facts["seed"]) == ("1", "2.5", "0")
    assert facts["radius"] == "1.58114"
    assert facts["preprocess"] == "none"
    assert "n_clusters" not in facts  # not given
    assert "scrlm" in facts["Versions"]
    assert dict(run_facts(replace(found, encoded="x.csv")))["Encoded"] == "x.csv"


def test_comparison_of_runs(timed: ReportData) -> None:
    other = with_record(timed, config={**timed.record.config, "rho": None}, seconds=12.25)
    rows = dict(comparison([timed, other]))
    assert rows["rho"] == ["1", "-"]
    assert rows["clusters"] == ["2", "2"]
    assert rows["outliers"] == ["16.67 %", "16.67 %"]
    assert ["3 rows", "3 rows"] in rows.values()  # the largest cluster
    assert rows["inertia"] == ["5.5", "5.5"]
    assert rows["seconds"] == ["4.0", "12.2"]
    assert ["7.0 MB", "7.0 MB"] in rows.values()  # peak memory of a worker
