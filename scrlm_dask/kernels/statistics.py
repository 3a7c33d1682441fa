"""What rows look like before anybody clusters them: one mergeable part of many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from scrlm_dask.kernels.comoments import (
    Comoments,
    axes_holding,
    block_comoments,
    merge_comoments,
    sampled_spectrum,
    spectrum,
)
from scrlm_dask.kernels.duplicates import (
    Duplicates,
    RowHashes,
    duplicates_among,
    merge_hashes,
    row_hashes,
)
from scrlm_dask.kernels.histograms import (
    Histogram,
    LogHistogram,
    coarse,
    histogram_of,
    log_histogram,
    merge_histograms,
    quantile,
)
from scrlm_dask.kernels.points import prepare_points
from scrlm_dask.kernels.preprocessing import (
    AffineMap,
    Moments,
    Preprocess,
    block_moments,
    fit_map,
    is_constant,
    merge_moments,
    native_float,
    needs_moments,
)
from scrlm_dask.kernels.sampling import rows_within
from scrlm_dask.kernels.usable import UnusableRows, merge_unusable, usable_rows

WIDEST_COVARIANCE = 4096  # features: p x p sums of float64 are 128 MiB
QUANTILES = (0.01, 0.25, 0.5, 0.75, 0.99)
_SHARE = 0.9
_NORM_BINS, _DISTANCE_BINS = 50, 80


@dataclass(frozen=True)
class StatisticsPart:
    """What a block adds: sums over its usable rows, and those of them that are in the sample."""

    unusable: UnusableRows
    moments: Moments
    norms: LogHistogram
    norm_moments: Moments
    hashes: RowHashes
    comoments: Comoments | None  # where the features are not too many
    sample: NDArray[Any]  # (n, p) in row order


@dataclass(frozen=True)
class Norms:
    """Lengths of rows as they are stored."""

    least: float
    mean: float
    largest: float
    quantiles: dict[float, float]
    histogram: Histogram


@dataclass(frozen=True)
class Spectrum:
    """Variances along the principal axes, in the model's space."""

    variances: NDArray[np.float64]  # falling
    axes: int  # so many of the first hold 90 % of the variance
    sampled_rows: int | None  # None: of all rows


@dataclass(frozen=True)
class Distances:
    """How far apart rows of a random sample are, in the model's space."""

    n_rows: int
    n_pairs: int
    quantiles: dict[float, float]
    histogram: Histogram
    radius: float | None
    share_inside: float | None  # of the pairs: closer than the radius


@dataclass(frozen=True)
class Statistics:
    """What all usable rows look like. Without any there is nothing to say of them."""

    n_rows: int  # usable ones
    unusable: UnusableRows
    means: NDArray[np.float64]  # (p,)
    deviations: NDArray[np.float64]  # (p,)
    constant: tuple[int, ...]  # numbers of the features that are
    duplicates: Duplicates
    norms: Norms | None
    spectrum: Spectrum | None
    distances: Distances | None  # where the sample has two rows


def statistics_part(
    block: NDArray[Any], start: int, sampled: NDArray[np.int64], unit_length: bool
) -> StatisticsPart:
    """Statistics of a block (rows, p); `sampled` are the row numbers of the sample, rising."""
    usable = usable_rows(block, start)
    rows = usable.block
    norms = np.concatenate([_norms(tile) for tile in _tiles(rows)] or [np.empty(0)])
    picks = np.isin(usable.numbers, rows_within(sampled, start, start + len(block)))
    covariance = block.shape[1] <= WIDEST_COVARIANCE
    return StatisticsPart(
        usable.unusable,
        block_moments(rows),
        log_histogram(norms),
        block_moments(norms[:, None]),
        row_hashes(rows, usable.numbers),
        block_comoments(rows, unit_length) if covariance else None,
        native_float(rows[picks]),
    )


def merge_statistics(a: StatisticsPart, b: StatisticsPart) -> StatisticsPart:
    comoments = None
    if a.comoments is not None and b.comoments is not None:
        comoments = merge_comoments(a.comoments, b.comoments)
    return StatisticsPart(
        merge_unusable(a.unusable, b.unusable),
        merge_moments(a.moments, b.moments),
        merge_histograms(a.norms, b.norms),
        merge_moments(a.norm_moments, b.norm_moments),
        merge_hashes(a.hashes, b.hashes),
        comoments,
        np.concatenate([a.sample, b.sample]),
    )


def finish_statistics(
    part: StatisticsPart, preprocess: Preprocess, radius: float | None
) -> Statistics:
    """What is made of the parts of all blocks."""
    moments, p = part.moments, len(part.moments.mean)
    empty = moments.count == 0
    known = moments if needs_moments(preprocess) and not empty else None
    affine = fit_map(preprocess, p, known)
    return Statistics(
        n_rows=moments.count,
        unusable=part.unusable,
        means=moments.mean,
        deviations=np.sqrt(moments.m2 / max(moments.count, 1)),
        constant=() if empty else tuple(int(j) for j in np.flatnonzero(is_constant(moments))),
        duplicates=duplicates_among(part.hashes),
        norms=None if empty else _norms_of(part),
        spectrum=None if empty else _spectrum_of(part, affine),
        distances=_distances_of(part, affine, radius) if len(part.sample) > 1 else None,
    )


def _tiles(rows: NDArray[Any]) -> list[NDArray[Any]]:
    return [native_float(rows[i : i + 1024]) for i in range(0, len(rows), 1024)]


def _norms(tile: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", tile, tile, dtype=np.float64)))


def _norms_of(part: StatisticsPart) -> Norms:
    return Norms(
        part.norms.least,
        float(part.norm_moments.mean[0]),
        part.norms.largest,
        {share: quantile(part.norms, share) for share in QUANTILES},
        coarse(part.norms, _NORM_BINS),
    )


def _spectrum_of(part: StatisticsPart, affine: AffineMap) -> Spectrum | None:
    if part.comoments is not None:
        variances = spectrum(part.comoments, affine)
        return Spectrum(variances, axes_holding(variances, _SHARE), None)
    if len(part.sample) < 2:
        return None
    variances = sampled_spectrum(prepare_points(part.sample, affine))
    return Spectrum(variances, axes_holding(variances, _SHARE), len(part.sample))


def _distances_of(part: StatisticsPart, affine: AffineMap, radius: float | None) -> Distances:
    distances = pdist(prepare_points(part.sample, affine).mapped.astype(np.float64))
    return Distances(
        len(part.sample),
        len(distances),
        {share: float(np.quantile(distances, share)) for share in QUANTILES},
        histogram_of(distances, _DISTANCE_BINS),
        radius,
        None if radius is None else float(np.mean(distances < radius)),
    )
