"""Rows and points mapped into the model's space, and how far apart they are.

Distances come from one float32 matrix product, |y|^2 + |c|^2 - 2 y.c, which is fast and rounds.
Whoever decides something by such a distance (inside the radius or not, this center or that one)
uses `error_factor` to tell the pairs that rounding could decide, and asks
`exact_sq_distance` for those few. So labels and neighbour counts do not depend on how rows were
cut into tiles and blocks, nor on the BLAS.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import NonFiniteRowError
from scrlm_dask.kernels.compiled import compiled
from scrlm_dask.kernels.preprocessing import AffineMap, FloatArray, native_float

UNIT_ROUNDOFF = 2.0**-24  # of float32
LARGEST_SQ_NORM = 2.0**120  # two such rows have a product that float32 can hold
_TILE_BYTES = 16 * 2**20
_MIN_TILE_ROWS, _MAX_TILE_ROWS = 128, 1024


@dataclass(frozen=True)
class Points:
    """k points (candidates or centers) ready to be compared with rows.

    The mapped points are moved by `shift`, their own mean, as the rows will be: distances do not
    change and the float32 product does not cancel when the data lies far from the origin.
    """

    raw: FloatArray  # (k, p) in input units
    inv_norms: NDArray[np.float64]  # (k,) 1 / |x| where the map asks for unit length, else 1
    mapped: NDArray[np.float32]  # (k, p)
    sq_norms: NDArray[np.float64]  # (k,) of mapped
    shift: NDArray[np.float64]  # (p,)
    scale: NDArray[np.float64]  # (p,)
    unit_length: bool

    @property
    def error_factor(self) -> float:
        """Bound e with |float32 squared distance - true one| <= e * (|y|^2 + |c|^2).

        p roundings in the product, a few more in the map and the norms.
        """
        return (len(self.scale) + 24) * UNIT_ROUNDOFF


@dataclass(frozen=True)
class Tile:
    """Some consecutive rows of a block, mapped like the points, and their products with them."""

    start: int  # first row's position in the block
    raw: FloatArray  # (rows, p)
    inv_norms: NDArray[np.float64]  # (rows,)
    sq_norms: NDArray[np.float64]  # (rows,)
    products: NDArray[np.float32]  # (rows, k)

    @property
    def stop(self) -> int:
        return self.start + len(self.raw)


def prepare_points(raw: NDArray[Any], affine: AffineMap) -> Points:
    """Map points (k, p), given in input units, into the space of `affine`."""
    raw = native_float(raw)
    inv_norms = inverse_norms(raw, affine.unit_length)
    # einsum converts piece by piece: no float64 copy of the points
    shift = np.einsum("i,ij->j", inv_norms, raw, dtype=np.float64) / max(len(raw), 1)
    mapped = np.empty(raw.shape, np.float32)
    sq_norms = np.empty(len(raw))
    _map_rows(raw, inv_norms, shift, affine.scale, mapped, sq_norms)
    return Points(raw, inv_norms, mapped, sq_norms, shift, affine.scale, affine.unit_length)


def tiles(block: NDArray[Any], points: Points) -> Iterator[Tile]:
    """Cut a block (rows, p) into tiles small enough to stay in cache.

    Products share one buffer: a tile is good until the next one is asked for. Raises
    `NonFiniteRowError` at the first row that holds NaN or infinity.
    """
    k, p = points.mapped.shape
    rows = tile_rows(k)
    mapped = np.empty((rows, p), np.float32)
    products = np.empty((rows, k), np.float32)
    for start in range(0, len(block), rows):
        raw = native_float(block[start : start + rows])
        inv_norms = inverse_norms(raw, points.unit_length)
        sq_norms = np.empty(len(raw))
        here = mapped[: len(raw)]
        _map_rows(raw, inv_norms, points.shift, points.scale, here, sq_norms)
        usable = sq_norms < LARGEST_SQ_NORM  # NaN is not less, either
        if not usable.all():
            raise NonFiniteRowError(start + int(np.argmin(usable)))
        np.matmul(here, points.mapped.T, out=products[: len(raw)])
        yield Tile(start, raw, inv_norms, sq_norms, products[: len(raw)])


def tile_rows(n_points: int) -> int:
    """Rows of a tile: its products stay near the cache, and the product call stays efficient."""
    fitting = _TILE_BYTES // (4 * max(n_points, 1))
    return max(_MIN_TILE_ROWS, min(_MAX_TILE_ROWS, fitting))


def inverse_norms(raw: FloatArray, unit_length: bool) -> NDArray[np.float64]:
    """1 / |x| of each row (rows, p); 1 for rows of zeros and where unit length is not asked."""
    if not unit_length:
        return np.ones(len(raw))
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(np.einsum("ij,ij->i", raw, raw, dtype=np.float64))
    # a row whose square overflows has no direction left: NaN, which the tile will refuse
    norms = np.where(np.isfinite(norms), norms, np.nan)
    return np.asarray(1.0 / np.where(norms == 0.0, 1.0, norms))


def squared_radius(rho: float, F: float, n_features: int) -> float:
    """R^2 = rho^2 p F: outside it the robust loss is zero."""
    return rho * rho * F * n_features


def radius(rho: float, F: float, n_features: int) -> float:
    return math.sqrt(squared_radius(rho, F, n_features))


@compiled("reassoc", "contract")
def _map_rows(raw, inv_norms, shift, scale, mapped, sq_norms):  # type: ignore[no-untyped-def]
    # float64 until the last step: a large offset of the data is gone before anything is rounded
    for i in range(raw.shape[0]):
        total = 0.0
        for j in range(raw.shape[1]):
            value = np.float32((raw[i, j] * inv_norms[i] - shift[j]) * scale[j])
            mapped[i, j] = value
            total += np.float64(value) * np.float64(value)
        sq_norms[i] = total


@compiled("reassoc", "contract")
def exact_sq_distance(x, x_inv_norm, c, c_inv_norm, scale):  # type: ignore[no-untyped-def]
    """Squared distance of a raw row and a raw point in the model's space, in float64."""
    total = 0.0
    for j in range(x.shape[0]):
        d = (x[j] * x_inv_norm - c[j] * c_inv_norm) * scale[j]
        total += d * d
    return total
