"""Points in model space, and rounding of their distances in float32."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrlm_dask.kernels.distances.points import (
    exact_sq_distance,
    prepare_points,
    radius,
    squared_radius,
    tile_rows,
    tiles,
)
from scrlm_dask.kernels.distances.preprocessing import AffineMap


def test_radius_by_hand() -> None:
    # rho 0.5, F 2.5, p 640: R^2 = 0.25 * 2.5 * 640 = 400
    assert squared_radius(0.5, 2.5, 640) == 400.0
    assert radius(0.5, 2.5, 640) == 20.0


def test_mapped_points_are_centered_at_their_mean() -> None:
    raw = np.array([[1e6, 2.0], [1e6 + 2, 6.0]], np.float32)
    points = prepare_points(raw, AffineMap("standardize", np.zeros(2), np.array([0.5, 2.0])))
    np.testing.assert_array_equal(points.shift, [1e6 + 1, 4.0])
    np.testing.assert_array_equal(points.mapped, [[-0.5, -4.0], [0.5, 4.0]])
    np.testing.assert_array_equal(points.sq_norms, [16.25, 16.25])


def test_unit_length_by_hand() -> None:
    raw = np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)
    points = prepare_points(raw, AffineMap("l2", np.zeros(2), np.ones(2)))
    np.testing.assert_allclose(points.inv_norms, [0.2, 1.0])
    np.testing.assert_allclose(points.mapped + points.shift, [[0.6, 0.8], [0.0, 0.0]], atol=1e-7)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    p=st.integers(1, 700),
    spread=st.sampled_from([1e-2, 1.0, 1e4]),
    offset=st.sampled_from([0.0, 1e5]),
)
def test_rounding_errors_are_bounded(seed: int, p: int, spread: float, offset: float) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(30, p)) * spread + offset).astype(np.float32)
    points = prepare_points(x[:7], AffineMap("none", np.zeros(p), np.ones(p)))
    (tile,) = tiles(x, points)
    sq_sum = tile.sq_norms[:, None] + points.sq_norms
    single = sq_sum - 2.0 * tile.products.astype(np.float64)
    true = ((x[:, None].astype(np.float64) - x[None, :7]) ** 2).sum(-1)
    assert (np.abs(single - true) <= points.error_factor * sq_sum).all()


def test_exact_distance_by_hand() -> None:
    # (1*0.5 - 3*0.25) * 2 = -0.5 and (4*0.5 - 4*0.25) * 3 = 3: 0.25 + 9
    x, c = np.array([1.0, 4.0], np.float32), np.array([3.0, 4.0], np.float32)
    assert exact_sq_distance(x, 0.5, c, 0.25, np.array([2.0, 3.0])) == 9.25


@pytest.mark.parametrize(
    ("points", "rows"), [(0, 1024), (100, 1024), (4096, 1024), (8192, 512), (10**6, 128)]
)
def test_tiles_shrink_as_points_grow(points: int, rows: int) -> None:
    assert tile_rows(points) == rows


def test_tiles_cover_every_row_once() -> None:
    x = np.arange(2500, dtype=np.float32)[:, None]
    points = prepare_points(x[:3], AffineMap("none", np.zeros(1), np.ones(1)))
    seen = [(tile.positions[0], tile.positions[-1] + 1) for tile in tiles(x, points)]
    assert seen == [(0, 1024), (1024, 2048), (2048, 2500)]
    assert list(tiles(x[:0], points)) == []
