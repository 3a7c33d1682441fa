"""Logarithmic histograms of positive numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrlm_dask.kernels.statistics.histograms import (
    coarse,
    histogram_of,
    log_histogram,
    merge_histograms,
    quantile,
)

NORMS = st.lists(st.one_of(st.just(0.0), st.floats(1e-45, 1e38)), min_size=1, max_size=80)


def test_by_hand() -> None:
    found = log_histogram(np.array([1.0, 1.0, 2.0, 0.0]))
    assert found.bins.values.tolist()[1:] == [0, 1024]
    assert found.bins.counts.tolist() == [1, 2, 1]
    assert (found.least, found.largest, found.bins.total) == (0.0, 2.0, 4)
    assert quantile(found, 0.0) == 0.0
    assert quantile(found, 0.5) == pytest.approx(1.0, rel=1e-3)
    assert quantile(found, 1.0) == pytest.approx(2.0, rel=1e-3)


@given(values=NORMS, cut=st.integers(0, 80))
def test_any_split_gives_the_same_counts(values: list[float], cut: int) -> None:
    x = np.array(values)
    whole = log_histogram(x)
    merged = merge_histograms(log_histogram(x[:cut]), log_histogram(x[cut:]))
    np.testing.assert_array_equal(merged.bins.values, whole.bins.values)
    np.testing.assert_array_equal(merged.bins.counts, whole.bins.counts)
    assert (merged.least, merged.largest) == (x.min(), x.max())


@given(values=NORMS, share=st.sampled_from([0.0, 0.01, 0.25, 0.5, 0.99, 1.0]))
def test_quantiles_are_exact_to_one_bin(values: list[float], share: float) -> None:
    x = np.sort(values)
    expected = x[int(share * (len(x) - 1))]
    assert quantile(log_histogram(x), share) == pytest.approx(expected, rel=1e-3)


@given(values=NORMS)
def test_coarse_bins_contain_every_number(values: list[float]) -> None:
    x = np.array(values)
    found = coarse(log_histogram(x), 50)
    assert found.counts.sum() == len(x)
    assert (found.counts >= 0).all()
    assert (np.diff(found.edges) > 0).all()
    assert found.edges[0] <= x.min()
    assert found.edges[-1] == (x.max() or 1.0)


def test_coarse_bins_are_close_to_the_counts_of_numpy() -> None:
    x = np.random.default_rng(0).normal(25, 1, size=20_000)
    found = coarse(log_histogram(x), 20)
    expected, _ = np.histogram(x, found.edges)
    np.testing.assert_allclose(found.counts, expected, atol=60)


def test_bins_start_at_zero() -> None:
    found = histogram_of(np.array([1.0, 3.5, 4.0]), 4)
    assert found.edges.tolist() == [0, 1, 2, 3, 4]
    assert found.counts.tolist() == [0, 1, 0, 2]
    assert histogram_of(np.zeros(3), 4).counts.tolist() == [3, 0, 0, 0]
