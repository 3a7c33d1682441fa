"""Lower bounds on distances from projections on few axes.

Rows and points are projected on principal axes of the points, or on the first features. One more
coordinate keeps the length off these axes, so the distance of two projections is a lower bound on
the distance of the vectors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels.distances.points import UNIT_ROUNDOFF, MappedRows, Points, move_origin
from scrlm_dask.kernels.jit import jit

_OVERSAMPLED = 8  # additional axes, so that the last requested ones are also good
_ROUNDS = 2
_MOST_POINTS = 2048
_LEAST_SIZE = 2.0**-100


@dataclass(frozen=True)
class AxisFrame:
    """Axes to project on, and their origin. It is kept while the points move a little."""

    directions: NDArray[np.float32]  # (p, q) orthonormal
    origin: NDArray[np.float64]  # (p,)


def principal_axes(points: NDArray[np.float32], n_axes: int) -> NDArray[np.float32]:
    """Return the first `n_axes` principal axes (p, n_axes) of centered points (k, p).

    Subspace iteration from a fixed start, on some of the points; the strongest axis comes first.
    The axes must be orthonormal, not exact: a poor axis costs time and changes no result.
    """
    points = points[:: -(-len(points) // _MOST_POINTS)]
    # at a size whose squares float32 can hold; directions do not change
    points = points / np.float32(max(float(np.abs(points).max(initial=0.0)), _LEAST_SIZE))
    width = min(n_axes + _OVERSAMPLED, points.shape[1])
    basis = np.random.default_rng(0).standard_normal((points.shape[1], width))
    for _ in range(_ROUNDS):
        along: NDArray[Any] = points.T @ (points @ basis.astype(np.float32))
        basis = np.linalg.qr(along.astype(np.float64))[0]
    seen = (points @ basis.astype(np.float32)).astype(np.float64)
    _, turn = np.linalg.eigh(seen.T @ seen)
    return np.ascontiguousarray((basis @ turn[:, ::-1])[:, :n_axes], dtype=np.float32)


@dataclass(frozen=True)
class Subspace:
    """The axes that a block is projected on; with none, every product is computed in full."""

    n_axes: int
    principal: bool = False  # else the first features, which need no projection

    def __str__(self) -> str:
        if self.n_axes == 0:
            return "dense"
        return f"{self.n_axes} principal axes" if self.principal else f"{self.n_axes} features"


DENSE = Subspace(0)


@dataclass(frozen=True)
class ProjectedPoints:
    """Projections of the points, with which projections of rows are compared."""

    subspace: Subspace
    directions: NDArray[np.float32] | None  # (p, q + 1), the last column 0; None for features
    coordinates: NDArray[np.float32]  # (k, q + 1)
    largest_error: float  # how far rounding may have moved a projection
    moved_error: float  # how far rounding may have moved known coordinates of rows

    @property
    def error_factor(self) -> float:
        """Bound e with |float32 squared distance - projected one| <= e * (|y|^2 + |c|^2)."""
        return (self.subspace.n_axes + 25) * UNIT_ROUNDOFF


@dataclass(frozen=True)
class ProjectedRows:
    """Products of projected rows with projected points, and bounds on their errors."""

    which: NDArray[np.int64]  # (rows,) positions of these rows among the mapped ones
    products: NDArray[np.float32]  # (rows, k)
    errors: NDArray[np.float64]  # (rows,) how much nearer a row and a point may be than seen


def project_points(points: Points, subspace: Subspace) -> ProjectedPoints:
    """Project points on the axes of a subspace."""
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
    if directions is not None:  # it is added, and was taken away before
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
    """Project all rows, or those at the positions `which`; products are written to `out`."""
    which = np.arange(len(rows.mapped)) if which is None else which
    known = _known_coordinates(rows, points)
    if known is None:
        assert points.directions is not None
        some = len(which) < len(rows.mapped)
        projections, extra = (rows.mapped[which] if some else rows.mapped) @ points.directions, 0.0
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
    """Return features or known coordinates (rows, q), or None if rows must be projected."""
    q = points.subspace.n_axes
    if points.directions is None:
        return rows.mapped[:, :q]
    if rows.coordinates is not None and q <= rows.coordinates.shape[1]:
        return rows.coordinates[:, :q]
    return None


def distance_bound(
    sq_radius: NDArray[np.float64] | float, errors: NDArray[np.float64] | float
) -> NDArray[np.float64]:
    """Return the squared distance of projections beyond which a pair is outside the radius."""
    return np.asarray(np.square(np.sqrt(sq_radius) + errors))


def _error_share(vectors: MappedRows | Points, subspace: Subspace) -> float:
    """Return the share of |y| by which rounding may move the coordinates along the axes.

    Each coordinate is a sum of p products; each product and each sum rounds. Features are as exact
    as their map.
    """
    terms = vectors.mapped.shape[1] if subspace.principal else 0
    return float((terms + 16) * np.sqrt(subspace.n_axes)) * UNIT_ROUNDOFF


@jit("reassoc", "contract")
def _add_length_off(projections, sq_norms, share, extra):  # type: ignore[no-untyped-def]
    """Fill the last coordinate; return how far rounding may have moved each projection (rows,).

    Along the axes it moved by at most the share of |y|, and `extra`. The length off the axes is
    what is missing to |y|^2. Its square has the error of the length along the axes, which matters
    more the shorter the length off the axes is.
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
