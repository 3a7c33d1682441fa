"""Scores for known true labels: by hand, by brute force and by scikit-learn."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from scrlm_dask.errors import InputError
from scrlm_dask.kernels.evaluation.metrics import (
    Contingency,
    contingency,
    merge_contingency,
    scores,
    with_outlier_cluster,
)

Pairs = list[tuple[int, int]]
few_ids = st.integers(-1, 3)
labelled_rows = st.lists(st.tuples(few_ids, few_ids), min_size=1, max_size=40)
any_int64 = st.integers(-(2**63), 2**63 - 1)


def table_of(pairs: Pairs) -> Contingency:
    truth, labels = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return contingency(truth, labels)


def assert_same(a: Contingency, b: Contingency) -> None:
    for name in ("truth_ids", "label_ids", "counts"):
        left, right = getattr(a, name), getattr(b, name)
        assert left.dtype == right.dtype == np.int64
        np.testing.assert_array_equal(left, right)


def accuracy_by_brute_force(pairs: Pairs) -> float:
    """Try every one-to-one map of clusters to classes; None means no class."""
    clusters = sorted({label for _, label in pairs if label != -1})
    classes = [*{truth for truth, _ in pairs if truth != -1}, *[None] * len(clusters)]
    best = 0
    for image in itertools.permutations(classes, len(clusters)):
        names: dict[int, int | None] = {-1: -1, **dict(zip(clusters, image, strict=True))}
        best = max(best, sum(names[label] == truth for truth, label in pairs))
    return best / len(pairs)


# ---------------------------------------------------------------- the table


def test_contingency_by_hand() -> None:
    table = contingency(np.array([2, -1, 2, 0, 2]), np.array([7, -1, 7, 7, -1]))
    np.testing.assert_array_equal(table.truth_ids, [-1, 0, 2, 2])
    np.testing.assert_array_equal(table.label_ids, [-1, 7, -1, 7])
    np.testing.assert_array_equal(table.counts, [1, 1, 1, 2])


def test_merge_adds_exactly_beyond_float64() -> None:
    one, big = np.array([0]), np.array([2**53])
    merged = merge_contingency(Contingency(one, one, big), Contingency(one, one, one + 1))
    assert merged.counts.tolist() == [2**53 + 1]


def test_empty_blocks_are_neutral() -> None:
    empty = contingency([], [])
    table = contingency([1, 2], [3, 3])
    assert_same(merge_contingency(empty, table), table)
    assert_same(merge_contingency(empty, empty), empty)


@given(
    pairs=st.lists(st.tuples(any_int64 | few_ids, any_int64 | few_ids), max_size=40),
    cuts=st.tuples(st.integers(0, 40), st.integers(0, 40)),
)
def test_merging_any_split_equals_the_whole(pairs: Pairs, cuts: tuple[int, int]) -> None:
    first, second = sorted(cuts)
    a, b, c = (table_of(p) for p in (pairs[:first], pairs[first:second], pairs[second:]))
    whole = table_of(pairs)
    assert_same(merge_contingency(merge_contingency(a, b), c), whole)
    assert_same(merge_contingency(a, merge_contingency(b, c)), whole)
    assert_same(merge_contingency(merge_contingency(c, a), b), whole)
    counted = zip(whole.truth_ids.tolist(), whole.label_ids.tolist(), whole.counts, strict=True)
    assert [(pair, n) for *pair, n in counted] == [
        (list(pair), pairs.count(pair)) for pair in sorted(set(pairs))
    ]


@pytest.mark.parametrize(
    ("truth", "labels", "facts"),
    [
        ([1, 2], [1], r"(?=.*\btruth\b)(?=.*\b2\b)(?=.*\blabels\b)(?=.*\b1\b)"),
        ([[1]], [1], r"(?=.*\btruth\b)(?=.*\(1, 1\))"),
        ([1], [1.0], r"(?=.*\blabels\b)(?=.*\bfloat64\b)"),
        (np.array([1], dtype=np.uint64), [1], r"(?=.*\btruth\b)(?=.*\buint64\b)"),
    ],
)
def test_invalid_labels_are_rejected(truth: object, labels: object, facts: str) -> None:
    with pytest.raises(InputError, match=facts):
        contingency(truth, labels)  # type: ignore[arg-type]


# ---------------------------------------------------------------- the scores


def test_scores_by_hand() -> None:
    # number of rows  label 0  label 1  label 2  label -1
    # truth 5             4        3        0        1
    # truth 6             5        0        0        0
    # truth -1            0        0        2        5      20 rows in total
    # A greedy matching pairs label 0 with 6 (5 rows) and then 1 with 5 (3 rows): 8 rows. Here it
    # is the best, as the other one has 4 + 0. Label 2 contains only outliers and is not matched.
    # accuracy (8 + 5)/20; purity (5 + 3 + 0 + 5)/20; precision 5/6; recall 5/7
    pairs = [(5, 0)] * 4 + [(5, 1)] * 3 + [(5, -1)] + [(6, 0)] * 5 + [(-1, 2)] * 2 + [(-1, -1)] * 5
    result = scores(table_of(pairs))
    assert result.accuracy == 13 / 20
    assert result.purity == 13 / 20
    assert result.matching == {0: 6, 1: 5}
    assert result.outlier_precision == 5 / 6
    assert result.outlier_recall == 5 / 7
    assert (result.n_rows, result.n_clusters, result.n_classes) == (20, 3, 2)


def test_best_matching_is_not_the_greedy_one() -> None:
    # truth 0: 5 with label 0, 4 with label 1; truth 1: 4 with label 0.
    # a greedy matching has 5 + 0 rows, the best one 4 + 4 = 8 of 13; purity is (5 + 4) / 13
    result = scores(table_of([(0, 0)] * 5 + [(0, 1)] * 4 + [(1, 0)] * 4))
    assert result.accuracy == 8 / 13
    assert result.purity == 9 / 13
    assert result.matching == {0: 1, 1: 0}


def test_pairs_without_common_rows_are_not_matched() -> None:
    # 0-0 has 5 rows, more than 0-1 and 1-0 together (2); cluster 1 and class 1 share no row
    assert scores(table_of([(0, 0)] * 5 + [(0, 1), (1, 0)])).matching == {0: 0}


def test_two_clusters_of_one_class() -> None:
    # 3 + 2 rows of class 0: only one cluster can match it, but both are pure
    result = scores(table_of([(0, 0)] * 3 + [(0, 1)] * 2))
    assert result.accuracy == 3 / 5
    assert result.purity == 1.0
    assert result.matching == {0: 0}


def test_outliers_are_never_permuted() -> None:
    # a cluster of true outliers and a class labelled as outliers: no row is correct, although a
    # permutation of the labels would fit
    result = scores(table_of([(-1, 0), (-1, 0), (0, -1)]))
    assert result.accuracy == result.purity == 0.0
    assert result.outlier_precision == result.outlier_recall == 0.0
    assert result.matching == {}
    assert result.ari == result.nmi == 1.0  # the partitions are the same


def test_outlier_scores_are_undefined_without_outliers() -> None:
    result = scores(table_of([(0, 0), (1, 1)]))
    assert math.isnan(result.outlier_precision)
    assert math.isnan(result.outlier_recall)
    missed = scores(table_of([(0, 0), (-1, 1)]))
    assert math.isnan(missed.outlier_precision)
    assert missed.outlier_recall == 0.0
    invented = scores(table_of([(0, 0), (0, -1)]))
    assert invented.outlier_precision == 0.0
    assert math.isnan(invented.outlier_recall)


def test_nmi_and_ari_by_hand() -> None:
    # truth 0 0 1 1, labels 0 0 0 1; shares 1/2 (0,0), 1/4 (1,0), 1/4 (1,1)
    # MI = 1/2 log(4/3) + 1/4 log(2/3) + 1/4 log 2 = 0.2157616
    # H = log 2 = 0.6931472 and -(3/4 log 3/4 + 1/4 log 1/4) = 0.5623351, mean 0.6277412
    # NMI = 0.3437110
    # ARI: pairs together in both 1; in truth 2, in labels 3, of 6: expected 2*3/6 = 1, so 0
    result = scores(table_of([(0, 0), (0, 0), (1, 0), (1, 1)]))
    assert result.nmi == pytest.approx(0.3437110, abs=1e-7)
    assert result.ari == 0.0


def test_all_rows_are_outliers() -> None:
    result = scores(table_of([(-1, -1)] * 3))
    assert result.accuracy == result.purity == result.nmi == result.ari == 1.0
    assert (result.n_clusters, result.n_classes) == (0, 0)


def test_empty_table_is_rejected() -> None:
    with pytest.raises(InputError, match=r"\b0\b"):
        scores(contingency([], []))


def test_ids_may_be_any_integers() -> None:
    ids = np.array([-(2**63), 2**63 - 1])
    result = scores(contingency(ids, ids[::-1]))
    assert result.accuracy == result.ari == 1.0
    assert result.matching == {-(2**63): 2**63 - 1, 2**63 - 1: -(2**63)}


def test_more_rows_than_int64_can_square() -> None:
    # ARI and NMI of large tables depend only on shares, so 8e6 and 8e9 rows give the same
    truth, labels, counts = np.array([0, 0, 1]), np.array([0, 1, 1]), np.array([3, 1, 4])
    large = scores(Contingency(truth, labels, counts * 10**6))
    huge = scores(Contingency(truth, labels, counts * 10**9))
    assert huge.n_rows == 8 * 10**9
    assert huge.accuracy == large.accuracy == 7 / 8
    assert huge.nmi == pytest.approx(large.nmi, abs=1e-12)
    assert huge.ari == pytest.approx(large.ari, abs=1e-6)


@given(labelled_rows)
def test_accuracy_equals_brute_force(pairs: Pairs) -> None:
    result = scores(table_of(pairs))
    assert result.accuracy == accuracy_by_brute_force(pairs)
    names = {-1: -1, **result.matching}
    right = sum(names.get(label) == truth for truth, label in pairs)
    assert right / len(pairs) == result.accuracy  # the returned matching gives the accuracy
    assert len(set(result.matching.values())) == len(result.matching)
    assert result.accuracy <= result.purity <= 1.0


@given(labelled_rows)
def test_nmi_and_ari_equal_scikit_learn(pairs: Pairs) -> None:
    truth, labels = np.array(pairs).T
    result = scores(contingency(truth, labels))
    assert result.nmi == pytest.approx(normalized_mutual_info_score(truth, labels), abs=1e-9)
    assert result.ari == pytest.approx(adjusted_rand_score(truth, labels), abs=1e-12)


def test_cluster_that_matches_outliers_best_is_labelled_as_outliers() -> None:
    truth = [-1] * 5 + [0] * 3 + [1] * 3
    labels = [7] * 4 + [2] + [2] * 3 + [4] * 3
    table = with_outlier_cluster(contingency(truth, labels))
    expected = contingency(truth, [-1] * 4 + [2] + [2] * 3 + [4] * 3)
    assert_same(table, expected)
    found = scores(table)
    assert found.accuracy == 10 / 11
    assert (found.outlier_precision, found.outlier_recall) == (1.0, 4 / 5)


def test_cluster_that_matches_a_class_better_is_kept() -> None:
    # both clusters contain outliers, but share more rows with a class
    table = contingency([-1, -1, 0, 0, 0, 1, 1, 1], [5, 6, 5, 5, 5, 6, 6, 6])
    assert_same(with_outlier_cluster(table), table)


def test_clusters_are_kept_without_outliers() -> None:
    table = contingency([0, 0, 1], [3, 3, 4])
    assert_same(with_outlier_cluster(table), table)


# ---------------------------------------------------------------- many classes and clusters


@given(pairs=labelled_rows)
def test_matching_without_a_table_of_all_cells(pairs: Pairs) -> None:
    table = table_of(pairs)
    with patch("scrlm_dask.kernels.evaluation.metrics._MOST_CELLS", 0):
        result = scores(table)
    assert result.accuracy == scores(table).accuracy == accuracy_by_brute_force(pairs)
    counts = {pair: pairs.count(pair) for pair in pairs}
    matched = [counts[truth, label] for label, truth in result.matching.items()]
    n_detected = counts.get((-1, -1), 0)
    assert (sum(matched) + n_detected) / len(pairs) == result.accuracy
    assert len(set(result.matching.values())) == len(matched)


def test_memory_does_not_grow_with_classes_times_clusters() -> None:
    # Class i has 2 rows in cluster i and 1 row in cluster i + 1, which matches class i + 1. A
    # table of all cells would have 3.2 GB.
    n = 20_000
    truth = np.repeat(np.arange(n), 3)
    labels = truth + np.tile([0, 0, 1], n)
    tracemalloc.start()
    result = scores(contingency(truth, labels))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result.accuracy == 2 / 3
    assert result.matching == {i: i for i in range(n)}
    assert peak_bytes < 1000 * n
