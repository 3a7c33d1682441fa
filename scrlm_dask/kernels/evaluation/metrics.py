"""Agreement of labels with a known truth: accuracy, purity, NMI, ARI and outlier scores.

All scores are functions of one table: the number of rows with each pair (truth, label). The table
is sparse and mergeable, so rows can be counted block by block. In truth and labels, -1 marks
outliers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy  # scipy.optimize is imported on first use: its import takes a third of a second
from numpy.typing import ArrayLike, NDArray

from scrlm_dask.errors import InputError
from scrlm_dask.kernels import OUTLIER

_MOST_CELLS = 2**22  # a larger table of classes and clusters is not built


@dataclass(frozen=True)
class Contingency:
    """Number of rows with each pair (truth, label): a mergeable part.

    Three arrays (pairs,). Each pair occurs once; pairs are sorted by truth, then by label.
    """

    truth_ids: NDArray[np.int64]
    label_ids: NDArray[np.int64]
    counts: NDArray[np.int64]


@dataclass(frozen=True)
class Scores:
    """Agreement of labels with the true labels.

    Attributes
    ----------
    accuracy : float
        Share of rows whose cluster is matched with their class by the best one-to-one matching.
        The label -1 matches only outliers.
    purity : float
        Share of rows that belong to the largest class of their cluster, or are outliers with label
        -1.
    nmi, ari : float
        Normalized mutual information and adjusted Rand index.
    outlier_precision, outlier_recall : float
        Precision and recall of the label -1.
    n_rows : int
        Number of rows.
    n_clusters, n_classes : int
        Number of clusters and of classes, without the outliers.
    matching : dict
        Maps each cluster to its matched class, if the two have rows in common.
    """

    accuracy: float
    purity: float
    nmi: float
    ari: float
    outlier_precision: float
    outlier_recall: float
    n_rows: int
    n_clusters: int
    n_classes: int
    matching: dict[int, int]


def contingency(truth: ArrayLike, labels: ArrayLike) -> Contingency:
    """Count the pairs (truth, label) of a block; truth and labels (rows,) are any integers."""
    truth_ids, label_ids = _integers("truth", truth), _integers("labels", labels)
    if truth_ids.size != label_ids.size:
        raise InputError(
            f"truth has {truth_ids.size} rows but labels has {label_ids.size}; "
            "pass both for the same rows, in the same order"
        )
    return _count(truth_ids, label_ids, np.ones(truth_ids.size, dtype=np.int64))


def merge_contingency(a: Contingency, b: Contingency) -> Contingency:
    """Add up the counts of two parts; integer sums are exact, so the order does not matter."""
    return _count(
        np.concatenate([a.truth_ids, b.truth_ids]),
        np.concatenate([a.label_ids, b.label_ids]),
        np.concatenate([a.counts, b.counts]),
    )


def scores(table: Contingency) -> Scores:
    """Return all scores of a table with at least one row.

    accuracy: share of correct rows under the best one-to-one matching of clusters with classes;
    label -1 matches only class -1.
    purity: share of rows that are in the largest overlap of their cluster with a class, or are
    outliers labelled as outliers.
    nmi, ari: as in scikit-learn (arithmetic mean), with outliers as a class of their own.
    outlier_precision: nan if no row is labelled as an outlier.
    outlier_recall: nan if no row is an outlier.
    """
    if table.counts.size == 0:
        raise InputError("the table has 0 rows; scores require at least 1 labelled row")
    n_rows = int(table.counts.sum())
    called, is_outlier = table.label_ids == OUTLIER, table.truth_ids == OUTLIER
    n_detected = int(table.counts[called & is_outlier].sum())
    inliers = _select(table, ~called & ~is_outlier)
    matching, matched = _best_matching(inliers)
    return Scores(
        accuracy=(matched + n_detected) / n_rows,
        purity=(_largest_overlaps(inliers) + n_detected) / n_rows,
        nmi=_nmi(table),
        ari=_ari(table),
        outlier_precision=_ratio(n_detected, int(table.counts[called].sum())),
        outlier_recall=_ratio(n_detected, int(table.counts[is_outlier].sum())),
        n_rows=n_rows,
        n_clusters=np.unique(table.label_ids[~called]).size,
        n_classes=np.unique(table.truth_ids[~is_outlier]).size,
        matching=matching,
    )


def with_outlier_cluster(table: Contingency) -> Contingency:
    """Return the table with one cluster labelled as outliers: the cluster matched with outliers.

    Use it for methods that cannot label outliers, after fitting them with an additional cluster.
    Outliers are a class of the one-to-one matching, so at most one cluster is matched with them.
    """
    is_outlier = table.truth_ids == OUTLIER
    outlier_class = int(table.truth_ids.max(initial=0)) + 1
    classes = np.where(is_outlier, outlier_class, table.truth_ids)
    matching, _ = _best_matching(_count(classes, table.label_ids, table.counts))
    matched = [label for label, truth in matching.items() if truth == outlier_class]
    called = np.isin(table.label_ids, matched)
    return _count(table.truth_ids, np.where(called, OUTLIER, table.label_ids), table.counts)


def _integers(name: str, values: ArrayLike) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1:
        raise InputError(
            f"{name} must be a 1-d array with one value per row, got shape {array.shape}"
        )
    # NumPy converts an empty list to float64, but it is a valid block of 0 rows.
    if array.size and not np.can_cast(array.dtype, np.int64):
        raise InputError(
            f"{name} must contain integers that fit int64, got {array.dtype}; "
            f"use {name}.astype(np.int64) if its values are whole numbers"
        )
    return array.astype(np.int64, copy=False)


def _count(
    truth_ids: NDArray[np.int64], label_ids: NDArray[np.int64], counts: NDArray[np.int64]
) -> Contingency:
    """Sort the pairs and add up the counts of equal pairs; all arguments are arrays (entries,)."""
    order = np.lexsort((label_ids, truth_ids))
    truth_ids, label_ids = truth_ids[order], label_ids[order]
    is_first = np.ones(order.size, dtype=bool)
    is_first[1:] = (truth_ids[1:] != truth_ids[:-1]) | (label_ids[1:] != label_ids[:-1])
    starts = np.flatnonzero(is_first)
    # bincount with weights would add in float64, which is exact only up to 2^53.
    return Contingency(truth_ids[starts], label_ids[starts], np.add.reduceat(counts[order], starts))


def _select(table: Contingency, keep: NDArray[np.bool_]) -> Contingency:
    return Contingency(table.truth_ids[keep], table.label_ids[keep], table.counts[keep])


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else math.nan


def _best_matching(inliers: Contingency) -> tuple[dict[int, int], int]:
    """Return the one-to-one matching label -> truth with the most rows, and the number of rows."""
    classes, rows = np.unique(inliers.truth_ids, return_inverse=True)
    clusters, columns = np.unique(inliers.label_ids, return_inverse=True)
    if classes.size * clusters.size <= _MOST_CELLS:
        pairs = _match_table(rows, columns, inliers.counts, (classes.size, clusters.size))
    elif classes.size <= clusters.size:
        pairs = _match_pairs(rows, columns, inliers.counts)
    else:
        pairs = _match_pairs(columns, rows, inliers.counts)
    matching = zip(clusters[columns[pairs]].tolist(), classes[rows[pairs]].tolist(), strict=True)
    return dict(sorted(matching)), int(inliers.counts[pairs].sum())


def _match_table(
    rows: NDArray[np.intp],
    columns: NDArray[np.intp],
    counts: NDArray[np.int64],
    shape: tuple[int, int],
) -> NDArray[np.intp]:
    """Return the entries (row, column, count) of the best matching, from a table of all cells."""
    # float64, because the solver would make a float64 copy of an int64 table.
    overlaps = np.zeros(shape)
    overlaps[rows, columns] = counts
    matched = np.full(shape[0], -1, np.intp)
    pair_rows, pair_columns = scipy.optimize.linear_sum_assignment(overlaps, maximize=True)
    matched[pair_rows] = pair_columns
    # The solver also pairs rows and columns without an entry, in an arbitrary order.
    return np.flatnonzero(matched[rows] == columns)


def _match_pairs(
    rows: NDArray[np.intp], columns: NDArray[np.intp], counts: NDArray[np.int64]
) -> NDArray[np.intp]:
    """Return the entries of the best matching without a table of all cells.

    The solver requires that every row is matched. Each row therefore gets a column of its own, and
    all counts are increased by one: this adds the same number to the total of every matching.
    """
    n_rows, n_columns = int(rows.max()) + 1, int(columns.max()) + 1
    own = np.arange(n_rows)
    graph = scipy.sparse.csr_array(
        (
            np.concatenate([counts + 1.0, np.ones(n_rows)]),
            (np.concatenate([rows, own]), np.concatenate([columns, n_columns + own])),
        ),
        shape=(n_rows, n_columns + n_rows),
    )
    match = scipy.sparse.csgraph.min_weight_full_bipartite_matching
    _, matched = match(graph, maximize=True)  # sorted by row
    return np.flatnonzero(matched[rows] == columns)


def _largest_overlaps(inliers: Contingency) -> int:
    """Return the sum over clusters of the largest overlap with one class."""
    clusters, columns = np.unique(inliers.label_ids, return_inverse=True)
    largest = np.zeros(clusters.size, dtype=np.int64)
    np.maximum.at(largest, columns, inliers.counts)
    return int(largest.sum())


def _marginal(
    ids: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """Return the number of rows of each distinct id (ids,), and the index of each pair (pairs,)."""
    distinct, index = np.unique(ids, return_inverse=True)
    sizes = np.zeros(distinct.size, dtype=np.int64)
    np.add.at(sizes, index, counts)
    return sizes, index


def _nmi(table: Contingency) -> float:
    """Return the mutual information divided by the arithmetic mean of the two entropies."""
    class_sizes, rows = _marginal(table.truth_ids, table.counts)
    cluster_sizes, columns = _marginal(table.label_ids, table.counts)
    if class_sizes.size == cluster_sizes.size == 1:
        return 1.0  # one class and one cluster agree, but the formula is 0/0
    n_rows = int(table.counts.sum())
    # A sum of logarithms, because the product of two sizes can overflow int64.
    log_ratios = np.log(table.counts) + math.log(n_rows)
    log_ratios -= np.log(class_sizes)[rows] + np.log(cluster_sizes)[columns]
    mutual = float(np.sum(table.counts / n_rows * log_ratios))
    mean_entropy = (_entropy(class_sizes / n_rows) + _entropy(cluster_sizes / n_rows)) / 2
    # Rounding may put the result outside [0, 1] by an ulp.
    return min(max(mutual / mean_entropy, 0.0), 1.0)


def _entropy(shares: NDArray[np.float64]) -> float:
    return -float(np.sum(shares * np.log(shares)))


def _ari(table: Contingency) -> float:
    """Return the adjusted Rand index from four counts of ordered pairs of rows.

    The two rows of a pair share class and cluster, only the class, only the cluster, or neither.
    """
    both = _sum_of_squares(table.counts)
    only_class = _sum_of_squares(_marginal(table.truth_ids, table.counts)[0]) - both
    only_cluster = _sum_of_squares(_marginal(table.label_ids, table.counts)[0]) - both
    if only_class == only_cluster == 0:
        return 1.0  # equal partitions; with one row or one cluster the formula is 0/0
    n_rows = int(table.counts.sum())
    neither = n_rows * n_rows - only_class - only_cluster - both
    together = both - n_rows  # without the pairs of a row with itself
    agreement = 2 * (together * neither - only_class * only_cluster)
    return agreement / (
        (together + only_class) * (only_class + neither)
        + (together + only_cluster) * (only_cluster + neither)
    )


def _sum_of_squares(values: NDArray[np.int64]) -> int:
    """Return the exact sum as a Python integer: the square of a count of 4e9 exceeds int64."""
    return sum(value * value for value in values.tolist())


@dataclass(frozen=True)
class Recovery:
    """Largest relative errors of the mixture parameters, over clusters matched with a true class.

    Attributes
    ----------
    weights, sigmas : float
        Largest relative error of a weight and of a standard deviation.
    """

    weights: float
    sigmas: float


def recovery(
    table: Contingency,
    result: Scores,
    weights: NDArray[np.float64],
    sigmas: NDArray[np.float64],
    true_sigmas: NDArray[np.float64],
) -> Recovery:
    """Compare estimated weights and sigmas (k,) with those of the classes in `result.matching`.

    The true weight of a class is its share of the drawn rows, not its weight in the mixture: the
    random difference of the two is not an error of the fit.
    """
    if not result.matching:
        return Recovery(float("nan"), float("nan"))
    labels = np.array(list(result.matching), np.int64)
    classes = np.array(list(result.matching.values()), np.int64)
    sizes, _ = _marginal(table.truth_ids, table.counts)
    shares = sizes[np.searchsorted(np.unique(table.truth_ids), classes)] / result.n_rows
    return Recovery(
        weights=_largest_error(weights[labels], shares),
        sigmas=_largest_error(sigmas[labels], true_sigmas[classes]),
    )


def _largest_error(estimates: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    return float(np.max(np.abs(estimates / truth - 1.0)))
