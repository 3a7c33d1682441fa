"""Speed of the machine, measured with the kernels of a fit on some rows."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from messages import expecting

from scrlm_dask.config import FitConfig, LloydConfig
from scrlm_dask.engine.features import as_features
from scrlm_dask.errors import InputError
from scrlm_dask.planning.calibration import Calibration, calibrate

X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)


def calibrated(x: np.ndarray = X, n_clusters: int = 2, **options: Any) -> Calibration:
    settings = {"rho": 0.5, "n_candidates": 10, "preprocess": "none", **options}
    return calibrate(as_features(x, 20), FitConfig(**settings).resolve(len(x)), n_clusters)


@pytest.mark.parametrize(
    ("options", "phases"),
    [
        ({}, ["survey", "loss", "extract", "assign"]),
        (
            {"polish": True, "refine": LloydConfig(3)},
            ["survey", "loss", "extract", "polish", "kmeans-step", "assign"],
        ),
        ({"rho": "auto", "n_candidates": "auto"}, ["survey", "kmeans-step", "assign", "scan"]),
    ],
    ids=["fit", "refined", "on a sample"],
)
def test_phases_of_the_fit_are_measured(options: dict[str, Any], phases: list[str]) -> None:
    found = calibrated(**options)
    assert list(found.rates) == phases
    assert found.rates["survey"].row == 0.0  # no moments are needed
    assert all(rate.row > 0.0 for name, rate in found.rates.items() if name != "survey")
    assert found.read.seconds >= found.read.cpu_seconds >= 0.0
    assert 20 <= found.rows <= 60
    assert found.seconds >= found.first_seconds >= found.load_seconds > 0.0
    assert found.notes == ()


def test_moments_are_measured_if_needed() -> None:
    assert calibrated(preprocess="standardize").rates["survey"].row > 0.0


def test_more_clusters_than_rows_are_scaled_and_noted() -> None:
    (note,) = calibrated(n_clusters=500).notes
    assert re.search(expecting(500), note)


@pytest.mark.parametrize("row", [0, 47])
def test_error_names_the_row_that_is_not_finite(row: int) -> None:
    x = X.copy()
    x[row, 1] = np.nan
    with pytest.raises(InputError, match=expecting(f"row {row}", "NaN")):
        calibrated(x, n_candidates=60)
