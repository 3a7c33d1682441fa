"""Tables of results: every number is shown with its unit."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from by_hand import CONFIG, ROWS, SCAN
from messages import expecting
from reporting.level_records import LEVEL_SCAN, LEVELS, NO_LEVELS
from rich.console import Console
from scrlm_cli.commands.clustering import summary
from scrlm_cli.tables import summaries

import scrlm_dask
from scrlm_dask.events import IterationDone, PhaseFinished
from scrlm_dask.kernels.bandwidth.modularity import CutTrial, Levels
from scrlm_dask.runs.lifecycle import FitResult
from scrlm_dask.runs.record import KMeansRecord, ScanRecord


def cells(shown: Any) -> list[list[str]]:
    """Return the cells of a table or a group of tables, row by row."""
    console = Console(width=200)
    with console.capture() as text:
        console.print(shown)
    lines = [line.replace("┃", "│") for line in text.get().splitlines()]
    rows = [[cell.strip() for cell in line.split("│")] for line in lines if "│" in line]
    return [row[1:-1] for row in rows]


def test_facts_with_units() -> None:
    content = {
        "bytes": 64_000_000,
        "rows": 12_345,
        "outlier_share": 0.25,
        "nmi": 0.123456789,
        "outlier_recall": float("nan"),
        "radius": None,
        "complete": True,
        "name": "x",
    }
    assert cells(summaries.facts("Found", content)) == [
        ["bytes", "64.0 MB"],
        ["rows", "12,345"],
        ["outlier share", "25.00 %"],
        ["nmi", "0.123457"],
        ["outlier recall", "-"],
        ["radius", "-"],
        ["complete", "True"],
        ["name", "x"],
    ]


def test_phases_with_units() -> None:
    phases = {
        "loss": PhaseFinished("loss", 0.5, 1000, 4_000_000, 2, 200_000_000, 0.25),
        "kmeans-step x 2": PhaseFinished("kmeans-step", 4.0, 2000, 8_000_000, 4, 300_000_000, 0.5),
    }
    assert cells(summaries.phases_table(phases))[1:] == [
        ["loss", "0.50", "2,000", "4.0 MB", "0.25 s", "200.0 MB"],
        ["kmeans-step x 2", "4.00", "500", "8.0 MB", "0.50 s", "300.0 MB"],
    ]


def test_clusters_of_a_model() -> None:
    model = scrlm_dask.fit(ROWS, CONFIG).model
    head, first, second = cells(summaries.clusters_table(model))
    assert head[:5] == ["cluster", "rows", "weight", "sigma", "loss"]
    assert len(head) == 6  # the last one is the row of the center
    unit_length = replace(model, affine=replace(model.affine, kind="l2"))
    titles = [summaries.clusters_table(each).title for each in (model, unit_length)]
    assert all("sigma" in str(title) for title in titles)
    assert titles[0] != titles[1]  # the units of sigma
    polished = replace(model, config=replace(model.config, polish=True))
    assert cells(summaries.clusters_table(polished))[0][5] != head[5]  # a moved center is not a row
    assert (first[:2], first[4:]) == (["0", "3"], ["-3.0", "1"])
    assert (second[:2], second[4:]) == (["1", "2"], ["-1.5", "3"])


def test_only_the_first_clusters_are_shown() -> None:
    config = scrlm_dask.KMeansConfig(12, "random")
    model = scrlm_dask.kmeans(np.arange(12.0)[:, None], config).model
    rows = cells(summaries.clusters_table(model))
    assert rows[0] == ["cluster", "rows", "weight", "sigma"]  # k-means has no losses
    assert [row[0] for row in rows[1:]] == [str(k) for k in range(10)]


def iteration(number: int, inertia: float, sampled: bool = False) -> IterationDone:
    return IterationDone(number, 100, sampled, inertia, math.inf, 1000, 0, 0, 0.125)


def test_iterations_as_bars() -> None:
    two = [iteration(1, 300.0, True), iteration(2, 100.0)]
    assert cells(summaries.iterations_table(KMeansRecord(two, "tol")))[1:] == [
        ["1 (sample)", "300", "█" * 8, "-", "1,000", "0", "0.12"],
        ["2", "100", "█", "-", "1,000", "0", "0.12"],
    ]
    many = [iteration(i, 1000.0 - i) for i in range(50)]
    table = summaries.iterations_table(KMeansRecord(many, "tol"))
    numbers = [row[0] for row in cells(table)[1:]]
    assert numbers == [*map(str, range(10)), "...", *map(str, range(40, 50))]


def test_trial_bandwidths_of_the_chosen_interval_are_marked() -> None:
    content = SCAN.to_json()
    trial = {"clusters": 5, "coverage": 0.75, "shell": 0.125, "neighbors": (1, 20, 30)}
    trial = {**content["rungs"][0], **trial}
    content["rungs"] = [
        {**trial, "rho": rho, "held_out": held_out}
        for rho, held_out in ((0.25, None), (0.5, 0.5), (1.0, 1.0))
    ]
    record = ScanRecord.from_json({**content, "low": 0.5, "high": 0.75})
    assert cells(summaries.scan_table(record))[1:] == [
        ["", "0.25", "5", "25.0%", "0.125", "20", "-"],
        ["█", "0.5", "5", "25.0%", "0.125", "20", "0.5"],
        ["", "1", "5", "25.0%", "0.125", "20", "1"],
    ]


@pytest.mark.parametrize(
    ("basis", "longer"), [("stretch", False), ("dip", False), ("held-out", True), ("given", True)]
)
def test_title_of_trial_bandwidths(basis: str, longer: bool) -> None:
    title = str(summaries.scan_table(replace(SCAN, basis=basis)).title)
    assert re.match(expecting("sample", "10"), title)
    clear = str(summaries.scan_table(SCAN).title)
    assert (len(title) > len(clear)) == longer


def test_equal_bandwidths_are_shown_if_there_are_several() -> None:
    rows = cells(summaries.scan_facts(SCAN))
    assert value(rows, "equivalent rho") == "0.4 to 0.6"
    alone = cells(summaries.scan_facts(replace(SCAN, low=0.5, high=0.5)))
    assert not names_among(alone, "equivalent rho")
    assert len(alone) == len(rows) - 1


@pytest.mark.parametrize(
    ("basis", "preprocess", "shown"),
    [
        ("stretch", "standardize", True),
        ("dip", "standardize", True),
        ("given", "standardize", True),
        ("held-out", "standardize", False),
        ("persistent", "standardize", False),
        ("stretch", "l2", False),
    ],
)
def test_assumption_of_the_paper(basis: str, preprocess: str, shown: bool) -> None:
    record = replace(SCAN, basis=basis, preprocess=preprocess)
    found = [row[1] for row in cells(summaries.scan_facts(record)) if "sigma" in row[0]]
    assert len(found) == shown
    assert all("sigma_max 0.2 " in text for text in found)  # followed by its units


def test_numbers_of_clusters_are_shown_if_modularity_decided() -> None:
    head, *rows = cells(summaries.scan_table(LEVEL_SCAN))
    assert (head[2], head[-1]) == ("clusters", "modularity")
    assert rows == [
        ["", "", "2", "99.0 %", "50.0 %", "0.240"],
        ["", "coarse", "8", "95.0 %", "12.5 %", "0.762"],
        ["█", "", "11", "94.0 %", "10.0 %", "0.790"],
        ["█", "default", "19", "90.0 %", "5.0 %", "0.825"],
        ["█", "", "54", "80.0 %", "2.0 %", "0.770"],
        ["", "fine", "76", "70.0 %", "1.0 %", "0.685"],
    ]


def test_crowded_numbers_of_clusters_are_thinned_out() -> None:
    numbers = (2, 3, 4, 5, 6, 7, 8, 10, *range(17, 45), 64, 128, 256, 512, 1024)
    trials = tuple(CutTrial(m, 0.9, 1 / m) for m in numbers)
    levels = replace(LEVELS, clusters=31, low=30, high=33, coarse=10, fine=64, trials=trials)
    rows = cells(summaries.scan_table(replace(LEVEL_SCAN, levels=levels)))[1:]
    shown = [int(row[2].replace(",", "")) for row in rows]
    assert len(shown) == 25
    assert shown == sorted(shown)
    assert {2, 10, 30, 31, 33, 64, 1024} <= set(shown)  # levels and ends
    assert {row[1]: row[2] for row in rows if row[1]} == {
        "coarse": "10",
        "default": "31",
        "fine": "64",
    }
    assert set(shown) >= {3, 4, 5, 128, 256, 512}  # only crowded numbers are omitted
    few = replace(levels, trials=trials[:20])
    assert len(summaries._thin_out(few)) == 20


def value(rows: list[list[str]], name: str) -> str:
    """Return the value of a fact, which is shown once."""
    (found,) = (row[1] for row in rows if row[0] == name)
    return found


def names_among(rows: list[list[str]], *names: str) -> set[str]:
    return {row[0] for row in rows} & set(names)


def test_facts_of_a_choice_by_modularity() -> None:
    rows = cells(summaries.scan_facts(LEVEL_SCAN))
    assert re.match(expecting("19", "11 to 54"), value(rows, "clusters"))
    assert value(rows, "levels") == "coarse 8, fine 76"
    assert re.match(expecting("clear", "0.43", "0.2"), value(rows, "structure"))
    assert value(rows, "agreement of two samples") == "ARI 0.75"
    assert value(rows, "preprocess") == "center"
    assert re.match(expecting("0.75", "0.44"), value(rows, "modularity of standardize"))
    assert re.match(expecting("0.78", "0.40"), value(rows, "modularity of center"))
    outside = value(rows, "outside the radius")
    assert re.match(expecting("9.1 %", "29.8", "auto"), outside)
    assert "--outliers" in outside
    assert not names_among(rows, "rho", "equivalent rho", "reason")
    assert not any("sigma" in row[0] for row in rows)
    assert value(rows, "candidates") == "5"  # the theory does not cover merged clusters


def test_facts_without_levels_and_structure() -> None:
    record = replace(LEVEL_SCAN, levels=NO_LEVELS, representations=[], null=None)
    rows = cells(summaries.scan_facts(record))
    assert not names_among(rows, "levels", "outside the radius")
    assert not any(row[0].startswith("modularity") for row in rows)
    assert re.search(r"\D 19$", value(rows, "clusters"))  # not the number alone, and no interval
    assert re.match(expecting("none", "0.04", "0.12"), value(rows, "structure"))
    agreement = value(rows, "agreement of two samples")
    assert re.match(expecting("ARI 0.25", "sample", "seed"), agreement)


def summarize(
    levels: Levels | None = None, radius: float | None = None, asked: dict[str, Any] | None = None
) -> list[list[str]]:
    """Return the cells of the summary of a fit with the given levels and requested config."""
    result = scrlm_dask.fit(ROWS, CONFIG)
    record = {**result.record, "radius": radius, "asked": {"config": asked or {}}}
    record["config"] = {**record["config"], "preprocess": "center", "radius": radius}
    if levels is not None:
        record["scan"] = replace(LEVEL_SCAN, levels=levels).to_json()
    changed = FitResult(result.model, None, record)
    return cells(summaries.fit_summary(summary(changed, "run"), changed))


def test_fit_shows_the_chosen_number_of_clusters() -> None:
    rows = summarize(LEVELS, asked={"preprocess": "auto"})
    facts = expecting("2 clusters", "11 to 54", "coarse 8", "fine 76", "clear")
    assert re.match(facts, value(rows, "clusters"))  # the fit has two clusters
    assert value(rows, "preprocess").startswith("center ")
    assert value(rows, "agreement of two samples") == "ARI 0.75"
    assert "--outliers auto" in value(rows, "outside the radius")
    assert not names_among(rows, "levels", "rho")  # levels are shown with the clusters
    rows = summarize(NO_LEVELS)
    assert re.match(expecting("2 clusters", "none", "arbitrary"), value(rows, "clusters"))
    assert "0.25" in value(rows, "agreement of two samples")
    assert "seed" in value(rows, "agreement of two samples")


def test_fit_without_a_scan_shows_its_settings() -> None:
    rows = summarize(asked={"preprocess": "center"})
    assert value(rows, "preprocess") == "center"
    assert value(rows, "rho") == "1"
    assert not names_among(rows, "radius", "outlier share")  # every row has a label
    assert not re.search(r"\d", value(rows, "outliers"))


def test_fit_shows_the_reason_for_the_radius() -> None:
    requests: list[dict[str, Any]] = [
        {"radius": 3.5},
        {"outlier_share": 0.02},
        {"outlier_share": "auto"},
    ]
    reasons = []
    for asked in requests:
        rows = summarize(LEVELS, 3.5, asked)
        reasons.append(value(rows, "radius"))
        assert value(rows, "outliers") == "1"
        assert value(rows, "outlier share") == "16.67 %"
        assert not names_among(rows, "outside the radius")
    assert len(set(reasons)) == 3
    assert all(reason.startswith("3.5 ") for reason in reasons)
    assert "2.00 %" in reasons[1]


def test_planned_costs_count_every_iteration() -> None:
    phase = {"name": "kmeans-step", "times": 3, "flops": 2e9, "bytes": 5_000_000, "seconds": 1.5}
    content = {
        **{"rows": 10, "features": 2, "candidates": 3, "clusters": 2, "workers": 1, "threads": 4},
        **{"flops": 6e9, "bytes": 15_000_000, "worker_bytes": 700, "client_bytes": 90},
        **{"seconds": 5.5, "start_seconds": 1.0, "memory_limit": None},
        "phases": [{**phase, "worker_bytes": 700}],
    }
    rows = cells(summaries.plan_summary(content))
    assert ["kmeans-step x 3", "6e+09", "15.0 MB", "700 B", "4.5"] in rows
    assert ["6e+09", "15.0 MB", "700 B", "5.5"] in [row[1:] for row in rows]  # the total
    limited = cells(summaries.plan_summary({**content, "memory_limit": 2 * 10**9}))
    position = [row[1] for row in limited].index("2.0 GB")
    assert not re.search(r"\d", rows[position][1])  # no memory limit


def test_methods_with_deviation_and_reason_of_failure() -> None:
    names = ("accuracy", "purity", "nmi", "ari", "outlier_precision", "outlier_recall")
    mean = {**dict.fromkeys(names, 0.5), "cpu_seconds": 2000.0, "wall_seconds": 2.0}
    mean |= {"peak_bytes": 3e6, "outlier_precision": float("nan")}
    scores = {"method": "ours", "seeds": [0, 1], "mean": mean, "deviation": mean, "reason": None}
    none = {**scores, "method": "other", "mean": dict.fromkeys(mean), "reason": "OOM"}
    console = Console(width=160)
    with console.capture() as text:
        content = {"rows": 1000, "features": 2, "methods": [scores, none]}
        console.print(summaries.comparison_table(content))
    lines = text.get().splitlines()
    assert re.findall(r"[\d,]+", lines[0]) == ["1,000", "2"]
    (ours,) = (line.split() for line in lines if "ours" in line)
    assert ours == ["ours", "50.00", "50.00", "0.500", "0.500", "-", "50.00", "2,000", "2.00", "3"]
    assert any("±50.00" in line for line in lines)
    assert "other: OOM" in lines
