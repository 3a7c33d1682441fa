"""Orthonormal axes along which points differ most."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels.distances.points import UNIT_ROUNDOFF, MappedRows, Points, move_origin
from scrlm_dask.kernels.jit import jit

_OVERSAMPLED = 8  # axes more than asked for, so that the last ones asked for are good, too


_ROUNDS = 2


_MOST_POINTS = 2048


_LEAST_SIZE = 2.0**-100


@dataclass(frozen=True)
class AxisFrame:
    """Axes to see points along, and from where: it stays while the points move a little."""

    directions: NDArray[np.float32]  # (p, q) orthonormal
    origin: NDArray[np.float64]  # (p,)


def principal_axes(points: NDArray[np.float32], n_axes: int) -> NDArray[np.float32]:
    """The first `n_axes` principal axes (p, n_axes) of centered points (k, p), strongest first.

    By subspace iteration from a fixed start, on some of the points. Whoever projects onto them
    needs them orthonormal, not exact: a poor axis costs time and changes no result.
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
    """Which axes a block's shadows are cast on: none, then every product is taken in full."""

    n_axes: int
    principal: bool = False  # else the first features, which need no projection

    def __str__(self) -> str:
        if self.n_axes == 0:
            return "dense"
        return f"{self.n_axes} principal axes" if self.principal else f"{self.n_axes} features"


DENSE = Subspace(0)


@dataclass(frozen=True)
class ProjectedPoints:
    """Shadows of the points, which rows' shadows are compared with."""

    cut: Subspace
    directions: NDArray[np.float32] | None  # (p, q + 1), the last column 0; None for features
    shadows: NDArray[np.float32]  # (k, q + 1)
    largest_error: float  # how far rounding may have moved a shadow
    moved_error: float  # how far it may have moved coordinates of rows that are held

    @property
    def error_factor(self) -> float:
        """Bound e with |float32 squared distance - that of the shadows| <= e * (|y|^2 + |c|^2)."""
        return (self.cut.n_axes + 25) * UNIT_ROUNDOFF


@dataclass(frozen=True)
class ProjectedRows:
    """Products of rows' shadows with the points' shadows, and how sure they are."""

    which: NDArray[np.int64]  # (rows,) whose shadows, by their place among those that were mapped
    products: NDArray[np.float32]  # (rows, k)
    errors: NDArray[np.float64]  # (rows,) how much nearer a row and a point may be than seen


def project_points(points: Points, cut: Subspace) -> ProjectedPoints:
    q = cut.n_axes
    shadows = np.zeros((len(points.mapped), q + 1), np.float32)
    directions = None
    if cut.principal and points.axes is not None:
        directions = np.zeros((points.mapped.shape[1], q + 1), np.float32)
        directions[:, :q] = points.axes.directions[:, :q]
        shadows[:, :q] = points.axes.coordinates[:, :q]
    else:
        shadows[:, :q] = points.mapped[:, :q]
    moved_error = 0.0
    if directions is not None:  # it is added, and was taken away before
        moved_error = 4.0 * UNIT_ROUNDOFF * float(np.linalg.norm(move_origin(points, q)))
    errors = _add_length_off(shadows, points.sq_norms, _error_share(points, cut), 0.0)
    return ProjectedPoints(cut, directions, shadows, float(errors.max(initial=0.0)), moved_error)


def project_block(
    rows: MappedRows,
    points: ProjectedPoints,
    which: NDArray[np.int64] | None = None,
    out: NDArray[np.float32] | None = None,
) -> ProjectedRows:
    """Shadows of the rows, or of `which`, by their place among them; products go to `out`."""
    which = np.arange(len(rows.mapped)) if which is None else which
    known = _known_coordinates(rows, points)
    if known is None:
        assert points.directions is not None
        some = len(which) < len(rows.mapped)
        shadows, extra = (rows.mapped[which] if some else rows.mapped) @ points.directions, 0.0
    else:
        shadows = np.zeros((len(which), points.cut.n_axes + 1), np.float32)
        shadows[:, :-1] = known[which]
        extra = points.moved_error
    errors = _add_length_off(shadows, rows.sq_norms[which], _error_share(rows, points.cut), extra)
    out = None if out is None else out[: len(which)]
    products = np.matmul(shadows, points.shadows.T, out=out)
    return ProjectedRows(which, products, errors + points.largest_error)


def _known_coordinates(rows: MappedRows, points: ProjectedPoints) -> NDArray[np.float32] | None:
    """(rows, q) features, or coordinates that are held; None where rows have to be projected."""
    q = points.cut.n_axes
    if points.directions is None:
        return rows.mapped[:, :q]
    if rows.coordinates is not None and q <= rows.coordinates.shape[1]:
        return rows.coordinates[:, :q]
    return None


def distance_bound(
    sq_radius: NDArray[np.float64] | float, errors: NDArray[np.float64] | float
) -> NDArray[np.float64]:
    """Squared distance of shadows beyond which a pair is surely outside the radius."""
    return np.asarray(np.square(np.sqrt(sq_radius) + errors))


def _error_share(vectors: MappedRows | Points, cut: Subspace) -> float:
    """What share of |y| rounding may move the coordinates along the axes, all together.

    Each is a sum of p products, of which each rounds and so does each sum; features are as exact as
    their map.
    """
    terms = vectors.mapped.shape[1] if cut.principal else 0
    return float((terms + 16) * np.sqrt(cut.n_axes)) * UNIT_ROUNDOFF


@jit("reassoc", "contract")
def _add_length_off(shadows, sq_norms, share, extra):  # type: ignore[no-untyped-def]
    """Fill the last coordinate; returns how far rounding may have moved each shadow (rows,).

    Along the axes it moved by at most the share of |y|, and `extra`. The length off the axes is
    what is missing to |y|^2. So its square errs by what the length along them does, and that weighs
    the more the shorter it is.
    """
    rows, width = shadows.shape
    errors = np.empty(rows)
    for i in range(rows):
        along = 0.0
        for j in range(width - 1):
            along += np.float64(shadows[i, j]) * np.float64(shadows[i, j])
        off = math.sqrt(max(sq_norms[i] - along, 0.0))
        shadows[i, width - 1] = off
        norm = math.sqrt(sq_norms[i])
        along_error = share * norm + extra
        sq_error = 3.0 * along_error * max(norm, along_error)
        off_error = math.sqrt(sq_error)
        if off > off_error:
            off_error = sq_error / off
        errors[i] = along_error + off_error
    return errors
