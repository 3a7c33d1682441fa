"""Initial centers of k-means: k-means++ on points, and SCRLM on a sample of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from scrlm_dask.kernels.distances.points import Points, prepare_points
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.kernels.kmeans.init import (
    RADIUS_LADDER,
    plus_plus,
    radius_ladder,
    radius_losses,
    scrlm_sample_sizes,
    scrlm_start,
)
from scrlm_dask.kernels.scrlm.theory import required_sizes


def affine(p: int) -> AffineMap:
    return AffineMap("none", np.zeros(p), np.ones(p))


def points(x: Any) -> Points:
    raw = np.asarray(x, np.float32)
    return prepare_points(raw, affine(raw.shape[1]))


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def blobs(seed: int, k: int = 12, rows: int = 600) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    draw = rng(seed)
    truth = draw.integers(k, size=rows)
    centers = draw.normal(scale=10.0, size=(k, 8))
    return (centers[truth] + draw.normal(scale=0.2, size=(rows, 8))).astype(np.float32), truth


def test_distant_point_is_chosen() -> None:
    x = [[0.0], [0.0], [0.0], [1000.0], [0.0]]
    for seed in range(20):
        picks = plus_plus(points(x), 2, rng(seed))
        assert (picks == 3).sum() == 1


def test_one_point_per_cluster_is_chosen() -> None:
    for seed in range(5):
        x, truth = blobs(seed)
        assert len(set(truth[plus_plus(points(x), 12, rng(seed))])) == 12


def test_second_point_is_drawn_by_squared_distance() -> None:
    # From 0, the points 1 and 3 are drawn with odds 1 : 9, and the better of 2 draws (k = 2) is
    # kept: 3 leaves a potential of 1, 1 leaves 4. So 1 is chosen only if both draws are 1: 1 %.
    x = points([[0.0], [1.0], [3.0]])
    picks = [
        int(plus_plus(x, 2, rng(seed), begin=np.array([0], np.int64))[1]) for seed in range(3000)
    ]
    assert set(picks) == {1, 2}
    assert picks.count(1) == pytest.approx(30, abs=5 * np.sqrt(30))


def test_first_point_is_drawn_by_weight() -> None:
    x = points([[0.0], [5.0], [9.0]])
    weights = np.array([1.0, 0.0, 3.0])
    picks = [int(plus_plus(x, 1, rng(seed), weights)[0]) for seed in range(1000)]
    assert picks.count(1) == 0
    assert picks.count(2) == pytest.approx(750, abs=5 * np.sqrt(1000 * 0.1875))


def test_points_of_weight_zero_are_not_drawn() -> None:
    x = np.concatenate([rng(1).normal(size=(30, 2)), [[1e3, 1e3]]])
    weights = np.append(np.ones(30), 0.0)
    for seed in range(20):
        assert 30 not in plus_plus(points(x), 30, rng(seed), weights)


def test_given_points_stay_first() -> None:
    x, _ = blobs(0)
    begin = np.array([5, 17, 3], np.int64)
    picks = plus_plus(points(x), 10, rng(), begin=begin)
    assert picks[:3].tolist() == [5, 17, 3]
    assert len(set(picks)) == 10
    # more points than are processed in one batch
    many = plus_plus(points(x), 599, rng(), begin=np.arange(590, dtype=np.int64))
    assert sorted(many)[:590] == list(range(590))
    assert len(set(many)) == 599


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 40),
    share=st.floats(0.0, 1.0),
    kinds=st.integers(1, 40),
    offset=st.sampled_from([0.0, 1e4]),
)
def test_chosen_points_are_distinct(
    seed: int, n: int, share: float, kinds: int, offset: float
) -> None:
    x = (rng(seed).normal(size=(kinds, 3)) + offset).astype(np.float32)[np.arange(n) % kinds]
    k = max(1, round(share * n))
    picks = plus_plus(points(x), k, rng(seed))
    assert len(picks) == len(set(picks)) == k  # each position at most once
    distinct = len(np.unique(x, axis=0))
    assert len(np.unique(x[picks], axis=0)) == min(k, distinct)


def test_sample_sizes() -> None:
    small = scrlm_sample_sizes(40, 8, 5)  # fewer rows than the theory requires: all are used
    assert (small.judged, small.candidates, small.held_out) == (40, 40, 0)
    enough = 4096  # more than the theory requires
    assert enough > required_sizes(5).n_rows
    some = scrlm_sample_sizes(10**5, 8, 5)
    assert (some.judged, some.candidates, some.held_out) == (enough, enough, enough)
    rest = scrlm_sample_sizes(enough + 7, 8, 5)
    assert (rest.judged, rest.held_out) == (enough, 7)
    large = scrlm_sample_sizes(10**9, 64, 100)
    assert large.judged + large.held_out < 10**6
    assert large.held_out == large.candidates <= large.judged
    assert large.candidates >= 400
    wide = scrlm_sample_sizes(10**9, 10**7, 100)
    assert wide.judged == 200  # at least two rows per cluster, regardless of their size
    assert scrlm_sample_sizes(10**9, 64, 1000).judged >= required_sizes(1000).n_rows > large.judged


def test_ladder_rises_and_scales_with_the_data() -> None:
    x, _ = blobs(3)
    one, ten = radius_ladder(points(x), 12, rng()), radius_ladder(points(10 * x), 12, rng())
    assert len(one) == len(RADIUS_LADDER)
    assert (np.diff(one) > 0).all()
    np.testing.assert_allclose(ten, 100 * one, rtol=1e-3)
    # a cluster has 1/k of the rows, so the middle of the ladder is about its radius
    within = 2 * 8 * 0.2**2  # expected squared distance of two rows of a cluster
    assert one[1] < 2 * within
    assert one[-1] > 10 * within


def test_equal_rows_have_no_ladder() -> None:
    assert len(radius_ladder(points(np.ones((20, 3))), 4, rng())) == 0
    assert len(radius_ladder(points(np.ones((1, 3))), 1, rng())) == 0


def test_scrlm_finds_the_clusters_of_a_sample() -> None:
    x, truth = blobs(4)
    radii = np.array([1.0, 2.5 * 8 * 0.4**2])
    losses = radius_losses(x[:500], 500, affine(8), radii)
    start = scrlm_start(x[:500], x[500:], losses[1], affine(8), 12, radii[1], 0)
    assert start.extracted == 12
    assert start.rho == pytest.approx(0.4)
    means = np.array([x[:500][truth[:500] == k].mean(axis=0, dtype=float) for k in range(12)])
    order = [int(np.argmin(((means - center) ** 2).sum(axis=1))) for center in start.centers]
    assert sorted(order) == list(range(12))
    np.testing.assert_allclose(start.centers, means[order], rtol=1e-6, atol=1e-6)
    sq = ((x[500:] - means[truth[500:]]) ** 2).sum(axis=1)
    assert start.mean_sq_distance == pytest.approx(float(sq.mean()), rel=1e-5)  # on held-out rows


def test_kmeans_plus_plus_adds_missing_centers() -> None:
    x, _ = blobs(4)
    (losses,) = radius_losses(x, 600, affine(8), np.array([1e6]))
    start = scrlm_start(x, x[:0], losses, affine(8), 12, 1e6, 0)  # the radius includes all rows
    assert start.extracted == 1
    assert len(np.unique(start.centers, axis=0)) == 12
    assert np.isfinite(start.mean_sq_distance)  # on the same rows, as none are held out
