"""The paper's guarantees: Theorem 1 (probability of success) and Corollary 7 (sufficient sizes).

Both assume N rows with p features, m clusters of weight at least a/m each, n candidates and a
bandwidth between the largest sigma and sqrt(0.6). The paper's a is called `min_weight` here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scrlm_dask.errors import InputError

MIN_WEIGHT = 0.8  # the paper's a in all of its synthetic experiments
MOST_RHO = math.sqrt(0.6)  # Assumption 1, for features of standard deviation 1
DELTA = 0.01  # probability of failure; the paper's "success" means 99 of 100 repetitions


@dataclass(frozen=True)
class Requirements:
    """Smallest numbers of candidates, rows and features for which Corollary 7 holds."""

    n_candidates: int
    n_rows: int
    n_features: int


def success_probability(
    n_rows: int,
    n_features: int,
    n_clusters: int,
    n_candidates: int,
    min_weight: float = MIN_WEIGHT,
) -> float:
    """Return a lower bound, in [0, 1], on the probability of 100 % accuracy (Theorem 1).

    If the loss is computed on a random subset of the rows, the theorem holds with the size of the
    subset as `n_rows`. Candidates still come from all rows, so `n_candidates` may exceed `n_rows`.
    """
    _check_counts(
        n_rows=n_rows, n_features=n_features, n_clusters=n_clusters, n_candidates=n_candidates
    )
    _check_min_weight(min_weight)
    log_m = math.log(n_clusters)
    log_failures = (
        math.log(10) + 2 * math.log(n_rows) - n_features / 128,
        log_m - n_candidates * min_weight / n_clusters,
        math.log(2) + log_m - n_features / 128,
        log_m - min_weight * (n_rows - 1) / n_clusters,
    )
    # A term of exp(0) = 1 already means certain failure; the cap prevents an overflow of exp.
    failure = sum(math.exp(min(term, 0.0)) for term in log_failures)
    return max(0.0, 1.0 - failure)


def required_sizes(
    n_clusters: int,
    delta: float = DELTA,
    min_weight: float = MIN_WEIGHT,
    n_rows: int | None = None,
) -> Requirements:
    """Return sufficient sizes for 100 % accuracy with probability above 1 - delta (Corollary 7).

    The required number of features grows with the number of rows. It is computed for `n_rows`, or
    for the required number of rows if `n_rows` is None.
    """
    _check_counts(n_clusters=n_clusters, n_rows=1 if n_rows is None else n_rows)
    _check_min_weight(min_weight)
    if not 0 < delta < 1:
        raise InputError(
            f"delta is a probability of failure and must be strictly between 0 and 1, got {delta}; "
            f"use for example {DELTA}"
        )
    candidates = _candidates_bound(n_clusters, delta, min_weight)
    rows = math.floor(candidates + 1) + 1
    features = max(
        features_for_rows(rows if n_rows is None else n_rows, delta),
        features_for_clusters(n_clusters, delta),
    )
    # The smallest integers above the bounds, because the corollary's inequalities are strict.
    return Requirements(math.floor(candidates) + 1, rows, math.floor(features) + 1)


def features_for_rows(n_rows: int, delta: float = DELTA) -> float:
    """Return the lower bound on the number of features for a number of rows (Corollary 7).

    Corollary 7 requires more features than this bound and than `features_for_clusters`.
    """
    return 128 * (2 * math.log(n_rows) + math.log(40 / delta))


def features_for_clusters(n_clusters: int, delta: float = DELTA) -> float:
    """Return the lower bound on the number of features for a number of clusters (Corollary 7).

    Corollary 7 requires more features than this bound and than `features_for_rows`.
    """
    return 128 * (math.log(n_clusters) + math.log(8 / delta))


def missed_cluster_risk(
    n_clusters: int, n_candidates: int, min_weight: float = MIN_WEIGHT
) -> float:
    """Return an upper bound on the probability that a cluster has no candidate (from Theorem 1)."""
    return min(1.0, n_clusters * math.exp(-n_candidates * min_weight / n_clusters))


def default_candidates(n_rows: int, n_clusters: int) -> int:
    """Return the number of candidates that Corollary 7 requires, at most the number of rows."""
    _check_counts(n_rows=n_rows, n_clusters=n_clusters)
    return min(math.floor(_candidates_bound(n_clusters, DELTA, MIN_WEIGHT)) + 1, n_rows)


def _candidates_bound(n_clusters: int, delta: float, min_weight: float) -> float:
    """Return the lower bound on the number of candidates (Corollary 7)."""
    return n_clusters / min_weight * (math.log(n_clusters) + math.log(4 / delta))


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if not value >= 1:
            raise InputError(f"{name} must be at least 1, got {value}")


def _check_min_weight(value: float) -> None:
    if not 0 < value <= 1:
        raise InputError(
            f"min_weight must be above 0 and at most 1, got {value}: the weights of m clusters, "
            f"each at least min_weight/m, sum to at most 1; use for example {MIN_WEIGHT}"
        )


PAPER_RHO = 0.5  # used if the rows show no scale at all
