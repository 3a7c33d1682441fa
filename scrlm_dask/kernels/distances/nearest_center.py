"""Nearest center of each row of a block, using projections if they help.

The center with the nearest projection is a good guess for the nearest center, and the distance to
this center is an upper bound. Only centers whose projections are nearer than this bound can be
nearer than the guess. With a radius, only centers within the radius count, and a row without such a
center is an outlier. If centers are far from each other, a row close to its guess is labelled
without further comparisons.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels import OUTLIER
from scrlm_dask.kernels.distances import points
from scrlm_dask.kernels.distances.preprocessing import native_float
from scrlm_dask.kernels.distances.projections import ProjectedPoints, ProjectedRows, distance_bound
from scrlm_dask.kernels.distances.pruning import Prune, Pruned, max_possible_points, prune_block
from scrlm_dask.kernels.jit import jit

_LANES = 128  # centers compared in parallel; each lane has its own minimum
_LARGEST_HALF = 2.0**126
_SPAN = 128  # features summed between two checks of the bound
_SLAB_ROWS = 8192  # rows converted to native floats at a time


@dataclass(frozen=True)
class Nearest:
    """Labels of the rows of a block."""

    labels: NDArray[np.int32]  # (rows,) ties go to the first center; OUTLIER: see `nearest_centers`
    inv_norms: NDArray[np.float64]  # (rows,) 1 / |x| if rows are scaled to unit length, else 1
    pruned: Pruned


def nearest_centers(
    block: NDArray[Any],
    centers: points.Points,
    sq_radius: float = math.inf,
    prune: Prune = "auto",
    coordinates: NDArray[np.float32] | None = None,
) -> Nearest:
    """Label each row of a block (rows, p) with its nearest center (k, p).

    A row is labelled OUTLIER only if no center is inside the radius. But a row may also be labelled
    with a center outside the radius, so the caller has to check the distance. `coordinates`
    (rows, q) are precomputed coordinates of the rows along the centers' axes.
    """
    search = _Search(centers, sq_radius, len(block))
    pruned = prune_block(block, centers, prune, search, search, coordinates)
    return Nearest(search.labels, search.inv_norms, pruned)


def measure_rows(
    block: NDArray[Any], nearest: Nearest, centers: points.Points
) -> NDArray[np.float64]:
    """Return the squared distance (rows,) of each row to its labelled center; NaN for outliers."""
    sq_distances = np.full(len(block), np.nan)
    for first in range(0, len(block), _SLAB_ROWS):
        span = slice(first, first + _SLAB_ROWS)
        _measure_slab(
            native_float(block[span]),
            nearest.inv_norms[span],
            centers.arrays,
            nearest.labels[span],
            sq_distances[span],
        )
    return sq_distances


def mean_sq_distance(rows: NDArray[Any], centers: points.Points) -> float:
    """Return the mean squared distance of rows to their nearest centers."""
    return float(measure_rows(rows, nearest_centers(rows, centers), centers).mean())


class _Seen(NamedTuple):
    """Projected rows, as arguments of the compiled kernel."""

    which: NDArray[np.int64]  # (seen,)
    products: NDArray[np.float32]  # (seen, k)
    projection_errors: NDArray[np.float64]  # (seen,)
    errors: NDArray[np.float64]  # (rows,) bounds on errors of squared distances of projections


class _Search:
    """Search for the nearest centers of the rows of a block, tile by tile."""

    def __init__(self, centers: points.Points, sq_radius: float, n_rows: int) -> None:
        self._centers, self._sq_radius = centers, sq_radius
        # `_lower` requires finite numbers; centers this far away are never the nearest.
        self._halves = np.minimum(0.5 * centers.sq_norms, _LARGEST_HALF).astype(np.float32)
        self._largest = float(centers.sq_norms.max(initial=0.0))
        self._floor = points.underflow(centers.raw.shape[1])
        self.labels, self.inv_norms = np.empty(n_rows, np.int32), np.empty(n_rows)

    def count_possible_points(
        self, rows: points.MappedRows, seen: ProjectedRows, projected: ProjectedPoints
    ) -> NDArray[np.int64]:
        """Count, for each row, the centers that may be its nearest center."""
        halves = self._halves - seen.products
        guesses = halves.argmin(axis=1)
        differences = rows.mapped - self._centers.mapped[guesses]
        sq_guessed = np.einsum("ij,ij->i", differences, differences, dtype=np.float64)
        within = distance_bound(np.minimum(sq_guessed, self._sq_radius), seen.errors)
        slack = projected.error_factor * (rows.sq_norms + self._largest)
        limits = 0.5 * (within + slack - rows.sq_norms)
        return np.asarray(np.count_nonzero(halves <= limits[:, None], axis=1))

    def is_certain(self, rows: points.MappedRows, seen: ProjectedRows) -> NDArray[np.bool_]:
        """Return which rows (rows,) `assign_if_certain` would label."""
        return np.asarray(self._certain_labels(rows, seen) != OUTLIER)

    def assign_if_certain(self, rows: points.MappedRows, seen: ProjectedRows) -> NDArray[np.int64]:
        """Label rows whose nearest center is certain; return the positions of the other rows."""
        labels = self._certain_labels(rows, seen)
        self._store(rows, labels)
        return np.flatnonzero(labels == OUTLIER)

    def _certain_labels(self, rows: points.MappedRows, seen: ProjectedRows) -> NDArray[np.int32]:
        """Return labels (rows,): the nearest center if it is certain, otherwise OUTLIER."""
        labels = np.empty(len(rows.raw), np.int32)
        _label_certain(
            seen.products,
            self._halves,
            rows.arrays,
            self._centers.arrays,
            self._centers.half_distances,
            labels,
        )
        return labels

    def add(self, tile: points.Tile) -> None:
        """Label the rows of a tile by their full products with all centers."""
        labels = np.full(len(tile.raw), OUTLIER, np.int32)
        if tile.products.shape[1] == 0:
            return self._store(tile, labels)
        _label_tile(
            tile.products,
            self._halves,
            self._centers.error_factor * (tile.sq_norms + self._largest) + self._floor,
            tile.arrays,
            self._centers.arrays,
            labels,
        )
        return self._store(tile, labels)

    def add_near(
        self, rows: points.MappedRows, seen: ProjectedRows, projected: ProjectedPoints
    ) -> tuple[NDArray[np.int64], int]:
        """Label rows; compare only the centers that their projections do not rule out.

        Returns the positions of rows with too many such centers, which are not labelled yet, and
        the number of pairs that were compared for the other rows.
        """
        labels, dense = np.empty(len(seen.which), np.int32), np.empty(len(seen.which), np.int64)
        n_dense, finished = _label_near(
            _Seen(
                seen.which,
                seen.products,
                seen.errors,
                projected.error_factor * (rows.sq_norms + self._largest) + self._floor,
            ),
            self._halves,
            rows.arrays,
            self._centers.arrays,
            self._sq_radius,
            max_possible_points(len(self._halves)),
            labels,
            dense,
        )
        self._store(rows, labels, seen.which)
        return dense[:n_dense], finished

    def _store(
        self,
        rows: points.MappedRows,
        labels: NDArray[np.int32],
        which: NDArray[np.int64] | None = None,
    ) -> None:
        """Store labels of the rows, or of the rows at the positions `which`."""
        positions = rows.positions if which is None else rows.positions[which]
        self.labels[positions] = labels
        self.inv_norms[rows.positions] = rows.inv_norms


@jit()
def _label_tile(products, c_halves, errors, rows, centers, labels):  # type: ignore[no-untyped-def]
    n_rows, k = products.shape
    raw, inv_norms, _, _ = rows
    c_raw, c_inv_norms, _, _, scale, _ = centers
    minima = np.empty(min(k, _LANES), np.float32)
    near = np.empty(k, np.int32)
    for i in range(n_rows):
        least = _lane_minima(products[i], c_halves, minima)
        # Select the centers that rounding could rank first.
        limit = np.float32(least + errors[i])
        count = _select_within(products[i], c_halves, minima, limit, near)
        labels[i] = _first_of(near[:count], raw[i], inv_norms[i], c_raw, c_inv_norms, scale)


@jit()
def _label_certain(products, c_halves, rows, centers, half_distances, labels):  # type: ignore[no-untyped-def]
    n_rows, k = products.shape
    mapped, sq_norms = rows.mapped, rows.sq_norms
    c_mapped, c_sq_norms = centers.mapped, centers.sq_norms
    minima = np.empty(min(k, _LANES), np.float32)
    near = np.empty(k, np.int32)
    for i in range(n_rows):
        guess = _first_least(products[i], c_halves, minima, near)
        bound = half_distances[guess] * half_distances[guess]
        sq_sum = sq_norms[i] + c_sq_norms[guess]
        sq_dist, error = _measure_up_to(mapped[i], c_mapped[guess], bound, sq_sum)
        labels[i] = guess if sq_dist + error < bound else OUTLIER


@jit()
def _first_least(products, c_halves, minima, near):  # type: ignore[no-untyped-def]
    """Return the first center with the least |c|^2 / 2 - y.c, and fill `minima`."""
    least = _lane_minima(products, c_halves, minima)
    return near[: _select_within(products, c_halves, minima, least, near)].min()


@jit()
def _label_near(seen, c_halves, rows, centers, sq_radius, most, labels, dense):  # type: ignore[no-untyped-def]
    which, all_products, projection_errors, errors = seen
    n_seen, k = all_products.shape
    raw, inv_norms, mapped, sq_norms = rows
    c_raw, c_inv_norms, c_mapped, c_sq_norms, scale, _ = centers
    minima = np.empty(min(k, _LANES), np.float32)
    near = np.empty(k, np.int32)
    least_distances = np.empty(k)
    n_dense = finished = 0
    for s in range(n_seen):
        i, products = which[s], all_products[s]
        labels[s] = OUTLIER
        guess = _first_least(products, c_halves, minima, near)
        nearest = sq_radius
        limit = _limit(nearest, projection_errors[s], errors[i], sq_norms[i])
        if c_halves[guess] - products[guess] > limit:
            continue
        sq_sum = sq_norms[i] + c_sq_norms[guess]
        sq_dist, error = _measure_up_to(mapped[i], c_mapped[guess], nearest, sq_sum)
        least_guessed = sq_dist - error
        nearest = min(nearest, sq_dist + error)
        limit = _limit(nearest, projection_errors[s], errors[i], sq_norms[i])
        count = _select_within(products, c_halves, minima, limit, near)
        if count > most:
            dense[n_dense] = i
            n_dense += 1
            continue
        finished += count
        for n in range(count):
            if near[n] == guess:
                least_distances[n] = least_guessed
                continue
            sq_sum = sq_norms[i] + c_sq_norms[near[n]]
            sq_dist, error = _measure_up_to(mapped[i], c_mapped[near[n]], nearest, sq_sum)
            least_distances[n] = sq_dist - error
            # If `sq_dist` is a partial sum, it exceeds `nearest`, which then does not change.
            nearest = min(nearest, sq_dist + error)
        # Keep the centers that rounding could rank first.
        kept = 0
        for n in range(count):
            if least_distances[n] <= nearest:
                near[kept] = near[n]
                kept += 1
        if kept > 0:
            labels[s] = _first_of(near[:kept], raw[i], inv_norms[i], c_raw, c_inv_norms, scale)
    return n_dense, finished


@jit()
def _measure_up_to(y, c, bound, sq_sum):  # type: ignore[no-untyped-def]
    """Return `_sq_distance_up_to` and a bound on its error."""
    sq_dist = _sq_distance_up_to(y, c, bound, sq_sum)
    return sq_dist, points.sq_distance_error(sq_dist, sq_sum, y.shape[0])


@jit()
def _sq_distance_up_to(y, c, bound, sq_sum):  # type: ignore[no-untyped-def]
    """Return `sq_distance`, or a partial sum that exceeds the bound with certainty."""
    # A sum that exceeds the bound by twice the error at the bound is above the bound in spite of
    # its own error. If twice the error exceeds the bound, float32 is too coarse for a comparison:
    # compute the full sum.
    error = points.sq_distance_error(bound, sq_sum, y.shape[0])
    enough = bound + 2.0 * error if 2.0 * error <= bound else np.inf
    total = 0.0
    for first in range(0, y.shape[0], _SPAN):
        span = slice(first, min(first + _SPAN, y.shape[0]))
        total += np.float64(points.sq_distance(y[span], c[span]))
        if total > enough:
            break
    return total


@jit()
def _measure_slab(raw, inv_norms, centers, labels, sq_distances):  # type: ignore[no-untyped-def]
    c_raw, c_inv_norms, _, _, scale, _ = centers
    for i in range(len(labels)):
        k = labels[i]
        if k != OUTLIER:
            sq_distances[i] = points.exact_sq_distance(
                raw[i], inv_norms[i], c_raw[k], c_inv_norms[k], scale
            )


@jit()
def _first_of(near, x, inv_norm, c_raw, c_inv_norms, scale):  # type: ignore[no-untyped-def]
    """Return the nearest of the centers `near` by exact distances; ties go to the first."""
    label = near[0]
    if len(near) > 1:
        nearest = np.inf
        for j in near:
            sq_dist = points.exact_sq_distance(x, inv_norm, c_raw[j], c_inv_norms[j], scale)
            if sq_dist < nearest or (sq_dist == nearest and j < label):
                label, nearest = j, sq_dist
    return label


@jit()
def _limit(sq_dist, projection_error, error, sq_norm):  # type: ignore[no-untyped-def]
    """Return the largest |c|^2 / 2 - y.c of projections for a pair that may be within a distance.

    `sq_dist` is the square of this distance. Pairs above the limit are farther apart.
    """
    within = math.sqrt(sq_dist) + projection_error
    return np.float32(0.5 * (within * within + error - sq_norm))


@jit()
def _lane_minima(products, c_halves, minima):  # type: ignore[no-untyped-def]
    """Return the minimum over centers of |c|^2 / 2 - y.c, which ranks centers like the distance.

    Fills `minima` with the minimum of each lane. Lane l has the centers l, l + lanes, l + 2 lanes
    and so on.
    """
    lanes = minima.shape[0]
    for lane in range(lanes):
        minima[lane] = c_halves[lane] - products[lane]
    for first in range(lanes, products.shape[0], lanes):
        _lower(minima, products[first : first + lanes], c_halves[first : first + lanes])
    least = minima[0]
    for lane in range(1, lanes):
        least = min(minima[lane], least)
    return least


@jit()
def _lower(minima, products, c_halves):  # type: ignore[no-untyped-def]
    """Update the minimum of each lane with one more center per lane."""
    for lane in range(products.shape[0]):
        value, least = c_halves[lane] - products[lane], minima[lane]
        # Written as arithmetic, because LLVM does not vectorize the conditional. One of the terms
        # is 0 and both numbers are finite, so nothing is rounded.
        lower = np.float32(value < least)
        minima[lane] = lower * value + (np.float32(1.0) - lower) * least


@jit()
def _select_within(products, c_halves, minima, limit, near):  # type: ignore[no-untyped-def]
    """Write centers whose |c|^2 / 2 - y.c is at most the limit to `near`; return their number.

    The centers are written lane by lane.
    """
    k, lanes = products.shape[0], minima.shape[0]
    count = 0
    for lane in range(lanes):
        if minima[lane] > limit:
            continue
        for j in range(lane, k, lanes):
            if c_halves[j] - products[j] <= limit:
                near[count] = j
                count += 1
    return count
