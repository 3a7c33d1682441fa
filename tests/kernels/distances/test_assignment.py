"""Assignment of rows to their nearest center or as outliers, and sums of clusters."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrlm_dask.kernels.distances.assignment import (
    LeafPoints,
    assign_and_sum,
    assign_leaves,
    assign_rows,
)
from scrlm_dask.kernels.distances.points import Points, prepare_points
from scrlm_dask.kernels.distances.preprocessing import AffineMap


def centers_at(raw: list[list[float]], scale: list[float] | None = None) -> Points:
    x = np.array(raw, np.float32)
    p = x.shape[1]
    return prepare_points(x, AffineMap("none", np.zeros(p), np.array(scale or [1.0] * p)))


def test_by_hand() -> None:
    # centers 0 and 10, R = 3: 1 is 1 from the first center and 9 from the second, 8 is 2 from the
    # second and 8 from the first, 5 is 5 from both and an outlier
    found = assign_rows(
        np.array([[1.0], [8], [5], [13]], np.float32),
        centers_at([[0.0], [10.0]]),
        9.0,
        margins=True,
    )
    assert found.labels.tolist() == [0, 1, -1, -1]  # 13 is on the radius: outside
    assert found.sq_distances.tolist() == [1.0, 4.0, 25.0, 9.0]
    assert found.second_sq_distances.tolist() == [81.0, 64.0, 25.0, 169.0]
    assert found.distances.tolist() == [1.0, 2.0, 5.0, 3.0]
    assert found.margins.tolist() == [8.0, 6.0, 0.0, 10.0]
    assert found.labels.dtype == np.int32
    assert found.distances.dtype == found.margins.dtype == np.float32


def test_ties_go_to_the_first_center() -> None:
    found = assign_rows(np.array([[5.0]], np.float32), centers_at([[10.0], [0.0]]), 100.0)
    assert found.labels.tolist() == [0]


def test_one_center_and_no_center() -> None:
    x = np.array([[1.0], [9.0]], np.float32)
    one = assign_rows(x, centers_at([[0.0]]), 4.0, margins=True)
    assert one.labels.tolist() == [0, -1]
    assert one.margins.tolist() == [np.inf, np.inf]
    none = prepare_points(np.empty((0, 1), np.float32), AffineMap("none", np.zeros(1), np.ones(1)))
    empty = assign_rows(x, none, 4.0, margins=True)
    assert empty.labels.tolist() == [-1, -1]
    assert empty.distances.tolist() == empty.margins.tolist() == [np.inf, np.inf]


def test_sums_by_hand() -> None:
    # scale 2: rows 1 and 3 are 2 and 6 model units from center 0; R = 7 leaves 9 out
    x = np.array([[1.0], [3.0], [9.0]], np.float32)
    sums = assign_and_sum(x, centers_at([[0.0]], scale=[2.0]), 49.0).sums
    assert sums.counts.tolist() == [2]
    assert sums.offsets.tolist() == [[4.0]]
    assert sums.sq_distances.tolist() == [4.0 + 36.0]
    assert sums.input_sq_distances.tolist() == [1.0 + 9.0]
    assert sums.n_rows == 3


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 200),
    p=st.integers(1, 30),
    k=st.integers(1, 40),
    offset=st.sampled_from([0.0, 1e4]),
    spread=st.sampled_from([1e-2, 1.0, 1e3]),
)
def test_equals_float64(seed: int, rows: int, p: int, k: int, offset: float, spread: float) -> None:
    rng = np.random.default_rng(seed)
    c = (rng.normal(size=(k, p)) * spread + offset).astype(np.float32)
    # rows near the centers and between two of them, with near ties
    x = (c[rng.integers(k, size=rows)] + c[rng.integers(k, size=rows)]) / 2
    x = (x + rng.normal(scale=1e-3 * spread, size=x.shape)).astype(np.float32)
    points = prepare_points(c, AffineMap("none", np.zeros(p), np.ones(p)))
    sq_radius = float(p) * spread**2
    found = assign_and_sum(x, points, sq_radius, margins=True)
    sq = ((x[:, None].astype(float) - c.astype(float)) ** 2).sum(-1)
    two = np.sort(sq, axis=1)[:, :2]
    np.testing.assert_allclose(found.assignment.sq_distances, two[:, 0], rtol=1e-12)
    if k > 1:
        np.testing.assert_allclose(found.assignment.second_sq_distances, two[:, 1], rtol=1e-12)
    labels = np.where(two[:, 0] < sq_radius, sq.argmin(axis=1), -1)
    clear = np.ones(rows, bool) if k == 1 else two[:, 1] - two[:, 0] > 1e-9 * two[:, 1]
    np.testing.assert_array_equal(found.assignment.labels[clear], labels[clear])
    counts = np.bincount(found.assignment.labels[found.assignment.labels >= 0], minlength=k)
    np.testing.assert_array_equal(found.sums.counts, counts)
    for prune in (0, 1, 1000):
        short = assign_and_sum(x, points, sq_radius, prune=prune)
        np.testing.assert_array_equal(short.assignment.labels, found.assignment.labels)
        np.testing.assert_array_equal(short.sums.counts, counts)
        inside = short.assignment.labels >= 0
        np.testing.assert_allclose(short.assignment.sq_distances[inside], two[inside, 0])
        assert np.isnan(short.assignment.sq_distances[~inside]).all()
        assert short.assignment.margins is None
        alone = assign_rows(x, points, sq_radius, prune=prune)
        np.testing.assert_array_equal(alone.labels, found.assignment.labels)
        np.testing.assert_array_equal(np.isnan(alone.sq_distances), ~inside)


@pytest.mark.parametrize("k", [1, 2, 127, 128, 129, 300])
@pytest.mark.parametrize("prune", [0, 7])
def test_nearest_of_any_number_of_centers(k: int, prune: int) -> None:
    rng = np.random.default_rng(k)
    raw = rng.integers(-3, 4, (k, 8)).astype(np.float32)  # integers: many ties, no rounding
    x = rng.integers(-3, 4, (400, 8)).astype(np.float32)
    found = assign_rows(x, centers_at(raw.tolist()), np.inf, prune=prune)
    sq_distances = np.square(x[:, None] - raw).sum(axis=-1)
    assert np.array_equal(found.labels, sq_distances.argmin(axis=1))


def test_center_too_large_for_float32_is_never_the_nearest() -> None:
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(600, 4)).astype(np.float32)
    raw[127] = 1e15
    found = assign_rows(raw[:50], centers_at(raw.tolist(), [1e5] * 4), np.inf)
    assert np.array_equal(found.labels, np.arange(50))


# --- leaves of the fine level --------------------------------------------------------------------


def leaves_of(leaves: np.ndarray, sizes: list[int], affine: AffineMap) -> LeafPoints:
    """Return leaves (L, p), of which each cluster has the given number, in order."""
    firsts = np.concatenate([[0], np.cumsum(sizes)])
    children = (leaves[a:b] for a, b in pairwise(firsts))
    return LeafPoints(tuple(prepare_points(some, affine) for some in children), firsts[:-1])


def test_leaves_by_hand() -> None:
    # cluster 0 has the leaves 0 and 4, cluster 1 the leaf 10, cluster 2 the leaves 20 and 26
    affine = AffineMap("none", np.zeros(1), np.ones(1))
    leaves = leaves_of(np.array([[0.0], [4], [10], [20], [26]]), [2, 1, 2], affine)
    assert leaves.n_leaves == 5
    block = np.array([[3.0], [9], [90], [21], [1], [2], [25]], np.float32)
    labels = np.array([0, 0, -1, 2, 0, 0, 1], np.int32)
    before = labels.copy()
    found = assign_leaves(block, labels, leaves)
    # 9 stays in its cluster, also if the leaf of another cluster is nearer; ties: the first leaf
    assert found.tolist() == [1, 1, -1, 3, 0, 0, 2]
    assert found.dtype == np.int32
    np.testing.assert_array_equal(labels, before)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(0, 300),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    unit_length=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_leaves_equal_a_plain_loop(
    rows: int, sizes: list[int], unit_length: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    affine = AffineMap("l2" if unit_length else "none", np.zeros(3), np.ones(3))
    raw = rng.normal(size=(sum(sizes), 3)) + 0.5
    leaves = leaves_of(raw, sizes, affine)
    block = rng.normal(size=(rows, 3)).astype(np.float32)
    labels = rng.integers(-1, len(sizes), rows).astype(np.int32)
    found = assign_leaves(block, labels, leaves)
    for row, label, leaf in zip(block, labels, found, strict=True):
        if label == -1:
            assert leaf == -1
            continue
        first = sum(sizes[:label])
        own, x = raw[first : first + sizes[label]], row.astype(float)
        if unit_length:
            own, x = own / np.linalg.norm(own, axis=1, keepdims=True), x / np.linalg.norm(x)
        assert leaf == first + np.square(own - x).sum(axis=1).argmin()


def test_leaves_of_a_large_cluster() -> None:
    """Rows of a cluster are copied in pieces."""
    rng = np.random.default_rng(0)
    block, raw = rng.normal(size=(3000, 4)).astype(np.float32), rng.normal(size=(6, 4))
    affine = AffineMap("none", np.zeros(4), np.ones(4))
    found = assign_leaves(block, np.zeros(3000, np.int32), leaves_of(raw, [6], affine))
    expected = assign_rows(block, prepare_points(raw, affine), np.inf).labels
    np.testing.assert_array_equal(found, expected)
