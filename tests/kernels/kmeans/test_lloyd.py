"""One Lloyd iteration: labels, sums, rows farthest from their centers, and new centers."""

from __future__ import annotations

import itertools
import math
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lloyd_oracle import naive_step
from numpy.typing import NDArray

from scrlm_dask.errors import NonFiniteRowError
from scrlm_dask.kernels.distances.cluster_sums import sum_rows
from scrlm_dask.kernels.distances.nearest_center import nearest_centers
from scrlm_dask.kernels.distances.points import Points, prepare_points
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.kernels.kmeans.lloyd import (
    MOST_WORST,
    LloydPart,
    compare_labels,
    inertia,
    lloyd_part,
    merge_lloyd,
    move_centers,
    relative_shift,
)


def affine(p: int, kind: Any = "none", scale: list[float] | None = None) -> AffineMap:
    return AffineMap(kind, np.zeros(p), np.array(scale or [1.0] * p))


def points(raw: list[list[float]], kind: Any = "none", scale: list[float] | None = None) -> Points:
    x = np.array(raw)
    return prepare_points(x, affine(x.shape[1], kind, scale))


ROWS = np.array([[1.0], [2], [8], [13], [5]], np.float32)
TWO = [[0.0], [10.0]]


def test_by_hand() -> None:
    # 1, 2 -> 0; 8, 13 -> 10; 5 is equally far from both: the first center
    found = lloyd_part(ROWS, 100, points(TWO), math.inf)
    assert found.labels.tolist() == [0, 0, 1, 1, 0]
    assert found.labels.dtype == np.int32
    sums = found.part.sums
    assert sums.counts.tolist() == [3, 2]
    assert sums.masses.tolist() == [3.0, 2.0]
    assert sums.offsets.tolist() == [[8.0], [1.0]]
    assert sums.sq_distances.tolist() == [1.0 + 4 + 25, 4.0 + 9]
    assert (sums.n_rows, sums.total_mass) == (5, 5.0)
    assert inertia(sums) == 43.0
    # the farthest first; rows 101 and 102 are both 2 away
    assert found.part.worst.numbers.tolist() == [104, 103, 101, 102, 100]
    assert found.part.worst.sq_distances.tolist() == [25.0, 9.0, 4.0, 4.0, 1.0]
    assert found.part.worst.raw.tolist() == [[5.0], [13], [2], [8], [1]]
    assert found.part.moved == 5  # no row had a label before
    moved = move_centers(np.array(TWO), found.part, False)
    assert moved.centers.tolist() == [[8.0 / 3.0], [10.5]]
    assert (moved.empty, moved.reseeded) == (0, 0)


def test_moved_counts_changed_labels() -> None:
    found = lloyd_part(ROWS, 0, points(TWO), math.inf)
    before = np.array([0, 1, 1, -1, 1], np.int32)
    assert compare_labels(found, before).moved == 3
    assert compare_labels(found, found.labels.copy()).moved == 0
    # rows of weight 0 are not counted
    weighed = lloyd_part(ROWS, 0, points(TWO), math.inf, np.array([1.0, 0.0, 1.0, 1.0, 1.0]))
    assert compare_labels(weighed, before).moved == 2


def test_rows_outside_the_radius_are_excluded() -> None:
    # R = 3: 13 is on the radius, which counts as outside, and 5 is beyond it
    found = lloyd_part(ROWS, 100, points(TWO), 9.0)
    assert found.labels.tolist() == [0, 0, 1, -1, -1]
    assert found.part.sums.counts.tolist() == [2, 1]
    assert found.part.sums.offsets.tolist() == [[3.0], [-2.0]]
    assert inertia(found.part.sums, 9.0) == 1.0 + 4 + 4 + 2 * 9
    assert found.part.worst.numbers.tolist() == [101, 102, 100]  # no outlier becomes a center
    assert move_centers(np.array(TWO), found.part, False).centers.tolist() == [[1.5], [8.0]]


def test_weights_count_like_rows() -> None:
    weights = np.array([1.0, 0.0, 2.0, 0.5, 1.0])
    found = lloyd_part(ROWS, 0, points(TWO), math.inf, weights)
    sums = found.part.sums
    assert found.labels.tolist() == [0, 0, 1, 1, 0]  # a row of weight 0 is also labelled
    assert sums.counts.tolist() == [3, 2]
    assert sums.masses.tolist() == [2.0, 2.5]
    assert sums.offsets.tolist() == [[1.0 + 5.0], [2 * -2.0 + 0.5 * 3.0]]
    assert sums.sq_distances.tolist() == [1.0 + 25, 2 * 4.0 + 0.5 * 9]
    assert sums.total_mass == 4.5
    assert found.part.worst.numbers.tolist() == [4, 3, 2, 0]  # row 1 has weight 0
    assert inertia(lloyd_part(ROWS, 0, points(TWO), 9.0, weights).part.sums, 9.0) == (
        1.0 + 2 * 4.0 + (0.5 + 1.0) * 9.0
    )


def test_scale_applies_to_distances_and_not_to_centers() -> None:
    # the first feature is scaled by 100: (1, 0) is closer to (1, 9) than to (0, 0)
    x = np.array([[1.0, 0.0], [0.0, 8.0]])
    found = lloyd_part(x, 0, points([[0.0, 0.0], [1.0, 9.0]], scale=[100.0, 1.0]), math.inf)
    assert found.labels.tolist() == [1, 0]
    assert found.part.sums.sq_distances.tolist() == [64.0, 81.0]
    assert found.part.sums.offsets.tolist() == [[0.0, 8.0], [0.0, -9.0]]


def test_duplicate_center_is_reseeded() -> None:
    part = lloyd_part(ROWS, 0, points([[10.0], [10.0], [0.0]]), math.inf).part
    assert part.sums.counts.tolist() == [3, 0, 2]  # 5 is now assigned to the first center
    moved = move_centers(np.array([[10.0], [10.0], [0.0]]), part, False)
    assert moved.centers.tolist() == [[26.0 / 3.0], [5.0], [1.5]]
    assert (moved.empty, moved.reseeded) == (1, 1)


def test_equal_rows_reseed_one_center() -> None:
    x = np.array([[0.0], [0.0], [4.0], [4.0]], np.float32)
    centers = np.array([[0.0], [99.0], [98.0], [97.0]])
    part = lloyd_part(x, 0, prepare_points(centers, affine(1)), math.inf).part
    moved = move_centers(centers, part, False)
    assert (moved.empty, moved.reseeded) == (3, 1)
    assert moved.centers.tolist() == [[2.0], [4.0], [98.0], [97.0]]


def test_rows_at_their_centers_reseed_nothing() -> None:
    x = np.array([[0.0], [0.0]], np.float32)
    centers = np.array([[0.0], [99.0]])
    moved = move_centers(
        centers, lloyd_part(x, 0, prepare_points(centers, affine(1)), math.inf).part, False
    )
    assert (moved.empty, moved.reseeded) == (1, 0)
    assert moved.centers.tolist() == centers.tolist()


@pytest.mark.parametrize("kind", ["none", "l2"])
def test_rows_with_rounding_errors_reseed_nothing(kind: Any) -> None:
    x = np.full((50, 3), 0.1)
    centers = np.concatenate([x[:1], np.full((1, 3), -9.0)])
    for _ in range(3):
        part = lloyd_part(x, 0, prepare_points(centers, affine(3, kind)), math.inf).part
        moved = move_centers(centers, part, kind == "l2")
        assert (moved.empty, moved.reseeded) == (1, 0)
        centers = moved.centers
    # a distance larger than rounding errors counts, however small it is
    x[7, 0] = 0.1 + 1e-12
    part = lloyd_part(x, 0, prepare_points(x[:1], affine(3, kind)), math.inf).part
    assert part.worst.numbers.tolist() == [7]


def test_cluster_of_weight_zero_is_empty() -> None:
    centers = np.array(TWO)
    weights = np.array([1.0, 1.0, 0.0, 0.0, 1.0])
    part = lloyd_part(ROWS, 0, points(TWO), math.inf, weights).part
    moved = move_centers(centers, part, False)
    assert (moved.empty, moved.reseeded) == (1, 1)
    assert moved.centers.tolist() == [[8.0 / 3.0], [5.0]]


def test_empty_clusters_are_kept_on_a_sample() -> None:
    centers = np.array([[10.0], [10.0], [0.0]])
    part = lloyd_part(ROWS, 0, prepare_points(centers, affine(1)), math.inf).part
    moved = move_centers(centers, part, False, reseed=False)
    assert moved.centers.tolist() == [[26.0 / 3.0], [10.0], [1.5]]
    assert (moved.empty, moved.reseeded) == (1, 0)


def test_number_of_reseeds_is_limited_by_the_worst_rows() -> None:
    x = np.arange(1.0, 101.0, dtype=np.float32)[:, None]
    centers = np.concatenate([[[0.0]], np.full((30, 1), 1e6)])
    part = lloyd_part(x, 0, prepare_points(centers, affine(1)), math.inf).part
    assert part.worst.numbers.tolist() == list(range(99, 99 - MOST_WORST, -1))
    moved = move_centers(centers, part, False)
    assert (moved.empty, moved.reseeded) == (30, MOST_WORST)
    assert moved.centers[1 : 1 + MOST_WORST, 0].tolist() == list(range(100, 100 - MOST_WORST, -1))
    assert (moved.centers[1 + MOST_WORST :] == 1e6).all()


def test_first_of_equally_distant_rows_are_chosen() -> None:
    x = np.full((60, 1), 3.0, np.float32)
    x[50:] = 7.0
    part = lloyd_part(x, 0, points([[0.0]]), math.inf).part
    assert part.worst.numbers.tolist() == [*range(50, 60), *range(MOST_WORST - 10)]


def test_unit_length_by_hand() -> None:
    # at unit length: (1, 0), (0.6, 0.8), (0, 1); the lengths of the centers do not matter either
    x = np.array([[2.0, 0.0], [3.0, 4.0], [0.0, 9.0]])
    centers = np.array([[5.0, 0.0], [0.0, 0.1]])
    found = lloyd_part(x, 0, prepare_points(centers, affine(2, "l2")), math.inf)
    assert found.labels.tolist() == [0, 1, 1]
    np.testing.assert_allclose(found.part.sums.sq_distances, [0.0, 0.4], atol=1e-15)
    moved = move_centers(centers, found.part, True).centers
    np.testing.assert_allclose(moved, [[1.0, 0.0], np.array([0.6, 1.8]) / math.sqrt(3.6)])


def test_rows_that_cancel_do_not_move_a_direction() -> None:
    x = np.array([[0.0, 1.0], [0.0, -1.0]])
    centers = np.array([[1.0, 0.0]])
    part = lloyd_part(x, 0, prepare_points(centers, affine(2, "l2")), math.inf).part
    # the mean is the origin, which has no direction
    assert move_centers(centers, part, True).centers.tolist() == [[1.0, 0.0]]


def test_reseeded_centers_have_unit_length() -> None:
    x = np.array([[3.0, 0.0], [0.0, 5.0]])
    centers = np.array([[1.0, 0.0], [1.0, 0.0]])
    part = lloyd_part(x, 0, prepare_points(centers, affine(2, "l2")), math.inf).part
    assert move_centers(centers, part, True).centers[1].tolist() == [0.0, 1.0]


def test_relative_shift_by_hand() -> None:
    before, after = np.zeros((2, 2)), np.array([[3.0, 4.0], [0.0, 0.0]])
    # one of two centers moved by 5, and the rows are 10 away on average
    shift = relative_shift(before, after, np.ones(2), 100.0)
    assert shift == pytest.approx(math.sqrt(12.5 / 100.0))
    assert relative_shift(before, after, np.full(2, 2.0), 100.0) == pytest.approx(2 * shift)
    assert relative_shift(before, before, np.ones(2), 0.0) == 0.0
    assert relative_shift(before, after, np.ones(2), 0.0) == math.inf


def test_close_centers_are_compared_in_float64() -> None:
    # two centers 1e-6 apart, far from the third: in float32 their distances are equal
    rng = np.random.default_rng(0)
    twin = rng.normal(scale=10.0, size=16)
    centers = np.array([twin, twin + rng.normal(scale=1e-6, size=16), -twin])
    x = twin + rng.normal(size=(500, 16))
    naive = naive_step(x, centers)
    assert naive.clear.mean() > 0.9
    assert set(naive.labels) == {0, 1}
    found = lloyd_part(x, 0, prepare_points(centers, affine(16)), math.inf)
    np.testing.assert_array_equal(found.labels[naive.clear], naive.labels[naive.clear])


def test_non_finite_row_is_named() -> None:
    x = np.ones((2000, 3), np.float32)
    x[1500, 1] = np.nan
    with pytest.raises(NonFiniteRowError) as caught:
        lloyd_part(x, 0, points([[0.0, 0.0, 0.0]]), math.inf)
    assert caught.value.row == 1500


@st.composite
def cases(draw: Any) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Draw rows (some repeated) and centers, with near ties among them."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows, p = draw(st.integers(1, 150)), draw(st.integers(1, 20))
    k = draw(st.one_of(st.integers(1, 40), st.just(rows)))
    dtype = draw(st.sampled_from(["float16", "float32", "float64"]))
    offset = draw(st.sampled_from([0.0, 1e4]))
    centers = rng.normal(size=(k, p)) + offset
    x = (centers[rng.integers(k, size=rows)] + centers[rng.integers(k, size=rows)]) / 2
    x = (x + rng.normal(scale=draw(st.sampled_from([1e-3, 1.0])), size=x.shape)).astype(dtype)
    repeats = rng.integers(rows, size=draw(st.integers(0, 5)))
    x[repeats] = x[rng.integers(rows, size=len(repeats))]
    if draw(st.booleans()):  # centers that are rows, as initial centers are
        centers = x[rng.integers(rows, size=k)].astype(np.float64)
    return x, centers


@settings(max_examples=150)
@given(
    case=cases(),
    reach=st.sampled_from([math.inf, 2.0, 0.5]),
    weighted=st.booleans(),
    spherical=st.booleans(),
)
@example((np.zeros((3, 2), np.float32), np.zeros((3, 2))), math.inf, False, False)
@example((np.zeros((3, 2), np.float32), np.ones((2, 2))), 2.0, True, True)
def test_equals_a_naive_loop(
    case: tuple[NDArray[Any], NDArray[np.float64]], reach: float, weighted: bool, spherical: bool
) -> None:
    x, centers = case
    k, p = centers.shape
    sq_radius = reach * reach * p if not spherical else reach
    weights = np.arange(len(x)) % 3 * 0.75 if weighted else None
    here = prepare_points(centers, affine(p, "l2" if spherical else "none"))
    found = lloyd_part(x, 7, here, sq_radius, weights)
    naive = naive_step(x, centers, sq_radius, weights, spherical)
    labels = found.labels
    np.testing.assert_array_equal(labels[naive.clear], naive.labels[naive.clear])
    # ties may be broken differently, but the distances are equal
    value = inertia(found.part.sums, sq_radius)
    scale = float(np.square(x.astype(np.float64)).sum()) if not spherical else len(x)
    assert value == pytest.approx(naive.inertia, rel=1e-9, abs=1e-20 * scale)
    # the sums for these labels
    w = np.ones(len(x)) if weights is None else weights
    counts = np.bincount(labels[labels >= 0], minlength=k)
    np.testing.assert_array_equal(found.part.sums.counts, counts)
    masses = np.bincount(labels[labels >= 0], w[labels >= 0], minlength=k)
    np.testing.assert_allclose(found.part.sums.masses, masses)
    assert found.part.sums.total_mass == pytest.approx(w.sum())
    if naive.clear.all():
        moved = move_centers(centers, found.part, spherical).centers
        full = masses > 0.0
        if not spherical:
            np.testing.assert_allclose(moved[full], naive.means[full], rtol=1e-11, atol=1e-11)
    # the farthest rows, ordered by distance and row number, without rounding errors
    inside = (labels >= 0) & (w > 0.0) & (naive.sq_distances > 1e-24)
    near = nearest_centers(x, here)
    summed = sum_rows(x, near.labels, near.inv_norms, here, math.inf)
    sq_distances = np.where(inside, summed.sq_distances, 0.0)
    rows = [i for i in np.lexsort((np.arange(len(x)), -sq_distances)) if sq_distances[i] > 0.0]
    assert found.part.worst.numbers.tolist() == [7 + i for i in rows[:MOST_WORST]]


@settings(max_examples=50)
@given(case=cases(), cuts=st.lists(st.integers(0, 150), max_size=4))
def test_parts_of_any_split_add_up(
    case: tuple[NDArray[Any], NDArray[np.float64]], cuts: list[int]
) -> None:
    x, centers = case
    here = prepare_points(centers, affine(centers.shape[1]))
    before = (np.arange(len(x)) % len(centers)).astype(np.int32)
    edges = [0, *sorted(min(cut, len(x)) for cut in cuts), len(x)]
    pieces = [lloyd_part(x[a:b], a, here, math.inf) for a, b in itertools.pairwise(edges)]
    parts = [
        compare_labels(piece, before[a:b])
        for piece, a, b in zip(pieces, edges, edges[1:], strict=False)
    ]
    merged: LloydPart = reduce(merge_lloyd, parts)
    whole = lloyd_part(x, 0, here, math.inf)
    np.testing.assert_array_equal(np.concatenate([p.labels for p in pieces]), whole.labels)
    assert merged.moved == compare_labels(whole, before).moved
    np.testing.assert_array_equal(merged.worst.numbers, whole.part.worst.numbers)
    np.testing.assert_array_equal(merged.worst.raw, whole.part.worst.raw)
    np.testing.assert_array_equal(merged.sums.counts, whole.part.sums.counts)
    np.testing.assert_allclose(merged.sums.offsets, whole.part.sums.offsets, atol=1e-9)
    assert inertia(merged.sums) == pytest.approx(inertia(whole.part.sums))
