"""Mergeable statistics of rows, compared with NumPy."""

from __future__ import annotations

import itertools
from functools import reduce
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scrlm_dask.kernels.statistics import row_statistics as statistics
from scrlm_dask.kernels.statistics.row_statistics import (
    Statistics,
    finish_statistics,
    merge_statistics,
    statistics_part,
)


def statistics_of(
    x: NDArray[Any],
    cuts: tuple[int, ...] = (),
    preprocess: Any = "standardize",
    radius: float | None = None,
    sampled: Any = None,
) -> Statistics:
    edges = [0, *cuts, len(x)]
    sampled = np.arange(len(x)) if sampled is None else np.asarray(sampled)
    parts = [
        statistics_part(x[a:b], a, sampled, preprocess == "l2")
        for a, b in itertools.pairwise(edges)
    ]
    return finish_statistics(reduce(merge_statistics, parts), preprocess, radius)


@pytest.fixture(scope="module")
def rows() -> NDArray[np.float32]:
    x = np.random.default_rng(5).normal(3, 2, size=(300, 7)).astype(np.float32)
    x[:, 4] = 1.5
    x[10] = x[20] = x[290]
    return x


@pytest.mark.parametrize("cuts", [(), (100,), (1, 2, 150, 299)])
def test_equals_numpy(rows: NDArray[np.float32], cuts: tuple[int, ...]) -> None:
    found = statistics_of(rows, cuts, radius=2.0)
    y = rows.astype(np.float64)
    norms = np.linalg.norm(y, axis=1)
    np.testing.assert_allclose(found.means, y.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.deviations, y.std(axis=0), rtol=1e-9, atol=1e-12)
    assert found.constant == (4,)
    assert found.duplicates.rows == 2
    assert found.duplicates.groups == ((10, 3),)
    assert found.norms is not None
    assert (found.norms.least, found.norms.largest) == (norms.min(), norms.max())
    assert found.norms.mean == pytest.approx(norms.mean())
    assert found.norms.quantiles[0.5] == pytest.approx(np.quantile(norms, 0.5), rel=5e-3)
    assert found.norms.histogram.counts.sum() == 300
    scale = np.where(y.std(axis=0) > 1e-9, y.std(axis=0), 1)
    z = (y - y.mean(axis=0)) / scale
    pairs = np.linalg.norm(z[:, None] - z[None], axis=2)[np.triu_indices(300, 1)]
    assert found.distances is not None
    assert (found.distances.n_rows, found.distances.n_pairs) == (300, len(pairs))
    assert found.distances.quantiles[0.25] == pytest.approx(np.quantile(pairs, 0.25), rel=1e-5)
    assert found.distances.share_inside == pytest.approx(np.mean(pairs < 2.0))
    assert found.spectrum is not None
    np.testing.assert_allclose(
        found.spectrum.variances.sum(), 6.0
    )  # 6 features have a standard deviation of 1


def test_unusable_rows_are_counted_and_excluded(rows: NDArray[np.float32]) -> None:
    bad = np.insert(rows, [0, 150, 300], [[np.nan], [np.inf], [np.nan]], axis=0)
    clean, found = statistics_of(rows), statistics_of(bad, (100, 301))
    assert (found.unusable.nan, found.unusable.infinite) == (2, 1)
    assert found.unusable.first == (0, 151, 302)
    assert found.n_rows == 300
    np.testing.assert_allclose(found.means, clean.means, rtol=1e-12)
    assert found.duplicates.rows == clean.duplicates.rows
    assert found.distances is not None
    assert clean.distances is not None
    assert found.distances.n_rows == 300
    assert found.distances.quantiles[0.5] == pytest.approx(clean.distances.quantiles[0.5])


@pytest.mark.parametrize("preprocess", ["standardize", "none", "l2", "scale", "center"])
def test_no_usable_row_and_one_row(preprocess: Any) -> None:
    nothing = statistics_of(np.full((4, 3), np.nan, np.float32), (2,), preprocess)
    assert (nothing.n_rows, nothing.norms, nothing.spectrum, nothing.distances) == (
        0,
        None,
        None,
        None,
    )
    assert nothing.constant == ()
    one = statistics_of(np.array([[3.0, 4.0]], np.float32), (), preprocess)
    assert one.norms is not None
    assert (one.n_rows, one.norms.mean, one.distances) == (1, 5.0, None)
    assert one.spectrum is not None
    assert one.spectrum.axes == 0


def test_only_sampled_rows_are_compared(rows: NDArray[np.float32]) -> None:
    found = statistics_of(rows, (40, 200), "none", sampled=[3, 39, 40, 299])
    assert found.distances is not None
    assert found.distances.n_pairs == 6
    expected = max(np.linalg.norm(rows[a] - rows[b]) for a in (3, 39) for b in (40, 299))
    assert found.distances.histogram.edges[-1] >= expected * (1 - 1e-6)


def test_spectrum_of_many_features_is_sampled(
    rows: NDArray[np.float32], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = statistics_of(rows).spectrum
    monkeypatch.setattr(statistics, "WIDEST_COVARIANCE", 6)
    sampled = statistics_of(rows, (100,)).spectrum
    assert whole is not None
    assert sampled is not None
    assert (whole.sampled_rows, sampled.sampled_rows) == (None, 300)
    np.testing.assert_allclose(sampled.variances, whole.variances, rtol=1e-4, atol=1e-6)
    assert statistics_of(rows, sampled=[7]).distances is None


def test_rows_of_zeros_are_counted() -> None:
    rows = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    rows[[0, 15, 16]], rows[20] = 0.0, np.nan
    found = statistics_of(rows, (10, 25), "l2")
    assert (found.zero_rows, found.n_rows) == (3, 39)
