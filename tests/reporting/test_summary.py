"""Numbers in the sentences and tables about a run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from messages import expecting
from reporting.level_records import LEVEL_SCAN, LEVELS, NO_LEVELS

from scrlm_dask.events import IterationDone, PhaseFinished
from scrlm_dask.kernels.bandwidth.modularity import Levels
from scrlm_dask.reporting.report_data import ReportData
from scrlm_dask.reporting.summary import (
    comparison,
    method_name,
    run_facts,
    shows_structure,
    summary_sentences,
)
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
    assert re.match(r"1\.58114 .*\brho\b", facts["radius"])
    assert facts["preprocess"] == "none"
    assert "n_clusters" not in facts  # not given
    assert "scrlm" in facts["Versions"]
    assert dict(run_facts(replace(found, encoded="x.csv")))["Encoded"] == "x.csv"


def with_levels(data: ReportData, levels: Levels = LEVELS) -> ReportData:
    return with_record(data, scan=replace(LEVEL_SCAN, levels=levels).to_json())


def test_choice_by_modularity_has_sentences(timed: ReportData) -> None:
    found, choice, others, *_ = summary_sentences(with_levels(timed))
    assert found == summary_sentences(timed)[0]
    assert re.match(expecting("90%", "clear", "0.43"), choice)
    assert re.match(expecting("11", "54", "8", "76"), others)
    assert len(summary_sentences(with_levels(timed))) == len(summary_sentences(timed)) + 2


def test_clusters_without_structure_are_not_found(timed: ReportData) -> None:
    arbitrary = with_levels(timed, NO_LEVELS)
    assert shows_structure(timed)
    assert not shows_structure(arbitrary)
    first, choice, unstable, *_ = summary_sentences(arbitrary)
    assert "found" in summary_sentences(timed)[0]
    assert "found" not in first
    assert re.match(expecting("2 clusters", "6 rows", "1 feature", "16.67 %"), first)
    assert re.match(expecting("none", "arbitrary", "0.04"), choice)
    assert "0.25" in unstable


def test_choices_of_the_scan_are_facts(found: ReportData) -> None:
    facts = dict(run_facts(with_levels(found)))
    assert re.match(expecting("clear", "0.43"), facts["structure"])
    assert any("11 to 54" in value and "fine 76" in value for value in facts.values())
    assert "ARI 0.75" in facts.values()
    shown = {name: value for name, value in facts.items() if name.startswith("modularity")}
    for (name, value), facts_of in zip(
        shown.items(), (("standardize", "0.75", "0.44"), ("center", "0.78", "0.40")), strict=True
    ):
        assert re.match(expecting(*facts_of), f"{name} {value}")
    assert "rho" not in facts  # neither given nor chosen
    assert not any("9.1 %" in value for value in facts.values())  # the run has a radius
    every_row = dict(run_facts(with_levels(with_record(found, radius=None))))
    (outside,) = (value for value in every_row.values() if "9.1 %" in value)
    assert re.match(expecting("29.8", "-1"), outside)
    assert "--outliers auto" in outside
    assert "radius" not in every_row


def test_reason_for_the_radius(found: ReportData) -> None:
    config = {**found.record.config, "radius": 3.5}
    radius = with_record(found, config=config, radius=3.5)
    reasons = [
        dict(run_facts(replace(radius, asked=asked)))["radius"]
        for asked in ({"radius": 3.5}, {"outlier_share": 0.02}, {"outlier_share": "auto"})
    ]
    assert all(reason.startswith("3.5 ") for reason in reasons)
    assert len(set(reasons)) == 3
    assert "2.00 %" in reasons[1]
    chosen = dict(run_facts(replace(found, asked={"preprocess": "auto"})))["preprocess"]
    assert chosen.startswith("none ")


def test_comparison_of_runs(timed: ReportData) -> None:
    other = with_record(timed, config={**timed.record.config, "rho": None}, seconds=12.25)
    rows = dict(comparison([timed, other]))
    assert rows["rho"] == ["1", "-"]
    assert rows["preprocess"] == ["none", "none"]
    chosen = dict(comparison([timed, with_levels(timed)]))
    assert chosen["structure"] == ["-", "clear"]
    assert chosen["rho"] == ["1", "-"]
    assert rows["clusters"] == ["2", "2"]
    assert rows["outliers"] == ["16.67 %", "16.67 %"]
    assert ["3 rows", "3 rows"] in rows.values()  # the largest cluster
    assert rows["inertia"] == ["5.5", "5.5"]
    assert rows["seconds"] == ["4.0", "12.2"]
    assert ["7.0 MB", "7.0 MB"] in rows.values()  # peak memory of a worker
