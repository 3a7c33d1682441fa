"""Theorem 1 and Corollary 7 of the paper."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrlm_dask.errors import InputError
from scrlm_dask.kernels.scrlm.theory import (
    DELTA,
    MIN_WEIGHT,
    Requirements,
    default_candidates,
    required_sizes,
    success_probability,
)


def test_success_probability_by_hand() -> None:
    # N=11, p=1280, m=2, n=10, a=0.8; each term by itself:
    #   10 N^2 exp(-p/128)   = 1210 exp(-10) = 0.054934
    #   m exp(-n a/m)        = 2 exp(-4)     = 0.036631
    #   2 m exp(-p/128)      = 4 exp(-10)    = 0.000182
    #   m exp(-a (N-1)/m)    = 2 exp(-4)     = 0.036631
    # sum 0.128378, so 0.871622
    assert success_probability(11, 1280, 2, 10) == pytest.approx(0.871622, abs=1e-6)


def test_each_term_of_the_theorem() -> None:
    # with one small argument, one term remains and the others are below 1e-12
    assert success_probability(10_000, 128 * 30, 1, 10_000) == pytest.approx(
        1 - 1e9 * math.exp(-30) - 2 * math.exp(-30), abs=1e-12
    )
    assert success_probability(10_000, 128 * 60, 3, 15) == pytest.approx(
        1 - 3 * math.exp(-15 * 0.8 / 3), abs=1e-12
    )
    assert success_probability(16, 128 * 60, 3, 10_000) == pytest.approx(
        1 - 3 * math.exp(-0.8 * 15 / 3), abs=1e-12
    )
    assert success_probability(16, 128 * 60, 3, 10_000, min_weight=0.4) == pytest.approx(
        1 - 3 * math.exp(-0.4 * 15 / 3), abs=1e-12
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((10**200, 1, 1, 1), 0.0),  # N^2 alone would overflow a float
        ((10, 1, 1, 1), 0.0),
        ((100, 10**9, 1, 10**9), 1.0),  # exp(-1e7) underflows to 0
        ((10**9, 10**6, 10, 10**9), 1.0),
    ],
)
def test_success_probability_is_clipped_and_does_not_overflow(
    arguments: tuple[int, int, int, int], expected: float
) -> None:
    assert success_probability(*arguments) == expected


def test_required_sizes_by_hand() -> None:
    # m=10, delta=0.01, a=0.8: (10/0.8)(log 10 + log 400) = 12.5 (2.302585 + 5.991465) = 103.6756
    # so n = 104, and N > 104.6756 gives 105
    # p > 128 (2 log 105 + log 4000) = 128 (9.307921 + 8.294050) = 2253.05 and
    # p > 128 (log 10 + log 800)     = 128 (2.302585 + 6.684612) = 1150.36
    assert required_sizes(10) == Requirements(n_candidates=104, n_rows=105, n_features=2254)


def test_required_features_depend_on_the_given_rows() -> None:
    # 128 (2 log 20000 + log 4000) = 128 (19.806975 + 8.294050) = 3596.93; n and N stay
    assert required_sizes(10, n_rows=20_000) == Requirements(104, 105, 3597)


def test_required_features_by_the_second_bound() -> None:
    # m=1000, N=1: 128 log(4000) = 1061.64 is below 128 (log 1000 + log 800) = 1739.83
    assert required_sizes(1000, n_rows=1).n_features == 1740


def test_required_sizes_depend_on_delta_and_min_weight() -> None:
    # m=1, delta=0.04, a=0.5: 2 log 100 = 9.2103, so n = 10 and N > 10.2103 gives 11
    # p > 128 (2 log 11 + log 1000) = 128 (4.795791 + 6.907755) = 1498.05
    assert required_sizes(1, delta=0.04, min_weight=0.5) == Requirements(10, 11, 1499)


@given(
    n_clusters=st.integers(1, 10**6),
    delta=st.floats(1e-6, 0.5),
    min_weight=st.floats(0.01, 1.0),
)
def test_required_sizes_are_the_smallest_that_suffice(
    n_clusters: int, delta: float, min_weight: float
) -> None:
    need = required_sizes(n_clusters, delta, min_weight)
    # a small tolerance, as 1 - failure is rounded
    assert (
        success_probability(need.n_rows, need.n_features, n_clusters, need.n_candidates, min_weight)
        > 1 - delta - 1e-12
    )
    quarter = math.log(delta / 4)
    log_m, slack = math.log(n_clusters), 1e-9
    assert log_m - (need.n_candidates - 1) * min_weight / n_clusters >= quarter - slack
    assert log_m - (need.n_rows - 2) * min_weight / n_clusters >= quarter - slack
    one_less = -(need.n_features - 1) / 128
    first = math.log(10) + 2 * math.log(need.n_rows) + one_less
    second = math.log(2) + log_m + one_less
    assert max(first, second) >= quarter - slack


def test_default_candidates() -> None:
    assert default_candidates(20_000, 10) == 104
    assert default_candidates(104, 10) == 104
    assert default_candidates(50, 10) == 50
    assert default_candidates(10**9, 1000) == required_sizes(1000, DELTA, MIN_WEIGHT).n_candidates


@pytest.mark.parametrize(
    ("call", "name", "value"),
    [
        (lambda: success_probability(0, 1, 1, 1), "n_rows", "0"),
        (lambda: success_probability(1, 0, 1, 1), "n_features", "0"),
        (lambda: success_probability(1, 1, 0, 1), "n_clusters", "0"),
        (lambda: success_probability(1, 1, 1, 0), "n_candidates", "0"),
        (lambda: success_probability(1, 1, 1, 1, min_weight=1.5), "min_weight", "1.5"),
        (lambda: required_sizes(0), "n_clusters", "0"),
        (lambda: required_sizes(3, delta=0.0), "delta", "0.0"),
        (lambda: required_sizes(3, delta=1.0), "delta", "1.0"),
        (lambda: required_sizes(3, delta=math.nan), "delta", "nan"),
        (lambda: required_sizes(3, min_weight=0.0), "min_weight", "0.0"),
        (lambda: required_sizes(3, n_rows=0), "n_rows", "0"),
        (lambda: default_candidates(0, 3), "n_rows", "0"),
        (lambda: default_candidates(3, -1), "n_clusters", "-1"),
    ],
)
def test_invalid_arguments_are_named(call: Callable[[], object], name: str, value: str) -> None:
    facts = rf"(?=.*\b{name}\b)(?=.*(?<![\w.]){re.escape(value)}(?![\w]|\.\d))"
    with pytest.raises(InputError, match=facts):
        call()
