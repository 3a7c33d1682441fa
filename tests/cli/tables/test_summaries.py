"""Tables of results: every number is shown with its unit."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
from by_hand import CONFIG, ROWS, SCAN
from rich.console import Console
from scrlm_cli.tables import summaries

import scrlm_dask
from scrlm_dask.events import IterationDone, PhaseFinished
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
