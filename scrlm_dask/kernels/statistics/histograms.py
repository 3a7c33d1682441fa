"""Mergeable counts of integers, and logarithmic histograms for values of unknown range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels import OUTLIER


@dataclass(frozen=True)
class Counts:
    """Distinct numbers and how often they occur: a mergeable part."""

    values: NDArray[np.int64]  # (n,) ascending
    counts: NDArray[np.int64]  # (n,)

    @property
    def total(self) -> int:
        """Sum of the counts."""
        return int(self.counts.sum())


@dataclass(frozen=True)
class Classes:
    """Summary of the true labels of rows."""

    n_classes: int  # without outliers
    outlier_share: float


def count_values(values: NDArray[Any]) -> Counts:
    """Count how often each integer occurs."""
    distinct, counts = np.unique(values.astype(np.int64), return_counts=True)
    return Counts(distinct, counts)


def merge_counts(a: Counts, b: Counts) -> Counts:
    """Add up the counts of two parts."""
    values, places = np.unique(np.concatenate([a.values, b.values]), return_inverse=True)
    counts = np.zeros(len(values), np.int64)
    np.add.at(counts, places, np.concatenate([a.counts, b.counts]))
    return Counts(values, counts)


def classes_among(labels: Counts) -> Classes:
    """Return the number of classes and the share of outliers among counted labels."""
    outliers = labels.counts[labels.values == OUTLIER].sum()
    n_classes = int((labels.values != OUTLIER).sum())
    return Classes(n_classes, float(outliers / labels.total))


_BINS_PER_OCTAVE = 1024  # a bin is 0.07 % wide
_NARROWEST = 0.98  # largest ratio of the first to the last edge in `coarse`
_ZERO = -(2**62)  # bin of the value 0, below the bins of all positive floats


@dataclass(frozen=True)
class LogHistogram:
    """Counts of values in logarithmic bins, and the extreme values: a mergeable part.

    Only bins that are not empty are stored.
    """

    bins: Counts  # bin b counts values from 2^(b/1024) up to 2^((b+1)/1024)
    least: float
    largest: float


@dataclass(frozen=True)
class Histogram:
    """Counts between ascending edges."""

    edges: NDArray[np.float64]  # (n + 1,)
    counts: NDArray[np.int64]  # (n,)


def log_histogram(values: NDArray[np.float64]) -> LogHistogram:
    """Count values in logarithmic bins; values must not be negative."""
    with np.errstate(divide="ignore"):
        logs = np.floor(_BINS_PER_OCTAVE * np.log2(values))
    numbers = np.where(values > 0, logs, _ZERO).astype(np.int64)
    least = float(values.min(initial=np.inf))
    return LogHistogram(count_values(numbers), least, float(values.max(initial=-np.inf)))


def merge_histograms(a: LogHistogram, b: LogHistogram) -> LogHistogram:
    """Add up the counts of two parts."""
    bins = merge_counts(a.bins, b.bins)
    return LogHistogram(bins, min(a.least, b.least), max(a.largest, b.largest))


def quantile(histogram: LogHistogram, share: float) -> float:
    """Return the value below which a share of the counted values is, accurate to half a bin."""
    bins = histogram.bins
    rank = share * (bins.total - 1)
    place = int(np.searchsorted(np.cumsum(bins.counts), rank, side="right"))
    middle = _edge(bins.values[place] + 0.5)
    return float(min(max(middle, histogram.least), histogram.largest))


def coarse(histogram: LogHistogram, n_bins: int) -> Histogram:
    """Return the counts in `n_bins` bins of equal width.

    The counts of a logarithmic bin that crosses an edge are divided in proportion.
    """
    # If all values are equal, the bins must still have a width above 0.
    low = min(histogram.least, _NARROWEST * histogram.largest)
    edges = np.linspace(low, histogram.largest or 1.0, n_bins + 1)
    bins = histogram.bins
    ends = np.stack([_edge(bins.values), _edge(bins.values + 1)], axis=1)
    ends = np.clip(ends, histogram.least, histogram.largest)
    after = np.cumsum(bins.counts)
    below = np.stack([after - bins.counts, after], axis=1)
    shares = np.interp(edges, ends.ravel(), below.ravel())
    shares[0], shares[-1] = 0, after[-1]
    return Histogram(edges, np.diff(np.rint(shares)).astype(np.int64))


def histogram_of(values: NDArray[np.float64], n_bins: int) -> Histogram:
    """Return the counts in bins of equal width, starting at 0."""
    counts, edges = np.histogram(
        values, n_bins, range=(0.0, max(float(values.max(initial=0.0)), 1e-300))
    )
    return Histogram(edges, counts)


def _edge(number: Any) -> Any:
    return np.where(number < _ZERO / 2, 0.0, np.exp2(np.maximum(number, -2e6) / _BINS_PER_OCTAVE))
