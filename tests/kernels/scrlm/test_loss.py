"""The robust loss of candidates, summed over blocks."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from scrlm_dask.errors import NonFiniteRowError
from scrlm_dask.kernels.distances.points import prepare_points, squared_radius
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.kernels.scrlm.loss import Losses, loss_part, losses_of, merge_losses


def plain(p: int) -> AffineMap:
    return AffineMap("none", np.zeros(p), np.ones(p))


def losses(
    x: NDArray[Any], rows: list[int], rho: float, cuts: list[int] | None = None, prune: Any = "auto"
) -> Losses:
    """Return the losses of the given rows as candidates; x is split at `cuts`."""
    sq_radii = [squared_radius(rho, 2.5, x.shape[1])]
    candidates = prepare_points(x[rows], plain(x.shape[1]))
    edges = [0, *(cuts or []), len(x)]
    parts = [
        loss_part(x[a:b], np.arange(a, b), candidates, np.array(rows), sq_radii, prune)
        for a, b in pairwise(edges)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = merge_losses(total, part)
    return losses_of(total, sq_radii, 2.5)[0]


def test_by_hand() -> None:
    # p = 2, rho = 1, F = 2.5, R^2 = 5. From (0, 0): (1, 0) at 1 gives 1/2 - 2.5 = -2, (2, 0) at 4
    # gives -0.5, (0, 2.2) at 4.84 gives -0.08, and (2, 1) at 5 is on the radius and gives 0.
    x = np.array([[0, 0], [1, 0], [2, 0], [0, 2.2], [2, 1]], np.float32)
    part = losses(x, [0], 1.0)
    np.testing.assert_allclose(part.losses, [-2.58], rtol=1e-6)
    assert part.neighbors.tolist() == [3]


def test_candidate_is_excluded_by_number_and_its_duplicate_is_not() -> None:
    x = np.array([[3.0, 4.0], [3.0, 4.0], [100.0, 0.0]], np.float32)
    part = losses(x, [0, 1, 2], 1.0)
    assert part.neighbors.tolist() == [1, 1, 0]
    np.testing.assert_allclose(part.losses, [-2.5, -2.5, 0.0], rtol=1e-6)


def test_distant_row_has_a_loss_of_zero() -> None:
    # |x|^2 + |x|^2 - 2 x.x is not 0 in float32, so a naive sum would count a neighbor
    x = (np.random.default_rng(0).normal(size=(50, 100)) * 1e3).astype(np.float32)
    part = losses(x, list(range(50)), 0.1)
    assert (part.neighbors == 0).all()
    assert (part.losses == 0.0).all()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(2, 80),
    p=st.integers(1, 40),
    rho=st.floats(0.05, 2.0),
    offset=st.sampled_from([0.0, 1e4]),
    spread=st.sampled_from([1e-3, 1.0, 1e3]),
    cuts=st.lists(st.integers(0, 80), max_size=4),
    prune=st.sampled_from([0, 1, 5, 1000]),
)
def test_equals_the_definition_in_float64(
    seed: int,
    rows: int,
    p: int,
    rho: float,
    offset: float,
    spread: float,
    cuts: list[int],
    prune: int,
) -> None:
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(3, p))[rng.integers(3, size=rows)] * spread + offset).astype(np.float32)
    x = x + rng.normal(scale=0.3, size=x.shape).astype(np.float32)
    part = losses(x, list(range(rows)), rho, sorted(min(c, rows) for c in cuts), prune)
    y = x.astype(np.float64)
    sq = ((y[:, None] - y[None]) ** 2).sum(-1)
    inside = sq < 2.5 * p * rho**2
    np.fill_diagonal(inside, False)
    expected = np.where(inside, sq / (p * rho**2) - 2.5, 0.0).sum(axis=0)
    np.testing.assert_array_equal(part.neighbors, inside.sum(axis=0))
    np.testing.assert_allclose(part.losses, expected, rtol=1e-5, atol=1e-5)


def test_several_tiles_of_rows_and_candidates() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(3000, 8)).astype(np.float32)
    part = losses(x, list(range(3000)), 0.4)
    sq = ((x[:, None, :].astype(float) - x[None, :200]) ** 2).sum(-1)
    np.testing.assert_array_equal(part.neighbors[:200], (sq < 2.5 * 8 * 0.16).sum(0) - 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_first_non_finite_row_is_named(bad: float) -> None:
    x = np.zeros((3000, 4), np.float32)
    x[2100, 1] = x[2900, 2] = bad
    with pytest.raises(NonFiniteRowError) as caught:
        losses(x, [0, 1], 0.5)
    assert caught.value.row == 2100


def test_float16_rows_equal_float32_rows() -> None:
    x = np.random.default_rng(2).normal(size=(200, 20)).astype(np.float16)
    half, single = losses(x, [0, 5], 0.9), losses(x.astype(np.float32), [0, 5], 0.9)
    assert half.losses.tobytes() == single.losses.tobytes()
