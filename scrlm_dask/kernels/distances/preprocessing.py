"""The affine map from input features to the model's space, and the moments that it is fitted to.

y = (u(x) - shift) * scale, with u(x) = x / |x| for unit length and u(x) = x otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.choices import Preprocess
from scrlm_dask.errors import NonFiniteRowError
from scrlm_dask.kernels.jit import jit

FloatArray = NDArray[np.float32] | NDArray[np.float64]

_TILE_ROWS = 512


@dataclass(frozen=True)
class AffineMap:
    """Preprocessing of rows before distances are computed; saved with the model."""

    kind: Preprocess
    shift: NDArray[np.float64]  # (p,)
    scale: NDArray[np.float64]  # (p,)

    @property
    def unit_length(self) -> bool:
        """True if rows are scaled to unit length."""
        return self.kind == "l2"

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.scale)


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of each feature: a mergeable part."""

    count: int
    mean: NDArray[np.float64]  # (p,)
    m2: NDArray[np.float64]  # (p,)


def zero_rows(block: NDArray[Any]) -> NDArray[np.int64]:
    """Return the positions of the rows of a block (rows, p) that contain only zeros."""
    # few rows begin with a zero, so most rows are not read
    possible = np.flatnonzero(block[:, 0] == 0)
    return possible[~block[possible].any(axis=1)]


def needs_moments(kind: Preprocess) -> bool:
    """Return whether `fit_map` requires moments of the features for this kind."""
    return kind in ("center", "standardize", "scale")


def block_moments(block: NDArray[Any]) -> Moments:
    """Return the moments of a block (rows, p).

    The block is converted tile by tile to avoid a float64 copy of it. Raises `NonFiniteRowError` at
    a row with NaN, infinity or a number whose square overflows.
    """
    total = Moments(0, np.zeros(block.shape[1]), np.zeros(block.shape[1]))
    for start in range(0, len(block), _TILE_ROWS):
        tile = native_float(block[start : start + _TILE_ROWS])
        mean, m2 = _two_pass(tile)
        if not np.isfinite(m2).all():
            raise NonFiniteRowError(start + int(np.argmax(_badness(tile))))
        total = merge_moments(total, Moments(len(tile), mean, m2))
    return total


def native_float(x: NDArray[Any]) -> FloatArray:
    """Return x as C-ordered native float32, or float64 if its items have more than 4 bytes.

    Numba supports neither float16 nor non-native byte orders.
    """
    if x.dtype.itemsize > 4:
        return np.ascontiguousarray(x, dtype=np.float64)
    return np.ascontiguousarray(x, dtype=np.float32)


def _badness(tile: FloatArray) -> NDArray[np.float64]:
    """Return the largest absolute value of each row (rows,), infinity for non-finite rows."""
    largest = np.abs(tile).max(axis=1).astype(np.float64)
    return np.where(np.isfinite(largest), largest, np.inf)


def merge_moments(a: Moments, b: Moments) -> Moments:
    """Merge two parts by Chan's update, which avoids the cancellation of sum(x^2) - n mean^2."""
    count = a.count + b.count
    if count == 0:
        return a
    delta = b.mean - a.mean
    mean = a.mean + delta * (b.count / count)
    m2 = a.m2 + b.m2 + delta * delta * (a.count * b.count / count)
    return Moments(count, mean, m2)


def fit_map(kind: Preprocess, n_features: int, moments: Moments | None) -> AffineMap:
    """Return the map of the given kind; `moments` of all rows are required if `needs_moments`."""
    zero, one = np.zeros(n_features), np.ones(n_features)
    if moments is None:
        return AffineMap(kind, zero, one)
    if kind == "center":
        return AffineMap(kind, moments.mean, one)
    variance = np.where(is_constant(moments), 0.0, moments.m2 / moments.count)
    if kind == "standardize":
        return AffineMap(kind, moments.mean, _inverse_deviation(variance))
    # One factor for all features preserves their proportions.
    return AffineMap(kind, zero, np.full(n_features, _inverse_deviation(variance.mean())))


def _inverse_deviation(variance: Any) -> NDArray[np.float64]:
    # A constant feature separates nothing, so any finite factor is fine.
    return np.asarray(1.0 / np.sqrt(np.where(variance > 0.0, variance, 1.0)))


def is_constant(moments: Moments) -> NDArray[np.bool_]:
    """Return which features (p,) are constant: their variance can be explained by rounding."""
    eps = float(np.finfo(np.float64).eps)
    # Rounding errors grow with the number of rows in a tile, not with the number of all rows,
    # because tiles are merged.
    return np.asarray(moments.m2 / moments.count <= (_TILE_ROWS * eps * moments.mean) ** 2)


@jit()
def _two_pass(tile):  # type: ignore[no-untyped-def]
    rows, p = tile.shape
    mean, m2 = np.zeros(p), np.zeros(p)
    for i in range(rows):
        for j in range(p):
            mean[j] += tile[i, j]
    for j in range(p):
        mean[j] /= rows
    for i in range(rows):
        for j in range(p):
            d = tile[i, j] - mean[j]
            m2[j] += d * d
    return mean, m2
