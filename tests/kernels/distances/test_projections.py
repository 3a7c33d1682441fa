"""Distances between projections are lower bounds of distances between rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.fft import dct
from scipy.spatial.distance import cdist

from scrlm_dask.kernels.distances.points import map_like
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.kernels.distances.projections import (
    Subspace,
    distance_bound,
    principal_axes,
    project_block,
    project_points,
)
from scrlm_dask.kernels.distances.pruning import prepare_with_axes


def spectrum(rng: np.random.Generator, rows: int, p: int, steepness: float) -> NDArray[np.float32]:
    """Draw rows whose variances decay as a power along axes that are not features.

    A cosine transform with random signs rotates them: an orthonormal map without a matrix.
    """
    deviations = np.arange(1, p + 1) ** -steepness * rng.choice([-1.0, 1.0], p)
    rotated = dct(rng.normal(size=(rows, p)) * deviations, norm="ortho", axis=1)
    return np.asarray(rotated[:, rng.permutation(p)], np.float32)


def plain(p: int) -> AffineMap:
    return AffineMap("none", np.zeros(p), np.ones(p))


def test_axes_are_orthonormal_and_ordered_by_variance() -> None:
    rng = np.random.default_rng(0)
    x = spectrum(rng, 500, 60, 1.0)
    x -= x.mean(axis=0)
    axes = principal_axes(x, 20).astype(np.float64)
    np.testing.assert_allclose(axes.T @ axes, np.eye(20), atol=1e-6)
    seen = np.square(x @ axes).sum(axis=0)
    assert (np.diff(seen) <= 1e-3 * seen[:-1]).all()
    best = np.linalg.eigvalsh((x.T @ x).astype(np.float64))[::-1][:20]
    assert seen.sum() >= 0.99 * best.sum()


def test_projection_by_hand() -> None:
    # The first feature of (3, 4, 0) is 3, and the rest has length 4; of (0, 0, 5): 0 and 5. The
    # projections are sqrt(9 + 1) apart, the rows sqrt(9 + 16 + 25).
    x = np.array([[3.0, 4.0, 0.0], [0.0, 0.0, 5.0], [-3.0, -4.0, -5.0]], np.float32)
    points = prepare_with_axes(x, plain(3))
    np.testing.assert_allclose(points.shift, 0.0)
    projected = project_points(points, Subspace(1))
    np.testing.assert_allclose(projected.coordinates[:2], [[3.0, 4.0], [0.0, 5.0]], rtol=1e-6)
    seen = project_block(map_like(x, points), projected)
    np.testing.assert_allclose(seen.products[:2, :2], [[25.0, 20.0], [20.0, 25.0]], rtol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    p=st.integers(1, 1000),
    steepness=st.sampled_from([0.0, 0.5, 1.0, 3.0]),
    offset=st.sampled_from([0.0, 1e4]),
    share=st.floats(0.0, 1.0),
    principal=st.booleans(),
)
def test_distance_of_projections_is_a_lower_bound(
    seed: int, p: int, steepness: float, offset: float, share: float, principal: bool
) -> None:
    rng = np.random.default_rng(seed)
    x = (spectrum(rng, 120, p, steepness) + offset).astype(np.float32)
    x[7] = x[11]  # a row and its twin
    points = prepare_with_axes(x[:100], plain(p))
    most = p if points.axes is None or not principal else points.axes.directions.shape[1]
    subspace = Subspace(max(1, int(share * most)), principal and points.axes is not None)
    projected = project_points(points, subspace)
    rows = map_like(x, points)
    seen = project_block(rows, projected)
    y = x.astype(np.float64)
    true = cdist(y, y[:100], "sqeuclidean")  # by differences, not by products
    sq_sums = rows.sq_norms[:, None] + points.sq_norms
    found = sq_sums - 2.0 * seen.products.astype(np.float64)
    limit = distance_bound(true, seen.errors[:, None]) + projected.error_factor * sq_sums
    assert (found <= limit).all()


@pytest.mark.parametrize("n_axes", [8, 24])
def test_principal_axes_give_tighter_bounds_than_features(n_axes: int) -> None:
    x = spectrum(np.random.default_rng(3), 300, 100, 1.0)
    points = prepare_with_axes(x, plain(100))
    rows = map_like(x, points)

    def lengths(subspace: Subspace) -> float:
        found = rows.sq_norms[:, None] + points.sq_norms
        return float(
            (found - 2.0 * project_block(rows, project_points(points, subspace)).products).sum()
        )

    assert lengths(Subspace(n_axes, principal=True)) > 1.5 * lengths(Subspace(n_axes))
