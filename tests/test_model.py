"""Attributes and repr of a model."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from messages import expecting

from scrlm_dask.config import FitConfig, KMeansConfig, LloydConfig
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.model import Model


def model(config: Any) -> Model:
    """Return a model with 3 clusters and 2 features, fitted on 10 rows with 4 outliers."""
    return Model(
        centers=np.zeros((3, 2)),
        center_rows=np.arange(3),
        losses=np.zeros(3),
        neighbors=np.ones(3, np.int64),
        means=np.zeros((3, 2)),
        counts=np.array([3, 2, 1]),
        weights=np.array([0.3, 0.2, 0.1]),
        sigmas=np.ones(3),
        outlier_weight=0.4,
        n_outliers=4,
        n_rows=10,
        n_candidates=5,
        inertia=1.0,
        affine=AffineMap("none", np.zeros(2), np.ones(2)),
        config=config,
    )


def test_shape_and_radius() -> None:
    fitted = model(FitConfig(rho=0.5, F=2.0))
    assert (fitted.n_clusters, fitted.n_features) == (3, 2)
    assert fitted.sq_radius == pytest.approx(0.5**2 * 2 * 2.0)  # R^2 = rho^2 p F
    assert fitted.radius == pytest.approx(1.0)


@pytest.mark.parametrize(
    "config", [KMeansConfig(3), FitConfig(rho=0.5, robust=False, refine=LloydConfig(2))]
)
def test_radius_is_infinite_without_outliers(config: Any) -> None:
    assert model(config).radius == model(config).sq_radius == math.inf


def test_repr() -> None:
    scrlm = repr(model(FitConfig(rho=0.25)))
    assert scrlm.startswith("Model(")
    assert re.search(expecting("3 clusters", "2 features", "rho=0.25", 4, 10), scrlm)
    assert "rho" not in repr(model(KMeansConfig(3)))
