"""Baselines with 50 % outliers: tables and notes about a baseline that fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from scrlm_dask.paper.baselines import METHODS, Method
from scrlm_dask.paper.methods import MethodGrid, define_methods


def test_failing_baseline_does_not_end_the_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(rows: object, clusters: int, seed: int) -> NDArray[np.int64]:
        raise ValueError("no\nconvergence")

    monkeypatch.setitem(METHODS, "spectral", Method("spectral", False, failing))
    monkeypatch.setattr(
        "scrlm_dask.paper.methods.SHOWN", {"spectral": "SC", "k-means++": "k-means++"}
    )
    experiment = define_methods("smoke", MethodGrid(1, 2, 16, 40, (2,), (16,), (40,)))
    results = {cell: experiment.measure(cell) for cell in experiment.cells}
    found = experiment.finish(results)
    accuracies, order = found.tables
    assert accuracies.header == ("accuracy %", "SCRLM", "SC", "k-means++")
    for setting, scrlm, failed, other in accuracies.lines:
        assert failed == "-"
        assert "-" not in (setting, scrlm, other)
    assert order.lines[-1] == ("SC", "-", "-", "0 of 1")
    for fact in ("SC", "m = 2, p = 16, N = 40", "ValueError: no convergence"):
        assert fact in found.notes[-1]
    assert "SC" not in {row["method"] for row in found.rows}
    assert found.figures()["methods.png"].startswith(b"\x89PNG")
