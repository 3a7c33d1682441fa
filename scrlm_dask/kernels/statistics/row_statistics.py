"""Statistics of all rows: moments, norms, spectrum, distances, duplicates and non-finite rows.

Duplicates are detected by hashes of rows in bounded memory. All hashes are kept while at most
`CAPACITY` hashes differ. Beyond that, only hashes that begin with one zero bit are kept, then only
hashes that begin with two, and so on. A row's hash alone decides whether the row is counted, so the
result does not depend on the division into blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from scrlm_dask.choices import Preprocess
from scrlm_dask.kernels.distances import preprocessing
from scrlm_dask.kernels.distances.points import prepare_points
from scrlm_dask.kernels.jit import jit
from scrlm_dask.kernels.randomness.sampling import rows_within
from scrlm_dask.kernels.statistics import covariance, histograms

CAPACITY = 2**20  # maximum number of different hashes, 24 bytes each
_FEW = 5


@dataclass(frozen=True)
class RowHashes:
    """Distinct hashes of rows and how often they occur: a mergeable part."""

    level: int  # only hashes that begin with this many zero bits are kept
    hashes: NDArray[np.uint64]  # (n,) ascending
    counts: NDArray[np.int64]  # (n,)
    first_rows: NDArray[np.int64]  # (n,) first row with this hash


@dataclass(frozen=True)
class Duplicates:
    """Number of rows that repeat an earlier row, and the largest groups of equal rows.

    The number is an estimate if `counted_share`, the share of rows that were counted, is below 1.
    """

    rows: int
    counted_share: float
    groups: tuple[tuple[int, int], ...]  # largest groups: first row, number of equal rows


def row_hashes(
    block: NDArray[Any], numbers: NDArray[np.int64], capacity: int = CAPACITY
) -> RowHashes:
    """Return the hashes of the rows of a block (rows, p); `numbers` (rows,) are the row numbers."""
    rows = preprocessing.native_float(block)
    hashes = np.empty(len(rows), np.uint64)
    _hash(rows.view(np.uint32 if rows.itemsize == 4 else np.uint64), hashes)
    return _gather(0, hashes, np.ones(len(rows), np.int64), numbers, capacity)


def merge_hashes(a: RowHashes, b: RowHashes, capacity: int = CAPACITY) -> RowHashes:
    """Add up the counts of two parts."""
    return _gather(
        max(a.level, b.level),
        np.concatenate([a.hashes, b.hashes]),
        np.concatenate([a.counts, b.counts]),
        np.concatenate([a.first_rows, b.first_rows]),
        capacity,
    )


def duplicates_among(hashed: RowHashes) -> Duplicates:
    """Return the number of duplicates, and the largest groups of equal rows."""
    repeated = np.flatnonzero(hashed.counts > 1)
    order = np.lexsort((hashed.first_rows[repeated], -hashed.counts[repeated]))[:_FEW]
    groups = tuple((int(hashed.first_rows[i]), int(hashed.counts[i])) for i in repeated[order])
    copies = int((hashed.counts - 1).sum())
    return Duplicates(copies << hashed.level, 0.5**hashed.level, groups)


def _gather(
    level: int,
    hashes: NDArray[np.uint64],
    counts: NDArray[np.int64],
    rows: NDArray[np.int64],
    capacity: int,
) -> RowHashes:
    """Combine equal hashes, and raise the level until at most `capacity` hashes are left."""
    chosen = _begins_with_zeros(hashes, level)
    unique, indices = np.unique(hashes[chosen], return_inverse=True)
    totals = np.zeros(len(unique), np.int64)
    np.add.at(totals, indices, counts[chosen])
    first = np.full(len(unique), np.iinfo(np.int64).max)
    np.minimum.at(first, indices, rows[chosen])
    while len(unique) > capacity:
        level += 1
        kept = _begins_with_zeros(unique, level)
        unique, totals, first = unique[kept], totals[kept], first[kept]
    return RowHashes(level, unique, totals, first)


def _begins_with_zeros(hashes: NDArray[np.uint64], level: int) -> NDArray[np.bool_]:
    return hashes <= np.uint64(2 ** (64 - level) - 1)


@jit()
def _hash(words, hashes):  # type: ignore[no-untyped-def]
    # Each step is a bijection for a given word, so rows that differ in one number never collide.
    for i in range(words.shape[0]):
        h = np.uint64(0x9E3779B97F4A7C15)
        for j in range(words.shape[1]):
            h = (h ^ np.uint64(words[i, j])) * np.uint64(0xFF51AFD7ED558CCD)
            h ^= h >> np.uint64(32)
        h = (h ^ (h >> np.uint64(29))) * np.uint64(0xC4CEB9FE1A85EC53)
        hashes[i] = h ^ (h >> np.uint64(32))


_FEW_BAD_ROWS = 10
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class NonFiniteRows:
    """Counts of rows with values that cannot be used: a mergeable part."""

    nan: int  # rows with at least one NaN
    infinite: int  # rows with at least one infinity and no NaN
    too_large: int  # finite rows with a number too large for float32
    first: tuple[int, ...]  # row numbers of the first few unusable rows, ascending

    @property
    def total(self) -> int:
        """Number of all unusable rows."""
        return self.nan + self.infinite + self.too_large


@dataclass(frozen=True)
class FiniteRows:
    """The usable rows of a block, their row numbers, and counts of the unusable rows."""

    block: NDArray[Any]  # (rows, p)
    numbers: NDArray[np.int64]  # (rows,) row numbers
    unusable: NonFiniteRows


def finite_rows(block: NDArray[Any], start: int) -> FiniteRows:
    """Remove unusable rows from a block (rows, p) whose first row has the number `start`."""
    # The extremes of a row are enough, because min and max propagate NaN.
    lowest, highest = (ends.astype(np.float64) for ends in (block.min(axis=1), block.max(axis=1)))
    nan = np.isnan(lowest)
    infinite = ~nan & (np.isinf(lowest) | np.isinf(highest))
    too_large = ~nan & ~infinite & ((lowest < -_LARGEST) | (highest > _LARGEST))
    bad = nan | infinite | too_large
    first = tuple(int(row) + start for row in np.flatnonzero(bad)[:_FEW_BAD_ROWS])
    unusable = NonFiniteRows(int(nan.sum()), int(infinite.sum()), int(too_large.sum()), first)
    numbers = np.arange(start, start + len(block), dtype=np.int64)
    if not bad.any():  # avoid a copy of the block
        return FiniteRows(block, numbers, unusable)
    return FiniteRows(block[~bad], numbers[~bad], unusable)


def merge_nonfinite(a: NonFiniteRows, b: NonFiniteRows) -> NonFiniteRows:
    """Add up the counts of two parts."""
    return NonFiniteRows(
        a.nan + b.nan,
        a.infinite + b.infinite,
        a.too_large + b.too_large,
        tuple(sorted(a.first + b.first)[:_FEW_BAD_ROWS]),
    )


WIDEST_COVARIANCE = 4096  # most features for a covariance: p x p sums of float64 are 128 MiB
QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)
_SHARE = 0.9
_NORM_BINS, _DISTANCE_BINS = 50, 80


@dataclass(frozen=True)
class StatisticsPart:
    """Sums over the usable rows of some blocks, and their sampled rows: a mergeable part."""

    unusable: NonFiniteRows
    moments: preprocessing.Moments
    norms: histograms.LogHistogram
    norm_moments: preprocessing.Moments
    hashes: RowHashes
    comoments: covariance.Comoments | None  # None if there are too many features
    sample: NDArray[Any]  # (n, p) in row order
    zero_rows: int  # number of rows that contain only zeros


@dataclass(frozen=True)
class Norms:
    """Euclidean norms of rows as they are stored, before preprocessing."""

    least: float
    mean: float
    largest: float
    quantiles: dict[float, float]
    histogram: histograms.Histogram


@dataclass(frozen=True)
class Spectrum:
    """Variances along the principal axes, in the model's space."""

    variances: NDArray[np.float64]  # descending
    axes: int  # number of first axes that have 90 % of the variance
    sampled_rows: int | None  # None: all rows were used


@dataclass(frozen=True)
class Distances:
    """Distances between rows of a random sample, in the model's space."""

    n_rows: int
    n_pairs: int
    quantiles: dict[float, float]
    histogram: histograms.Histogram
    radius: float | None
    share_inside: float | None  # share of the pairs that are closer than the radius


@dataclass(frozen=True)
class Statistics:
    """Statistics of all usable rows; norms and spectrum are None if no row is usable."""

    n_rows: int  # number of usable rows
    unusable: NonFiniteRows
    means: NDArray[np.float64]  # (p,)
    deviations: NDArray[np.float64]  # (p,)
    constant: tuple[int, ...]  # numbers of constant features
    duplicates: Duplicates
    norms: Norms | None
    spectrum: Spectrum | None
    distances: Distances | None  # None if the sample has fewer than two rows
    zero_rows: int = 0  # number of rows that contain only zeros; these rows are usable


def statistics_part(
    block: NDArray[Any], start: int, sampled: NDArray[np.int64], unit_length: bool
) -> StatisticsPart:
    """Return the part of a block (rows, p); `sampled` are the sample's row numbers, ascending."""
    usable = finite_rows(block, start)
    rows = usable.block
    norms = np.concatenate([_norms(tile) for tile in _tiles(rows)] or [np.empty(0)])
    picks = np.isin(usable.numbers, rows_within(sampled, start, start + len(block)))
    narrow = block.shape[1] <= WIDEST_COVARIANCE
    return StatisticsPart(
        usable.unusable,
        preprocessing.block_moments(rows),
        histograms.log_histogram(norms),
        preprocessing.block_moments(norms[:, None]),
        row_hashes(rows, usable.numbers),
        covariance.block_comoments(rows, unit_length) if narrow else None,
        preprocessing.native_float(rows[picks]),
        len(preprocessing.zero_rows(rows)),
    )


def merge_statistics(a: StatisticsPart, b: StatisticsPart) -> StatisticsPart:
    """Merge two parts; samples are concatenated."""
    comoments = None
    if a.comoments is not None and b.comoments is not None:
        comoments = covariance.merge_comoments(a.comoments, b.comoments)
    return StatisticsPart(
        merge_nonfinite(a.unusable, b.unusable),
        preprocessing.merge_moments(a.moments, b.moments),
        histograms.merge_histograms(a.norms, b.norms),
        preprocessing.merge_moments(a.norm_moments, b.norm_moments),
        merge_hashes(a.hashes, b.hashes),
        comoments,
        np.concatenate([a.sample, b.sample]),
        a.zero_rows + b.zero_rows,
    )


def finish_statistics(
    part: StatisticsPart, preprocess: Preprocess, radius: float | None
) -> Statistics:
    """Compute the statistics from the merged part of all blocks."""
    moments, p = part.moments, len(part.moments.mean)
    empty = moments.count == 0
    known = moments if preprocessing.needs_moments(preprocess) and not empty else None
    affine = preprocessing.fit_map(preprocess, p, known)
    return Statistics(
        n_rows=moments.count,
        unusable=part.unusable,
        means=moments.mean,
        deviations=np.sqrt(moments.m2 / max(moments.count, 1)),
        constant=()
        if empty
        else tuple(int(j) for j in np.flatnonzero(preprocessing.is_constant(moments))),
        duplicates=duplicates_among(part.hashes),
        norms=None if empty else _norms_of(part),
        spectrum=None if empty else _spectrum_of(part, affine),
        distances=_distances_of(part, affine, radius) if len(part.sample) > 1 else None,
        zero_rows=part.zero_rows,
    )


def _tiles(rows: NDArray[Any]) -> list[NDArray[Any]]:
    return [preprocessing.native_float(rows[i : i + 1024]) for i in range(0, len(rows), 1024)]


def _norms(tile: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", tile, tile, dtype=np.float64)))


def _norms_of(part: StatisticsPart) -> Norms:
    return Norms(
        part.norms.least,
        float(part.norm_moments.mean[0]),
        part.norms.largest,
        {share: histograms.quantile(part.norms, share) for share in QUANTILES},
        histograms.coarse(part.norms, _NORM_BINS),
    )


def _spectrum_of(part: StatisticsPart, affine: preprocessing.AffineMap) -> Spectrum | None:
    if part.comoments is not None:
        variances = covariance.spectrum(part.comoments, affine)
        return Spectrum(variances, covariance.axes_holding(variances, _SHARE), None)
    if len(part.sample) < 2:
        return None
    variances = covariance.sampled_spectrum(prepare_points(part.sample, affine))
    return Spectrum(variances, covariance.axes_holding(variances, _SHARE), len(part.sample))


def _distances_of(
    part: StatisticsPart, affine: preprocessing.AffineMap, radius: float | None
) -> Distances:
    distances = pdist(prepare_points(part.sample, affine).mapped.astype(np.float64))
    return Distances(
        len(part.sample),
        len(distances),
        {share: float(np.quantile(distances, share)) for share in QUANTILES},
        histograms.histogram_of(distances, _DISTANCE_BINS),
        radius,
        None if radius is None else float(np.mean(distances < radius)),
    )
