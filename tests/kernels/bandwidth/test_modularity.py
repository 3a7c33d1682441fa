"""Modularity of cuts: small cases by hand, the null, and the chosen numbers of clusters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrlm_dask.kernels.bandwidth import modularity
from scrlm_dask.kernels.bandwidth.ladder import pair_sq_distances
from scrlm_dask.kernels.bandwidth.modularity import (
    CLEAR_GAP,
    LEAST_ROWS,
    MOST_CUT,
    NULL_RANK,
    WEAK_GAP,
    CutLabels,
    CutTrial,
    Levels,
    NullComparison,
    SampleTree,
    best_cut,
    choose_levels,
    nearest_quantile,
    nearest_rows,
    null_rows,
)
from scrlm_dask.kernels.distances.points import Points, prepare_points
from scrlm_dask.kernels.distances.preprocessing import fit_map
from scrlm_dask.kernels.scrlm.ward import cut_tree, tree_of_distances


def sq_distances_of(rows: np.ndarray, n: int) -> np.ndarray:
    """Return the exact squared distances (n, rows) of the first n rows to all rows."""
    rows = rows.astype(np.float64)
    return np.square(rows[:n, None] - rows).sum(axis=-1).astype(np.float32)


def tree_on(rows: np.ndarray, n: int) -> SampleTree:
    return SampleTree(rows[:n], sq_distances_of(rows, n))


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


# --- modularity by hand --------------------------------------------------------------------------


def test_modularity_of_a_trial() -> None:
    trial = CutTrial(clusters=3, same=0.8, expected=0.4)
    assert trial.modularity(1.0) == pytest.approx(0.4)
    assert trial.modularity(0.5) == pytest.approx(0.6)
    assert trial.modularity() == pytest.approx(0.8 - 1.5 * 0.4)


def test_two_pairs_with_one_neighbor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The neighbor of each row is the other row of its pair."""
    monkeypatch.setattr(modularity, "NEIGHBORS", 1)
    tree = tree_on(column(0, 10, 1, 11), 4)
    assert tree.labels(2).tolist() == [0, 1, 0, 1]
    assert tree.cut(2) == CutTrial(2, same=1.0, expected=0.5)
    assert tree.cut(1) == CutTrial(1, same=1.0, expected=1.0)


def test_two_pairs_with_all_neighbors() -> None:
    """There are fewer rows than neighbors: every row is a neighbor of the three others."""
    trial = tree_on(column(0, 10, 1, 11), 4).cut(2)
    assert (trial.same, trial.expected) == (pytest.approx(1 / 3), pytest.approx(1 / 2))


@pytest.mark.parametrize(
    ("k", "same", "expected"),
    [
        # 0 -> 1, 10 -> 11 and 11 -> 10: one of three edges begins and ends in the first cluster
        (1, 1.0, 1 / 9 + 4 / 9),
        # in addition 0 -> 10, 10 -> 1 and 11 -> 1: half of all edges end in each cluster
        (2, 0.5, 1 / 6 + 2 / 6),
    ],
)
def test_edges_run_from_candidates_to_rows(
    k: int, same: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modularity, "NEIGHBORS", k)
    tree = tree_on(column(0, 10, 11, 1), 3)  # 1 is not a candidate
    assert tree.labels(2).tolist() == [0, 1, 1, 0]
    trial = tree.cut(2)
    assert (trial.same, trial.expected) == (pytest.approx(same), pytest.approx(expected))


def test_best_cut_prefers_fewer_clusters_if_equal() -> None:
    trials = [CutTrial(2, 0.5, 0.2), CutTrial(3, 0.9, 0.1), CutTrial(5, 0.9, 0.1)]
    assert best_cut(trials).clusters == 3
    assert best_cut(trials[::-1]).clusters == 3
    # 0.9 - 0.5 * 0.6 > 0.5 - 0.5 * 0, but 0.9 - 2 * 0.6 < 0.5
    few, many = CutTrial(2, 0.9, 0.6), CutTrial(9, 0.5, 0.0)
    assert best_cut([few, many], 0.5) is few
    assert best_cut([few, many], 2.0) is many


# --- neighbors and labels ------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 30), st.data())
def test_nearest_rows_equal_a_stable_sort(rows: int, data: st.DataObject) -> None:
    n, k = data.draw(st.integers(1, rows)), data.draw(st.integers(1, rows - 1))
    seed, most = data.draw(st.integers(0, 10**6)), data.draw(st.sampled_from([0, 3, 10**6]))
    sq_distances = np.random.default_rng(seed).integers(0, most + 1, (n, rows)).astype(np.float32)
    found = nearest_rows(sq_distances, k)
    for j in range(n):
        order = [i for i in np.argsort(sq_distances[j], kind="stable").tolist() if i != j]
        assert found[j].tolist() == order[:k]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 40), st.integers(1, 4), st.sampled_from([0.0, 50.0]), st.integers(0, 10**6))
def test_labels_equal_those_of_explicit_means(n: int, p: int, offset: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, extra = rng.integers(0, 5), rng.integers(0, 30)
    rows = (rng.normal(size=(first + n + extra, p)) + offset).astype(np.float32)
    leaves = rows[first : first + n]
    sq_distances = np.square(leaves[:, None].astype(float) - rows).sum(axis=-1).astype(np.float32)
    tree = tree_of_distances(leaves, sq_distances[:, first : first + n])
    most = int(rng.integers(1, n + 1))
    labels = CutLabels(tree, sq_distances, most, first)
    for m in range(1, most + 1):
        groups = cut_tree(tree, m)
        means = np.array([leaves[groups == k].mean(axis=0, dtype=float) for k in range(m)])
        to_means = np.square(rows[:, None].astype(float) - means).sum(axis=-1)
        two = np.sort(to_means, axis=1)[:, :2]
        clear = np.ones(len(rows), bool) if m == 1 else two[:, 1] - two[:, 0] > 1e-3
        np.testing.assert_array_equal(labels.at(m)[clear], to_means.argmin(axis=1)[clear])


def test_equal_rows_have_equal_labels() -> None:
    rows = np.repeat(np.eye(4, dtype=np.float32), 5, axis=0)
    tree = tree_on(rows, 20)
    labels = tree.labels(2)
    assert all(len(set(labels[5 * k : 5 * k + 5].tolist())) == 1 for k in range(4))


# --- search --------------------------------------------------------------------------------------


def blobs(
    rng: np.random.Generator, k: int, p: int, n: int, spread: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of k clusters with unit deviation whose centers have deviation `spread`."""
    centers, truth = spread * rng.normal(size=(k, p)), rng.integers(k, size=n)
    return (centers[truth] + rng.normal(size=(n, p))).astype(np.float32), truth


def test_search_tries_a_geometric_grid() -> None:
    rows, _ = blobs(np.random.default_rng(0), 6, 30, 128, 4.0)
    tree = tree_on(rows, 64)
    assert tree.most_clusters == 16  # eight rows per cluster
    found = tree.search()
    numbers = [trial.clusters for trial in found.trials]
    assert set(numbers) >= {2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 16}
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == tree.most_clusters
    assert found.best in found.trials
    assert found.best.clusters == 6


@pytest.mark.parametrize(
    ("rows", "n", "most"), [(2, 2, 2), (9, 9, 2), (32, 8, 4), (80, 3, 3), (80, 80, 10)]
)
def test_largest_number_of_clusters(rows: int, n: int, most: int) -> None:
    x = np.random.default_rng(0).normal(size=(rows, 3)).astype(np.float32)
    tree = tree_on(x, n)
    assert tree.most_clusters == most <= MOST_CUT
    assert max(trial.clusters for trial in tree.search().trials) == most


@pytest.mark.parametrize("k", [3, 4, 5])
def test_few_clear_clusters_are_counted_exactly(k: int) -> None:
    rows, _ = blobs(np.random.default_rng(0), k, 30, 1000, 0.9)
    tree = tree_on(rows, 500)
    others = [tree.cut(m).modularity() for m in range(2, 12) if m != k]
    assert tree.cut(k).modularity() > max(others) + 0.012
    assert tree.search().best.clusters == k


# --- the null ------------------------------------------------------------------------------------


def points_of(rows: np.ndarray, kind: str = "none") -> Points:
    return prepare_points(rows, fit_map(kind, rows.shape[1], None))


def test_null_has_the_covariance_of_the_sample() -> None:
    rng = np.random.default_rng(0)
    sample = (rng.normal(size=(4000, 4)) @ rng.normal(size=(4, 4)) + 7.0).astype(np.float32)
    null = null_rows(points_of(sample)).astype(np.float64)
    assert null.shape == sample.shape
    factor = np.linalg.cholesky(np.cov(sample[:NULL_RANK].T, bias=True))
    standard = np.linalg.solve(factor, null.T)
    # 4 000 independent rows with covariance 1: five standard errors
    assert np.abs(standard.mean(axis=1)).max() < 5.0 / np.sqrt(4000)
    np.testing.assert_allclose(standard @ standard.T / 4000, np.eye(4), atol=5 * (2 / 4000) ** 0.5)
    # rows of the null are normal: 3 is the fourth moment
    assert (standard**4).mean() == pytest.approx(3.0, abs=0.3)


def test_null_of_unit_rows_has_unit_length() -> None:
    rng = np.random.default_rng(0)
    sample = rng.normal(size=(2000, 6)) * [3.0, 2, 1, 1, 1, 1] + [2.0, 0, 0, 0, 0, 0]
    points = points_of(sample, "l2")
    null = null_rows(points) + points.shift
    np.testing.assert_allclose(np.linalg.norm(null, axis=1), 1.0, atol=1e-5)
    directions = sample / np.linalg.norm(sample, axis=1, keepdims=True)
    np.testing.assert_allclose(null.mean(axis=0), directions.mean(axis=0), atol=0.1)
    np.testing.assert_allclose(null.std(axis=0), directions.std(axis=0), rtol=0.25)


def test_null_does_not_depend_on_the_location_of_the_sample() -> None:
    sample = np.random.default_rng(0).integers(-8, 8, (64, 3)).astype(np.float32)
    null = null_rows(points_of(sample))
    np.testing.assert_array_equal(null, null_rows(points_of(sample)))
    np.testing.assert_allclose(null, null_rows(points_of(sample + 16.0)), atol=1e-4)
    assert not np.allclose(null, null_rows(points_of(sample), draw=1))


@pytest.mark.parametrize("kind", ["none", "l2"])
def test_null_of_equal_rows_is_zero(kind: str) -> None:
    null = null_rows(points_of(np.full((40, 3), 2.0, np.float32), kind))
    np.testing.assert_allclose(null, 0.0, atol=1e-6)


def test_nearest_quantile_by_hand() -> None:
    rows, points = column(0, 1, 4, 10, 12), column(0, 12)  # distances 0, 1, 4, 2 and 0
    assert nearest_quantile(rows, points) == pytest.approx(1.0)
    assert nearest_quantile(rows, points, 1.0) == pytest.approx(4.0)
    assert nearest_quantile(rows, points, 0.0) == pytest.approx(0.0)


def test_distances_of_the_part_are_computed_or_given() -> None:
    rows, _ = blobs(np.random.default_rng(0), 4, 6, 400, 3.0)
    given_distances = NullComparison(points_of(rows), sq_distances_of(rows, 400))
    computed = NullComparison(points_of(rows))
    for m in (2, 4, 10):
        assert computed.gap(m) == pytest.approx(given_distances.gap(m), abs=0.01)
        assert computed.agreement(m) == pytest.approx(given_distances.agreement(m), abs=0.02)
    # more clusters than the part can have: the largest possible number
    assert computed.gap(10**6) == computed.gap(computed.part.most_clusters)
    assert computed.agreement(10**6) == computed.agreement(computed.part.most_clusters)


def test_gap_and_agreement_of_clear_clusters() -> None:
    rows, _ = blobs(np.random.default_rng(0), 8, 50, 400, 4.0)
    comparison = NullComparison(points_of(rows))
    assert comparison.gap(8) > 0.3
    assert comparison.agreement(8) == 1.0


# --- levels --------------------------------------------------------------------------------------


def levels_of(rows: np.ndarray, n: int) -> Levels:
    points = points_of(rows)
    sq_distances = pair_sq_distances(points, n)
    comparison = NullComparison(points, sq_distances)
    return choose_levels(SampleTree(rows[:n], sq_distances), comparison)


@pytest.mark.parametrize("seed", range(3))
def test_overlapping_clusters_are_counted(seed: int) -> None:
    """The distance between centers is about that between rows of a cluster: no empty boundary."""
    rows, _ = blobs(np.random.default_rng(seed), 20, 30, 4000, 0.9)
    found = levels_of(rows, 2000)
    assert 17 <= found.clusters <= 23
    assert found.structure == "clear"
    check_levels(found)


def test_groups_of_overlapping_clusters_are_the_coarse_level() -> None:
    """Five groups of four clusters each."""
    rng = np.random.default_rng(0)
    groups = np.repeat(2.0 * rng.normal(size=(5, 20)), 4, axis=0)
    centers = groups + 0.7 * rng.normal(size=(20, 20))
    rows = (centers[rng.integers(20, size=2000)] + rng.normal(size=(2000, 20))).astype(np.float32)
    found = levels_of(rows, 1200)
    assert found.coarse in (4, 5, 6)
    assert 12 <= found.clusters <= 23
    assert found.structure == "clear"
    check_levels(found)


def check_levels(found: Levels) -> None:
    assert found.low <= found.clusters <= found.high
    assert found.coarse is None or 1.5 * found.coarse <= found.clusters
    assert found.fine is None or found.fine >= 1.5 * found.clusters
    numbers = [trial.clusters for trial in found.trials]
    assert numbers == sorted(set(numbers))
    (chosen,) = (trial for trial in found.trials if trial.clusters == found.clusters)
    assert found.same == chosen.same
    assert -0.5 <= found.agreement <= 1.0
    limits = {"clear": (CLEAR_GAP, 1.0), "weak": (WEAK_GAP, CLEAR_GAP), "none": (-1.0, WEAK_GAP)}
    low, high = limits[found.structure]
    assert low <= found.gap < high


@pytest.mark.slow  # test_search.py has a fast test of the same data
@pytest.mark.parametrize("n", [LEAST_ROWS, 200, 1000])
@pytest.mark.parametrize("p", [2, 5, 20, 100])
@pytest.mark.parametrize("shape", ["normal", "uniform", "unequal"])
def test_one_group_has_no_structure(shape: str, p: int, n: int) -> None:
    for seed in range(2):
        found = levels_of(one_group(shape, n, p, seed), n)
        assert found.structure == "none", (seed, found.gap)
        # the default is the coarse level, and there are no other levels
        assert (found.coarse, found.fine) == (None, None)
        assert found.low == found.high == found.clusters
        assert found.clusters == best_cut(found.trials, 0.5).clusters
        check_levels(found)


def one_group(shape: str, n: int, p: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, n, p])
    if shape == "uniform":
        return rng.uniform(size=(n, p)).astype(np.float32)
    deviations = rng.lognormal(0.0, 1.5, p) if shape == "unequal" else np.ones(p)
    return (rng.normal(size=(n, p)) * deviations).astype(np.float32)


LEVELS = Levels(19, 11, 54, 8, 76, 0.59, 0.36, "clear", 0.9, ())


def test_description_has_the_numbers() -> None:
    text = LEVELS.describe()
    for fact in ("19", "11 to 54", "coarse 8", "fine 76", "59%", "clear", "0.36"):
        assert fact in text
    alone = replace(LEVELS, low=19, high=19, coarse=None, fine=None).describe()
    for fact in ("19 to 19", "coarse", "fine", "None", "()"):
        assert fact not in alone
    none = replace(LEVELS, gap=0.0312, structure="none").describe()
    for fact in ("19", "0.03", f"{WEAK_GAP:g}"):
        assert fact in none


@pytest.mark.parametrize(("agreement", "stable"), [(0.9, True), (0.7, True), (0.6, False)])
def test_agreement_of_two_parts_shows_stability(agreement: float, stable: bool) -> None:
    assert replace(LEVELS, agreement=agreement).is_stable == stable
