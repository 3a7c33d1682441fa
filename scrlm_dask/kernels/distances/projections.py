"""Lower bounds on distances, from projections onto few axes.

Rows and points are projected onto principal axes of the points, or onto the first features. One
additional coordinate is the length of the component orthogonal to these axes. The distance between
two projections is then a lower bound on the distance between the vectors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels.distances.points import UNIT_ROUNDOFF, MappedRows, Points, move_origin
from scrlm_dask.kernels.jit import jit

_OVERSAMPLED = 8  # additional axes, which make the last requested ones more accurate
_ROUNDS = 2
_MOST_POINTS = 2048
_LEAST_SIZE = 2.0**-100


@dataclass(frozen=True)
class AxisFrame:
    """Axes to project onto, and their origin; reused while the points move only a little."""

    directions: NDArray[np.float32]  # (p, q) orthonormal
    origin: NDArray[np.float64]  # (p,)


def principal_axes(points: NDArray[np.float32], n_axes: int) -> NDArray[np.float32]:
    """Return the first `n_axes` principal axes (p, n_axes) of centered points (k, p).

    Uses subspace iteration from a fixed start on a subset of the points; the axis with the largest
    variance comes first. Axes must be orthonormal but need not be accurate: a poor axis costs time
    and does not change results.
    """
    points = points[:: -(-len(points) // _MOST_POINTS)]
    # Scale the points so that squares fit float32; directions do not change.
    points = points / np.float32(max(float(np.abs(points).max(initial=0.0)), _LEAST_SIZE))
    width = min(n_axes + _OVERSAMPLED, points.shape[1])
    basis = np.random.default_rng(0).standard_normal((points.shape[1], width))
    for _ in range(_ROUNDS):
        along: NDArray[Any] = points.T @ (points @ basis.astype(np.float32))
        basis = np.linalg.qr(along.astype(np.float64))[0]
    reduced = (points @ basis.astype(np.float32)).astype(np.float64)
    _, rotation = np.linalg.eigh(reduced.T @ reduced)
    return np.ascontiguousarray((basis @ rotation[:, ::-1])[:, :n_axes], dtype=np.float32)


@dataclass(frozen=True)
class Subspace:
    """The axes that a block is projected onto; with 0 axes, all products are computed in full."""

    n_axes: int
    principal: bool = False  # if False: the first features, which need no projection

    def __str__(self) -> str:
        if self.n_axes == 0:
            return "dense"
        return f"{self.n_axes} principal axes" if self.principal else f"{self.n_axes} features"


DENSE = Subspace(0)


@dataclass(frozen=True)
class ProjectedPoints:
    """Projections of the points, to be compared with projections of rows."""

    subspace: Subspace
    directions: NDArray[np.float32] | None  # (p, q + 1), the last column 0; None for features
    coordinates: NDArray[np.float32]  # (k, q + 1)
    largest_error: float  # bound on the rounding error of a projection
    moved_error: float  # additional bound for precomputed coordinates of rows

    @property
    def error_factor(self) -> float:
        """Bound e like `Points.error_factor`, for squared distances between projections."""
        return (self.subspace.n_axes + 25) * UNIT_ROUNDOFF


@dataclass(frozen=True)
class ProjectedRows:
    """Products of projected rows with projected points, and bounds on their errors."""

    which: NDArray[np.int64]  # (rows,) positions of these rows among the mapped ones
    products: NDArray[np.float32]  # (rows, k)
    errors: NDArray[np.float64]  # (rows,) most by which projections may be too far apart


def project_points(points: Points, subspace: Subspace) -> ProjectedPoints:
    """Project points onto the axes of a subspace."""
    q = subspace.n_axes
    projections = np.zeros((len(points.mapped), q + 1), np.float32)
    directions = None
    if subspace.principal and points.axes is not None:
        directions = np.zeros((points.mapped.shape[1], q + 1), np.float32)
        directions[:, :q] = points.axes.directions[:, :q]
        projections[:, :q] = points.axes.coordinates[:, :q]
    else:
        projections[:, :q] = points.mapped[:, :q]
    moved_error = 0.0
    if directions is not None:  # moving the origin of coordinates rounds
        moved_error = 4.0 * UNIT_ROUNDOFF * float(np.linalg.norm(move_origin(points, q)))
    errors = _add_length_off(projections, points.sq_norms, _error_share(points, subspace), 0.0)
    return ProjectedPoints(
        subspace, directions, projections, float(errors.max(initial=0.0)), moved_error
    )


def project_block(
    rows: MappedRows,
    points: ProjectedPoints,
    which: NDArray[np.int64] | None = None,
    out: NDArray[np.float32] | None = None,
) -> ProjectedRows:
    """Project all rows, or the rows at the positions `which`; products are written to `out`."""
    which = np.arange(len(rows.mapped)) if which is None else which
    known = _known_coordinates(rows, points)
    if known is None:
        assert points.directions is not None
        is_subset = len(which) < len(rows.mapped)
        projections, extra = (
            (rows.mapped[which] if is_subset else rows.mapped) @ points.directions,
            0.0,
        )
    else:
        projections = np.zeros((len(which), points.subspace.n_axes + 1), np.float32)
        projections[:, :-1] = known[which]
        extra = points.moved_error
    errors = _add_length_off(
        projections, rows.sq_norms[which], _error_share(rows, points.subspace), extra
    )
    out = None if out is None else out[: len(which)]
    products = np.matmul(projections, points.coordinates.T, out=out)
    return ProjectedRows(which, products, errors + points.largest_error)


def _known_coordinates(rows: MappedRows, points: ProjectedPoints) -> NDArray[np.float32] | None:
    """Return features or precomputed coordinates (rows, q); None if rows must be projected."""
    q = points.subspace.n_axes
    if points.directions is None:
        return rows.mapped[:, :q]
    if rows.coordinates is not None and q <= rows.coordinates.shape[1]:
        return rows.coordinates[:, :q]
    return None


def distance_bound(
    sq_radius: NDArray[np.float64] | float, errors: NDArray[np.float64] | float
) -> NDArray[np.float64]:
    """Return the squared distance between projections beyond which a pair is outside the radius."""
    return np.asarray(np.square(np.sqrt(sq_radius) + errors))


def _error_share(vectors: MappedRows | Points, subspace: Subspace) -> float:
    """Return a bound on the rounding error of the coordinates along the axes, as a share of |y|.

    Each coordinate is a sum of p products; each product and each sum rounds. Coordinates that are
    features have only the rounding error of the map.
    """
    terms = vectors.mapped.shape[1] if subspace.principal else 0
    return float((terms + 16) * np.sqrt(subspace.n_axes)) * UNIT_ROUNDOFF


@jit("reassoc", "contract")
def _add_length_off(projections, sq_norms, share, extra):  # type: ignore[no-untyped-def]
    """Set the last coordinate to the length off the axes; return error bounds (rows,).

    A bound covers the whole error of a projection. The error along the axes is at most `share`
    times |y|, plus `extra`. The squared length off the axes is |y|^2 minus the squared length along
    the axes, and has the error of this squared length. The shorter the length off the axes is, the
    larger is its error.
    """
    rows, width = projections.shape
    errors = np.empty(rows)
    for i in range(rows):
        along = 0.0
        for j in range(width - 1):
            along += np.float64(projections[i, j]) * np.float64(projections[i, j])
        off = math.sqrt(max(sq_norms[i] - along, 0.0))
        projections[i, width - 1] = off
        norm = math.sqrt(sq_norms[i])
        along_error = share * norm + extra
        sq_error = 3.0 * along_error * max(norm, along_error)
        off_error = math.sqrt(sq_error)
        if off > off_error:
            off_error = sq_error / off
        errors[i] = along_error + off_error
    return errors
