"""Weighted Ward linkage, compared with SciPy: a point of weight w is w equal points there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage

from scrlm_dask.kernels.evaluation.metrics import contingency, scores
from scrlm_dask.kernels.scrlm.ward import _costs, cut_tree, group_means, ward_tree


def tree_of(points: np.ndarray, weights: np.ndarray):
    return ward_tree(points, weights.astype(float), points)


def test_by_hand() -> None:
    """Merging 0 and 1 costs 1/2; then 10 (weight 3) and 0.5 (weight 2) cost 6/5 * 9.5^2."""
    tree = tree_of(np.array([[0.0], [10.0], [1.0]]), np.array([1, 3, 1]))
    assert tree.merges.tolist() == [[0, 2], [1, 3]]
    assert tree.costs == pytest.approx([0.5, 1.2 * 9.5**2])
    assert cut_tree(tree, 2).tolist() == [0, 1, 0]
    assert group_means(tree, cut_tree(tree, 2)).tolist() == [[0.5], [10.0]]
    assert cut_tree(tree, 1).tolist() == [0, 0, 0]
    assert group_means(tree, cut_tree(tree, 1)) == pytest.approx(np.array([[6.2]]))
    assert cut_tree(tree, 3).tolist() == cut_tree(tree, 9).tolist() == [0, 1, 2]


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 14), st.integers(1, 3), st.integers(0, 10**6))
def test_repeated_points_are_weights(n: int, p: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    points, weights = rng.normal(size=(n, p)), rng.integers(1, 4, n)
    tree = tree_of(points, weights)
    repeated = linkage(np.repeat(points, weights, axis=0), "ward")
    # SciPy's heights are sqrt(2 cost); copies of a point are merged at height 0
    np.testing.assert_allclose(
        np.sqrt(2.0 * tree.costs), repeated[weights.sum() - n :, 2], rtol=1e-6
    )
    for k in range(1, n + 1):
        theirs = fcluster(repeated, k, "maxclust")
        mine = np.repeat(cut_tree(tree, k), weights)
        assert scores(contingency(theirs, mine)).ari == 1.0


def test_ties_and_equal_points() -> None:
    tree = tree_of(np.zeros((5, 2)), np.ones(5))
    assert tree.costs.tolist() == [0.0] * 4
    grid = np.array([[x, y] for x in range(4) for y in range(4)], float)
    again = tree_of(grid, np.ones(16))
    assert np.array_equal(tree_of(grid, np.ones(16)).merges, again.merges)
    for k in range(1, 17):
        assert len(np.unique(cut_tree(again, k))) == k


def test_simplex_far_from_the_origin() -> None:
    """All pairs are equally far apart, except for rounding."""
    for offset in (0.1, 0.3, 1.7, 1e3 / 3):
        for scale in (1.0, 0.7, 1.0 / 3):
            assert_valid_tree(scale * np.eye(7) + offset, np.ones(7))


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 12),
    st.integers(1, 3),
    st.floats(1e-3, 1e3),
    st.floats(-1e3, 1e3),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_every_cut_of_tied_points_has_the_requested_groups(
    n: int, copies: int, scale: float, offset: float, weighted: bool, seed: int
) -> None:
    """The points are shifted one-hot rows, some of them repeated."""
    rng = np.random.default_rng(seed)
    points = np.repeat(scale * np.eye(n) + offset, rng.integers(1, copies + 1, n), axis=0)
    weights = rng.integers(1, 50, len(points)) / 7.0 if weighted else np.ones(len(points))
    assert_valid_tree(points[rng.permutation(len(points))], weights)


def assert_valid_tree(points: np.ndarray, weights: np.ndarray) -> None:
    costs = _costs(points, weights)
    assert np.array_equal(costs, costs.T)
    tree, n = tree_of(points, weights), len(points)
    assert sorted(tree.merges.ravel().tolist()) == list(range(2 * n - 2))
    assert (np.diff(tree.costs) >= 0.0).all()
    for k in range(1, n + 1):
        assert len(np.unique(cut_tree(tree, k))) == k


def test_one_leaf() -> None:
    tree = tree_of(np.ones((1, 3)), np.ones(1))
    assert tree.merges.shape == (0, 2)
    assert cut_tree(tree, 1).tolist() == [0]
