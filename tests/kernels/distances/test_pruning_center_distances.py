"""Half the distance to the nearest other center is never overestimated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from scrlm_dask.kernels.distances import pruning as gaps
from scrlm_dask.kernels.distances.points import prepare_points
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.kernels.distances.pruning import half_center_distances


def plain(p: int) -> AffineMap:
    return AffineMap("none", np.zeros(p), np.ones(p))


def test_centers_on_a_line() -> None:
    found = half_center_distances(
        prepare_points(np.array([[0.0], [2.0], [10.0], [10.0]]), plain(1))
    )
    np.testing.assert_allclose(found, [1.0, 1.0, 0.0, 0.0], rtol=1e-5, atol=1e-6)


def test_single_center() -> None:
    np.testing.assert_array_equal(
        half_center_distances(prepare_points(np.ones((1, 3)), plain(3))), [np.inf]
    )


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    k=st.sampled_from([2, 5, 300]),
    p=st.integers(1, 300),
    offset=st.sampled_from([0.0, 1e4]),
    size=st.sampled_from([1e-12, 1.0, 1e12]),
)
def test_tight_lower_bound(seed: int, k: int, p: int, offset: float, size: float) -> None:
    rng = np.random.default_rng(seed)
    raw = ((rng.normal(size=(k, p)) + offset) * size).astype(np.float32)
    exact = cdist(raw.astype(np.float64), raw.astype(np.float64))
    np.fill_diagonal(exact, np.inf)
    least = 0.5 * exact.min(axis=1)
    found: Any = half_center_distances(prepare_points(raw, plain(p)))
    assert (found <= least).all()
    assert (found >= least - 0.01 * size * np.sqrt(p)).all()


def test_too_many_or_too_large_centers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert half_center_distances(prepare_points(np.array([[1e25], [-1e25]]), plain(1))) is None
    monkeypatch.setattr(gaps, "MOST_CENTERS", 3)
    assert half_center_distances(prepare_points(np.ones((4, 2)), plain(2))) is None
