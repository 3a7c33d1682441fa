"""Weighted Ward linkage, compared with SciPy: a point of weight w is w equal points there."""

from __future__ import annotations

import signal
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage

from scrlm_dask.kernels.evaluation.metrics import contingency, scores
from scrlm_dask.kernels.scrlm import ward
from scrlm_dask.kernels.scrlm.ward import (
    _costs,
    cut_tree,
    group_means,
    means_bytes,
    nested_tree,
    tree_bytes,
    tree_of_distances,
    ward_tree,
    weighted_means,
)


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


# --- tree of distances ---------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 4), st.booleans(), st.integers(0, 10**6))
def test_tree_of_distances_equals_that_of_the_points(n: int, p: int, tied: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 3, (n, p)).astype(float) if tied else rng.normal(size=(n, p))
    sq_distances = np.square(points[:, None] - points).sum(axis=-1)
    found, expected = tree_of_distances(points, sq_distances), tree_of(points, np.ones(n))
    np.testing.assert_allclose(found.costs, expected.costs, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(found.merges, expected.merges)
    np.testing.assert_array_equal(found.leaves, points)
    np.testing.assert_array_equal(found.weights, np.ones(n))


def test_rounded_distances_are_valid() -> None:
    """Distances may be slightly negative, asymmetric, and not zero on the diagonal."""
    rng = np.random.default_rng(0)
    points = np.repeat(rng.normal(size=(10, 3)), 3, axis=0).astype(np.float32)
    sq_norms = np.square(points).sum(axis=1)
    rounded = sq_norms[:, None] + sq_norms - 2.0 * (points @ points.T)
    rounded += rng.normal(scale=1e-6, size=rounded.shape).astype(np.float32)
    before = rounded.copy()
    tree = tree_of_distances(points, rounded)
    np.testing.assert_array_equal(rounded, before)  # the argument is not changed
    assert (tree.costs >= 0.0).all()
    assert (np.diff(tree.costs) >= 0.0).all()
    assert cut_tree(tree, 10).tolist() == np.repeat(np.arange(10), 3).tolist()


# --- nested tree ---------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 20), st.integers(1, 3), st.booleans(), st.data())
def test_nested_tree(n: int, p: int, tied: bool, data: st.DataObject) -> None:
    k, seed = data.draw(st.integers(1, n)), data.draw(st.integers(0, 10**6))
    rng = np.random.default_rng(seed)
    leaves = rng.integers(0, 2, (n, p)).astype(float) if tied else rng.normal(size=(n, p))
    weights = rng.integers(1, 50, n).astype(float)
    parents = np.sort(np.concatenate([np.arange(k), rng.integers(k, size=n - k)]))
    tree = nested_tree(leaves, weights, leaves, parents)
    np.testing.assert_array_equal(tree.leaves, leaves)  # the order of the leaves is unchanged
    np.testing.assert_array_equal(tree.weights, weights)
    assert sorted(tree.merges.ravel().tolist()) == list(range(2 * n - 2))
    np.testing.assert_array_equal(cut_tree(tree, k), parents)
    cuts = {m: cut_tree(tree, m) for m in range(1, n + 1)}
    for m, groups in cuts.items():
        assert len(np.unique(groups)) == m
        if m > 1:  # each group is inside a group of the next cut
            assert len(np.unique(np.c_[groups, cuts[m - 1]], axis=0)) == m
    # costs ascend inside the groups, and between the groups
    assert (np.diff(tree.costs[: n - k]) >= 0.0).all()
    assert (np.diff(tree.costs[n - k :]) >= 0.0).all()


def test_nested_tree_by_hand() -> None:
    """Leaves 0 and 9 are a group, and 8 is another one: 9 is not joined with 8 first."""
    leaves = np.array([[0.0], [9.0], [8.0]])
    tree = nested_tree(leaves, np.array([1.0, 2.0, 3.0]), leaves, np.array([0, 0, 1]))
    assert tree.merges.tolist() == [[0, 1], [2, 3]]
    # 1 * 2 / 3 * 9^2, then the mean 6 with weight 3 and 8 with weight 3: 9 / 6 * 2^2
    assert tree.costs == pytest.approx([54.0, 6.0])


def test_upper_part_of_a_nested_tree_is_the_tree_of_the_groups() -> None:
    rng = np.random.default_rng(0)
    leaves, weights = rng.normal(size=(30, 3)), rng.integers(1, 9, 30).astype(float)
    parents = np.sort(np.concatenate([np.arange(7), rng.integers(7, size=23)]))
    tree = nested_tree(leaves, weights, leaves, parents)
    upper = tree_of(weighted_means(leaves, weights, parents), np.bincount(parents, weights))
    np.testing.assert_allclose(tree.costs[23:], upper.costs, rtol=1e-9)
    for m in range(1, 8):
        np.testing.assert_array_equal(cut_tree(tree, m), cut_tree(upper, m)[parents])


def test_model_coordinates_decide() -> None:
    """Leaves are in input units; distances are those of the mapped leaves."""
    leaves = np.array([[0.0, 0.0], [0.0, 1.0], [5.0, 0.0]])
    tree = nested_tree(leaves, np.ones(3), leaves * [0.01, 1.0], np.zeros(3, np.int64))
    assert cut_tree(tree, 2).tolist() == [0, 1, 0]
    np.testing.assert_array_equal(tree.leaves, leaves)


def tree_without_matrix(points: np.ndarray, weights: np.ndarray):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ward, "_MATRIX_LEAVES", 0)
        return tree_of(points, weights)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 60), st.integers(1, 40), st.integers(0, 10**6))
def test_tree_without_matrix_is_the_same(n: int, p: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    points, weights = rng.normal(size=(n, p)), rng.integers(1, 50, n)
    expected, tree = tree_of(points, weights), tree_without_matrix(points, weights)
    assert np.array_equal(tree.merges, expected.merges)
    # costs of close points in the matrix have rounding errors of the size of their norms
    np.testing.assert_allclose(tree.costs, expected.costs, rtol=1e-9, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 40), st.integers(1, 3), st.integers(0, 10**6))
def test_tied_points_without_matrix(n: int, p: int, seed: int) -> None:
    points = np.random.default_rng(seed).integers(0, 3, (n, p)).astype(float)
    tree = tree_without_matrix(points, np.ones(n))
    assert (np.diff(tree.costs) >= 0.0).all()
    for k in range(1, n + 1):
        assert len(np.unique(cut_tree(tree, k))) == k
    n_distinct = len(np.unique(points, axis=0))
    groups = cut_tree(tree, n_distinct)  # equal points are joined first
    assert len(np.unique(np.column_stack([points, groups]), axis=0)) == n_distinct


@pytest.mark.parametrize("value", [1e200, 0.0])
def test_extreme_costs_without_matrix(value: float) -> None:
    tree = tree_without_matrix(np.array([[0.0], [value], [-value], [2 * value]]), np.ones(4))
    assert sorted(tree.merges.ravel().tolist()) == list(range(6))


def test_kernel_without_matrix_is_called_for_a_bounded_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    points, weights = rng.normal(size=(300, 6)), rng.integers(1, 9, 300)
    expected, works = tree_without_matrix(points, weights), []
    extend = ward._extend_chains

    def count(points: np.ndarray, weights: object, chains: object, n_scans: int, *out: Any) -> None:
        works.append(n_scans * len(points) * points.shape[1])
        extend(points, weights, chains, n_scans, *out)

    monkeypatch.setattr(ward, "_extend_chains", count)
    for limit in (1.0, 20_000.0):
        works.clear()
        monkeypatch.setattr(ward, "_CALL_MULTIPLICATIONS", limit)
        tree = tree_without_matrix(points, weights)
        assert np.array_equal(tree.merges, expected.merges)
        assert np.array_equal(tree.costs, expected.costs)
        assert len(works) > 100
        assert max(works) <= max(limit, 300 * 6)


class _SignalError(Exception):
    pass


@pytest.mark.parametrize("most_with_matrix", [0, 5000])
def test_signal_during_a_kernel_raises_the_error_of_its_handler(
    monkeypatch: pytest.MonkeyPatch, most_with_matrix: int
) -> None:
    monkeypatch.setattr(ward, "_MATRIX_LEAVES", most_with_matrix)
    points = np.random.default_rng(0).normal(size=(3000, 8))
    tree_of(points[:4], np.ones(4))  # compiles or loads the kernels
    raised = 0

    def stop(*_: object) -> None:
        nonlocal raised
        raised += 1
        raise _SignalError

    before = signal.signal(signal.SIGVTALRM, stop)
    try:
        for _ in range(30):
            with suppress(_SignalError):  # Numba would replace this error by a SystemError
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.005)
                tree_of(points, np.ones(len(points)))
                signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)
    assert raised


def peak_of(function: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("n_groups", [None, 1, 5200])
def test_memory_of_a_large_tree(n_groups: int | None) -> None:
    n, p = 5200, 2
    points = np.random.default_rng(0).normal(size=(n, p))
    tree_without_matrix(points[:4], np.ones(4))  # compiles or loads the kernels
    nested_tree(points[:4], np.ones(4), points[:4], np.arange(4) // 2)
    if n_groups is None:
        peak = peak_of(lambda: ward_tree(points, np.ones(n), points.astype(np.float32)))
    else:
        parents = np.arange(n) * n_groups // n
        peak = peak_of(lambda: nested_tree(points, np.ones(n), points.astype(np.float32), parents))
    assert peak < 1.5 * tree_bytes(n, p) < 0.1 * (8 * n**2)
    assert tree_bytes(20_000, 64) < 500e6


@pytest.mark.parametrize("most_with_matrix", [0, 5000])
@pytest.mark.parametrize(("n", "p"), [(200, 1000), (1000, 10)])
def test_memory_of_a_tree(
    monkeypatch: pytest.MonkeyPatch, most_with_matrix: int, n: int, p: int
) -> None:
    monkeypatch.setattr(ward, "_MATRIX_LEAVES", most_with_matrix)
    leaves = np.random.default_rng(0).normal(size=(n, p))
    ward_tree(leaves[:4], np.ones(4), leaves[:4])  # compiles or loads the kernels
    peak = peak_of(lambda: ward_tree(leaves, np.ones(n), leaves.astype(np.float32)))
    assert 0.7 * tree_bytes(n, p) < peak < 1.05 * tree_bytes(n, p)


@pytest.mark.parametrize("n_groups", [100, 2900])
@pytest.mark.parametrize("p", [2, 300])
def test_memory_of_means(monkeypatch: pytest.MonkeyPatch, n_groups: int, p: int) -> None:
    monkeypatch.setattr(ward, "_MAX_SHARE_BYTES", 8 * 3000 * 100)
    points, groups = np.ones((3000, p)), np.arange(3000) % n_groups
    peak = peak_of(lambda: weighted_means(points, np.ones(3000), groups))
    assert 0.5 * means_bytes(3000, p, n_groups) < peak < 1.1 * means_bytes(3000, p, n_groups)


def test_means_of_many_groups_need_no_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    points, weights = rng.normal(size=(90, 3)), rng.integers(1, 9, 90).astype(float)
    groups = rng.permutation(np.arange(90) % 40)
    expected = weighted_means(points, weights, groups)
    monkeypatch.setattr(ward, "_MAX_SHARE_BYTES", 0)
    np.testing.assert_allclose(weighted_means(points, weights, groups), expected, rtol=1e-12)
