"""Covariance of the features and its spectrum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigvalsh, svdvals

from scrlm_dask.kernels.distances.points import Points, inverse_norms
from scrlm_dask.kernels.distances.preprocessing import AffineMap, native_float

_TILE_ROWS = 1024


@dataclass(frozen=True)
class Comoments:
    """Number of rows, mean of features, and sums of products of deviations: a mergeable part."""

    count: int
    mean: NDArray[np.float64]  # (p,)
    products: NDArray[np.float64]  # (p, p)


def block_comoments(block: NDArray[Any], unit_length: bool) -> Comoments:
    """Return the co-moments of a block (rows, p), with rows at unit length if requested.

    The mean of the block is subtracted before products are computed, so a large offset does not
    cause cancellation. Rows are converted tile by tile, to avoid a float64 copy of the block.
    """
    p = block.shape[1]
    mean, products = np.zeros(p), np.zeros((p, p))
    for tile in _tiles(block, unit_length):
        mean += tile.sum(axis=0)
    mean /= max(len(block), 1)
    for tile in _tiles(block, unit_length):
        tile -= mean
        products += tile.T @ tile
    return Comoments(len(block), mean, products)


def _tiles(block: NDArray[Any], unit_length: bool) -> Any:
    for start in range(0, len(block), _TILE_ROWS):
        raw = native_float(block[start : start + _TILE_ROWS])
        yield raw * inverse_norms(raw, unit_length)[:, None]


def merge_comoments(a: Comoments, b: Comoments) -> Comoments:
    """Merge two parts by Chan's update, like `merge_moments` for single features."""
    count = a.count + b.count
    if count == 0:
        return a
    delta = b.mean - a.mean
    products = a.products + b.products
    products += np.outer(delta, delta * (a.count * b.count / count))
    return Comoments(count, a.mean + delta * (b.count / count), products)


def spectrum(comoments: Comoments, affine: AffineMap) -> NDArray[np.float64]:
    """Return the variances (p,) along the principal axes in the space of `affine`, descending."""
    scaled = comoments.products * affine.scale
    scaled *= affine.scale[:, None] / comoments.count
    values = np.asarray(eigvalsh(scaled, overwrite_a=True, check_finite=False))
    return np.maximum(values[::-1], 0.0)  # rounding may make zeros negative


def sampled_spectrum(points: Points) -> NDArray[np.float64]:
    """Return the variances along the principal axes of points (k, p), descending; at most k values.

    Unlike `spectrum`, this does not need a p x p matrix.
    """
    # The points are already centered on their mean.
    return np.asarray(svdvals(points.mapped.astype(np.float64)) ** 2 / len(points.mapped))


def axes_holding(variances: NDArray[np.float64], share: float) -> int:
    """Return the number of first axes that have this share of the variance; 0 without variance."""
    cumulative = np.cumsum(variances)
    if not len(cumulative) or cumulative[-1] == 0.0:
        return 0
    return min(int(np.searchsorted(cumulative, share * cumulative[-1])) + 1, len(cumulative))
