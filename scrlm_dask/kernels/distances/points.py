"""Rows and points mapped into the model's space, and their distances.

Distances are computed by one float32 matrix product, |y|^2 + |c|^2 - 2 y.c, which is fast but
rounds. Decisions based on such a distance (inside or outside the radius, which center is nearer)
use `error_factor` to detect the few pairs that rounding could decide. For these pairs, the distance
is computed again by `exact_sq_distance`. Labels and neighbor counts therefore do not depend on
tiles, blocks or the BLAS.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import NonFiniteRowError
from scrlm_dask.kernels.distances.preprocessing import AffineMap, FloatArray, native_float
from scrlm_dask.kernels.jit import jit

UNIT_ROUNDOFF = 2.0**-24  # of float32
LEAST_FLOAT = 2.0**-126  # least normal float32; smaller numbers lose digits or become 0
LARGEST_SQ_NORM = 2.0**120  # the product of two such rows does not overflow float32
_TILE_BYTES = 16 * 2**20
_MIN_TILE_ROWS, _MAX_TILE_ROWS = 128, 1024


@dataclass(frozen=True)
class Axes:
    """Principal axes, strongest first, and the coordinates of points along them."""

    directions: NDArray[np.float32]  # (p, q) orthonormal
    coordinates: NDArray[np.float32]  # (k, q)
    origin: NDArray[np.float64]  # (p,) from which precomputed coordinates of rows are measured


class PointArrays(NamedTuple):
    """The arrays of `Points`, as arguments of compiled kernels."""

    raw: FloatArray  # (k, p) in input units
    inv_norms: NDArray[np.float64]  # (k,)
    mapped: NDArray[np.float32]  # (k, p)
    sq_norms: NDArray[np.float64]  # (k,) of mapped
    scale: NDArray[np.float64]  # (p,)
    error_factor: float  # as `Points.error_factor`


class RowArrays(NamedTuple):
    """The arrays of `MappedRows`, as arguments of compiled kernels."""

    raw: FloatArray  # (rows, p) in input units
    inv_norms: NDArray[np.float64]  # (rows,)
    mapped: NDArray[np.float32]  # (rows, p)
    sq_norms: NDArray[np.float64]  # (rows,) of mapped


@dataclass(frozen=True)
class Points:
    """k points (candidates or centers), prepared for comparison with rows.

    Mapped points are centered: `shift`, their mean, is subtracted from points and from rows. This
    does not change distances, and avoids cancellation if the data is far from the origin.
    """

    raw: FloatArray  # (k, p) in input units
    inv_norms: NDArray[np.float64]  # (k,) 1 / |x| if the map requires unit length, else 1
    mapped: NDArray[np.float32]  # (k, p)
    sq_norms: NDArray[np.float64]  # (k,) of mapped
    shift: NDArray[np.float64]  # (p,)
    scale: NDArray[np.float64]  # (p,)
    unit_length: bool
    axes: Axes | None = None  # for pruning, if many rows are compared
    half_distances: NDArray[np.float64] | None = None  # (k,) from `half_center_distances`

    @property
    def error_factor(self) -> float:
        """Bound e such that |float32 squared distance - exact one| <= e * (|y|^2 + |c|^2).

        There are p roundings in the product and a few more in the map and the norms.
        """
        return (len(self.scale) + 24) * UNIT_ROUNDOFF

    @property
    def arrays(self) -> PointArrays:
        """Return the arrays for compiled kernels."""
        return PointArrays(
            self.raw, self.inv_norms, self.mapped, self.sq_norms, self.scale, self.error_factor
        )


@dataclass(frozen=True)
class MappedRows:
    """Some rows of a block, mapped into the space of the points."""

    positions: NDArray[np.int64]  # (rows,) in the block
    raw: FloatArray  # (rows, p)
    inv_norms: NDArray[np.float64]  # (rows,)
    sq_norms: NDArray[np.float64]  # (rows,) of mapped
    mapped: NDArray[np.float32]  # (rows, p)
    # (rows, q) coordinates along the points' first axes, if precomputed
    coordinates: NDArray[np.float32] | None = field(default=None, kw_only=True)

    @property
    def arrays(self) -> RowArrays:
        """Return the arrays for compiled kernels."""
        return RowArrays(self.raw, self.inv_norms, self.mapped, self.sq_norms)

    def take(self, which: NDArray[np.int64]) -> MappedRows:
        """Return a copy of the rows at the positions `which`."""
        return MappedRows(
            self.positions[which],
            self.raw[which],
            self.inv_norms[which],
            self.sq_norms[which],
            self.mapped[which],
            coordinates=None if self.coordinates is None else self.coordinates[which],
        )


@dataclass(frozen=True)
class Tile(MappedRows):
    """Rows and their products with the points."""

    products: NDArray[np.float32]  # (rows, k)


def prepare_points(raw: NDArray[Any], affine: AffineMap) -> Points:
    """Map points (k, p), given in input units, into the space of `affine`."""
    raw = native_float(raw)
    inv_norms = inverse_norms(raw, affine.unit_length)
    shift = _mean(raw, inv_norms)
    mapped = np.empty(raw.shape, np.float32)
    sq_norms = np.empty(len(raw))
    _map_rows(raw, inv_norms, shift, affine.scale, mapped, sq_norms)
    return Points(raw, inv_norms, mapped, sq_norms, shift, affine.scale, affine.unit_length)


def check_sample(rows: FloatArray, affine: AffineMap) -> None:
    """Raise `NonFiniteRowError` at the largest row if distances of a sample may overflow float32.

    If no error is raised, `map_rows` accepts all these rows, with any points among them.
    """
    inv_norms = inverse_norms(rows, affine.unit_length)
    shift = _mean(rows, inv_norms)
    mapped, sq_norms = np.empty((_MIN_TILE_ROWS, rows.shape[1]), np.float32), np.empty(len(rows))
    for start in range(0, len(rows), _MIN_TILE_ROWS):
        here = slice(start, start + _MIN_TILE_ROWS)
        _map_rows(rows[here], inv_norms[here], shift, affine.scale, mapped, sq_norms[here])
    # The limit is lower than that of `map_rows`, because norms from another shift may be larger.
    if not (sq_norms < LARGEST_SQ_NORM / 4.0).all():
        raise NonFiniteRowError(int(np.argmax(sq_norms)))


def tiles(block: NDArray[Any], points: Points) -> Iterator[Tile]:
    """Yield a block (rows, p) as tiles whose products are small enough to stay in cache.

    Tiles share their buffers: a tile is valid until the next one is yielded.
    """
    products = np.empty((tile_rows(len(points.mapped)), len(points.mapped)), np.float32)
    for rows in map_rows(block, points):
        yield with_products(rows, points, products[: len(rows.raw)])


def with_products(rows: MappedRows, points: Points, out: NDArray[np.float32] | None = None) -> Tile:
    """Return a tile of the rows and their products with the points."""
    products = np.matmul(rows.mapped, points.mapped.T, out=out)
    return Tile(rows.positions, rows.raw, rows.inv_norms, rows.sq_norms, rows.mapped, products)


def map_rows(
    block: NDArray[Any], points: Points, coordinates: NDArray[np.float32] | None = None
) -> Iterator[MappedRows]:
    """Yield a block (rows, p) in pieces of `tile_rows`, mapped like the points.

    Pieces share one buffer: a piece is valid until the next one is yielded. Raises
    `NonFiniteRowError` at the first row with NaN, infinity or a value too large for float32.
    `coordinates` (rows, q) come from `project_rows`.
    """
    k, p = points.mapped.shape
    height = tile_rows(k)
    mapped = np.empty((min(height, len(block)), p), np.float32)
    moved = None if coordinates is None else move_origin(points, coordinates.shape[1])
    for start in range(0, len(block), height):
        rows = map_like(block[start : start + height], points, start, mapped)
        usable = rows.sq_norms < LARGEST_SQ_NORM  # False for NaN
        if not usable.all():
            raise NonFiniteRowError(start + int(np.argmin(usable)))
        yield (
            rows
            if coordinates is None or moved is None
            else with_coordinates(rows, coordinates, moved)
        )


def project_rows(block: NDArray[Any], points: Points, n_axes: int) -> NDArray[np.float32]:
    """Return the coordinates (rows, n_axes) of a block (rows, p) along the points' first axes.

    Coordinates are relative to the axes' origin, so they are also valid for other points with the
    same axes.
    """
    assert points.axes is not None
    directions = np.ascontiguousarray(points.axes.directions[:, :n_axes])
    coordinates = np.empty((len(block), directions.shape[1]), np.float32)
    moved = move_origin(points, directions.shape[1])
    for rows in map_rows(block, points):
        span = slice(int(rows.positions[0]), int(rows.positions[-1]) + 1)
        coordinates[span] = rows.mapped @ directions - moved
    return coordinates


def move_origin(points: Points, n_axes: int) -> NDArray[np.float32]:
    """Return the coordinates (n_axes,) of the axes' origin, relative to the shift of the points."""
    assert points.axes is not None
    offset = (points.axes.origin - points.shift) * points.scale
    return np.asarray(offset @ points.axes.directions[:, :n_axes], np.float32)


def with_coordinates(
    rows: MappedRows, coordinates: NDArray[np.float32], moved: NDArray[np.float32]
) -> MappedRows:
    """Return the rows with their precomputed coordinates, relative to the shift of the points.

    `coordinates` (n, q) are those of all rows of the block, and `moved` (q,) comes from
    `move_origin`.
    """
    return replace(rows, coordinates=coordinates[rows.positions] + moved)


def map_like(
    x: NDArray[Any], points: Points, start: int = 0, out: NDArray[np.float32] | None = None
) -> MappedRows:
    """Apply to rows (rows, p) the shift and scale that were applied to the points.

    `start` is the position of the first row in its block.
    """
    raw = native_float(x)
    inv_norms = inverse_norms(raw, points.unit_length)
    sq_norms = np.empty(len(raw))
    mapped = np.empty(raw.shape, np.float32) if out is None else out[: len(raw)]
    _map_rows(raw, inv_norms, points.shift, points.scale, mapped, sq_norms)
    positions = np.arange(start, start + len(raw), dtype=np.int64)
    return MappedRows(positions, raw, inv_norms, sq_norms, mapped)


def tile_rows(n_points: int) -> int:
    """Return the number of rows per tile such that products stay in cache and BLAS is efficient."""
    fitting = _TILE_BYTES // (4 * max(n_points, 1))
    return max(_MIN_TILE_ROWS, min(_MAX_TILE_ROWS, fitting))


def underflow(n_features: int) -> float:
    """Return a bound on the error from float32 underflow in a product of `n_features` terms."""
    return (n_features + 64.0) * LEAST_FLOAT


def inverse_norms(raw: FloatArray, unit_length: bool) -> NDArray[np.float64]:
    """Return 1 / |x| of each row (rows, p); 1 for rows of zeros, and 1 without `unit_length`."""
    if not unit_length:
        return np.ones(len(raw))
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(np.einsum("ij,ij->i", raw, raw, dtype=np.float64))
    # The direction of a row whose square overflows is lost. NaN makes `map_rows` reject it.
    norms = np.where(np.isfinite(norms), norms, np.nan)
    return np.asarray(1.0 / np.where(norms == 0.0, 1.0, norms))


def squared_radius(rho: float, F: float, n_features: int) -> float:
    """Return R^2 = rho^2 p F; rows outside R add nothing to the robust loss."""
    return rho * rho * F * n_features


def radius(rho: float, F: float, n_features: int) -> float:
    """Return R = rho sqrt(p F)."""
    return math.sqrt(squared_radius(rho, F, n_features))


def _mean(raw: FloatArray, inv_norms: NDArray[np.float64]) -> NDArray[np.float64]:
    # einsum converts in small buffers, so it makes no float64 copy of the rows
    total = np.einsum("i,ij->j", inv_norms, raw, dtype=np.float64)
    return np.asarray(total / max(len(raw), 1))


@jit("reassoc", "contract")
def _map_rows(raw, inv_norms, shift, scale, mapped, sq_norms):  # type: ignore[no-untyped-def]
    # Computed in float64 and rounded last, when a large offset of the data is already subtracted.
    for i in range(raw.shape[0]):
        total = 0.0
        for j in range(raw.shape[1]):
            value = np.float32((raw[i, j] * inv_norms[i] - shift[j]) * scale[j])
            mapped[i, j] = value
            total += np.float64(value) * np.float64(value)
        sq_norms[i] = total


@jit("reassoc", "contract")
def exact_sq_distance(x, x_inv_norm, c, c_inv_norm, scale):  # type: ignore[no-untyped-def]
    """Return the float64 squared distance of a raw row to a raw point in the model's space."""
    total = 0.0
    for j in range(x.shape[0]):
        d = (x[j] * x_inv_norm - c[j] * c_inv_norm) * scale[j]
        total += d * d
    return total


@jit("reassoc", "contract")
def sq_distance(y, c):  # type: ignore[no-untyped-def]
    """Return the float32 squared distance between two mapped vectors (p,), without cancellation."""
    total = np.float32(0.0)
    for j in range(y.shape[0]):
        d = y[j] - c[j]
        total += d * d
    return total


@jit()
def sq_distance_error(sq_dist, sq_sum, n_features):  # type: ignore[no-untyped-def]
    """Return a bound on the error of `sq_distance`; `sq_sum` is the sum of both squared norms.

    Each square and each sum is rounded, and each vector was rounded when it was mapped.
    """
    rounded = (n_features + 4.0) * sq_dist + 8.0 * math.sqrt(sq_sum * max(sq_dist, 0.0))
    rounded += 8.0 * UNIT_ROUNDOFF * sq_sum
    return UNIT_ROUNDOFF * rounded + (n_features + 64.0) * LEAST_FLOAT


@jit()
def select_above(products, bound, halves, maybe, near):  # type: ignore[no-untyped-def]
    """Write the points j with products[j] > bound + halves[j] to `near`; return their number.

    `maybe` has one byte per point, padded with zeros to a multiple of eight. `near` must have one
    element more than `maybe`.
    """
    for j in range(products.shape[0]):
        maybe[j] = products[j] > bound + halves[j]
    return select_marked(maybe, near)


@jit()
def select_marked(maybe, near):  # type: ignore[no-untyped-def]
    """Write the points whose byte is 1 to `near`; return their number."""
    # Test eight bytes at a time, because nearly all are 0.
    eights = maybe.view(np.uint64)
    count = 0
    for eight in range(len(eights)):
        if eights[eight] == 0:
            continue
        for j in range(8 * eight, 8 * eight + 8):
            near[count] = j
            count += maybe[j]
    return count
