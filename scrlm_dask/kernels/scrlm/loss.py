"""Robust loss of candidates: step 4 of Algorithm 1, the most expensive step.

L(c) = sum over rows x of min(|x - c|^2 / (p rho^2) - F, 0), without the candidate's own row. With S
the sum of squared distances of the k rows inside the radius R, L(c) = F (S / R^2 - k). A pass
therefore sums only S and k, for any number of radii.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels.distances import points, pruning
from scrlm_dask.kernels.distances.points import MappedRows, Points, Tile, exact_sq_distance
from scrlm_dask.kernels.distances.projections import ProjectedPoints, ProjectedRows, distance_bound
from scrlm_dask.kernels.jit import jit

# Largest float32 rounding of a pair's norms, as a share of R^2. Beyond it the distance of the pair
# is computed again in float64: float32 would lose clusters that are tiny compared with the
# distances between them.
_MAX_RELATIVE_ROUNDING = 5e-7
_FAR_PRODUCT = np.float32(-1e38)  # product that marks a pair as not counted
_FEW_ROUNDINGS = 8.0 * points.UNIT_ROUNDOFF  # relative error of the limits of products
_CHUNK = 256  # candidates processed together


@dataclass(frozen=True)
class LossPart:
    """Sums over some rows for n candidates at r radii: a mergeable part.

    For each candidate, a row is counted only at the smallest radius that contains it.
    """

    sq_sums: NDArray[np.float64]  # (n, r) sums of squared distances
    neighbors: NDArray[np.int64]  # (n, r) number of rows other than the candidate's own
    pruned: pruning.Pruned


@dataclass(frozen=True)
class Losses:
    """Losses of n candidates at one radius."""

    losses: NDArray[np.float64]  # (n,)
    neighbors: NDArray[np.int64]  # (n,) number of other rows closer than the radius


def loss_part(
    block: NDArray[Any],
    row_numbers: NDArray[np.int64],
    candidates: Points,
    candidate_rows: NDArray[np.int64],
    sq_radii: Sequence[float],
    prune: pruning.Prune = "auto",
) -> LossPart:
    """Sum squared distances and count neighbors of every candidate over a block (rows, p).

    `row_numbers` (rows,) are the numbers of the block's rows, and `sq_radii` are ascending. A
    candidate's own row is excluded by its number, because its float32 distance to itself need not
    be 0.
    """
    sums = _Sums(candidates, candidate_rows, row_numbers, np.array(sq_radii, np.float64))
    return sums.finish(pruning.prune_block(block, candidates, prune, sums))


def merge_losses(a: LossPart, b: LossPart) -> LossPart:
    """Add up the sums of two parts."""
    return LossPart(
        a.sq_sums + b.sq_sums, a.neighbors + b.neighbors, pruning.merge_pruned(a.pruned, b.pruned)
    )


def losses_of(part: LossPart, sq_radii: Sequence[float], F: float) -> tuple[Losses, ...]:
    """Return the losses at each radius; `sq_radii` are the radii that the part was summed for."""
    sq_sums, neighbors = part.sq_sums.cumsum(axis=1), part.neighbors.cumsum(axis=1)
    losses = F * (sq_sums / np.array(sq_radii) - neighbors)
    return tuple(
        Losses(np.ascontiguousarray(losses[:, r]), np.ascontiguousarray(neighbors[:, r]))
        for r in range(len(sq_radii))
    )


class _Limits(NamedTuple):
    """Values per row and per candidate; their sum is the limit for the product of the pair."""

    rows: NDArray[np.float32]  # (rows,)
    candidates: NDArray[np.float32]  # (n,)


class _Totals(NamedTuple):
    """Ascending squared radii (r,), and the sums (n, r) at each of them, updated in place."""

    sq_radii: NDArray[np.float64]
    sq_sums: NDArray[np.float64]
    counts: NDArray[np.float64]


class _Sums:
    """Sums over a block, which is added tile by tile."""

    def __init__(
        self,
        candidates: Points,
        candidate_rows: NDArray[np.int64],
        row_numbers: NDArray[np.int64],
        sq_radii: NDArray[np.float64],
    ) -> None:
        if not (np.diff(sq_radii) > 0.0).all():
            raise ValueError(f"squared radii must be ascending, got {sq_radii.tolist()}")
        self._candidates = candidates
        self._own = _positions_of(row_numbers, candidate_rows)
        shape = len(candidates.raw), len(sq_radii)
        self._totals = _Totals(sq_radii, np.zeros(shape), np.zeros(shape))

    def finish(self, pruned: pruning.Pruned) -> LossPart:
        return LossPart(self._totals.sq_sums, self._totals.counts.astype(np.int64), pruned)

    def count_possible_points(
        self, rows: MappedRows, seen: ProjectedRows, projected: ProjectedPoints
    ) -> NDArray[np.int64]:
        """Count the candidates that may be inside the widest radius of each row."""
        outer = self._limits(rows.sq_norms, seen.errors, -projected.error_factor)
        return np.asarray(np.count_nonzero(seen.products > outer[0][:, None] + outer[1], axis=1))

    def add(self, tile: Tile) -> None:
        """Add the rows of a tile, by their full products with all candidates."""
        self._exclude_own(tile, tile.products)
        factor = self._candidates.error_factor
        doubt = 0.5 * (factor + _FEW_ROUNDINGS)
        doubts = _Limits(
            (doubt * tile.sq_norms + points.underflow(tile.raw.shape[1])).astype(np.float32),
            (doubt * self._candidates.sq_norms).astype(np.float32),
        )
        _add_tile(
            tile.products,
            self._limits(tile.sq_norms, 0.0, -factor),
            self._limits(tile.sq_norms, 0.0, 0.0),
            doubts,
            tile.arrays,
            self._candidates.arrays,
            self._totals,
        )

    def add_near(
        self, rows: MappedRows, seen: ProjectedRows, projected: ProjectedPoints
    ) -> tuple[NDArray[np.int64], int]:
        """Add rows; compute only the pairs that their projections do not rule out.

        Returns the positions of rows with too many such pairs, which are not added, and the number
        of pairs that were computed for the other rows.
        """
        self._exclude_own(rows, seen.products)
        dense = np.empty(len(seen.which), np.int64)
        n_dense, finished = _add_near(
            seen.which,
            seen.products,
            self._limits(rows.sq_norms[seen.which], seen.errors, -projected.error_factor),
            pruning.max_possible_points(len(self._candidates.raw)),
            dense,
            rows.arrays,
            self._candidates.arrays,
            self._totals,
        )
        return dense[:n_dense], finished

    def _exclude_own(self, rows: MappedRows, products: NDArray[np.float32]) -> None:
        own = self._own[rows.positions]
        are_candidates = np.flatnonzero(own >= 0)
        products[are_candidates, own[are_candidates]] = _FAR_PRODUCT

    def _limits(self, sq_norms: NDArray[np.float64], errors: Any, error_factor: float) -> _Limits:
        """Return limits whose sum is the product of a pair at the distance of the widest radius.

        The limits solve |y|^2 + |c|^2 - 2 y.c = R^2 for the product y.c of a row y and a candidate
        c, with the given errors. One comparison then decides most pairs.
        """
        factor = 0.5 * (1.0 + error_factor)
        bounds = factor * sq_norms - 0.5 * distance_bound(self._totals.sq_radii[-1], errors)
        bounds = np.maximum(bounds, 0.5 * _FAR_PRODUCT)  # excludes `_FAR_PRODUCT` at any radius
        halves = factor * self._candidates.sq_norms
        return _Limits(bounds.astype(np.float32), halves.astype(np.float32))


def _positions_of(values: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position of each value in `numbers`, -1 if it is not there."""
    order = np.argsort(numbers)
    ranks = np.searchsorted(numbers, values, sorter=order)
    positions = order[np.minimum(ranks, len(order) - 1)]
    return np.where(numbers[positions] == values, positions, -1)


@jit()
def _add_tile(products, outer, middle, doubts, rows, candidates, totals):  # type: ignore[no-untyped-def]
    n_rows, n = products.shape
    raw, inv_norms, _, sq_norms = rows
    c_raw, c_inv, _, c_sq_norms, scale, error_factor = candidates
    sq_radii, sq_sums, counts = totals
    bounds, halves = middle
    row_doubts, c_doubts = doubts
    row_limits, limits = outer
    maybe = np.zeros(-(-n // 8) * 8, np.uint8)
    near = np.empty(len(maybe) + 1, np.int32)
    gains, hits = np.zeros(n), np.zeros(n, np.int32)
    finest = _MAX_RELATIVE_ROUNDING / points.UNIT_ROUNDOFF * sq_radii[0] - c_sq_norms.max()
    first = 0
    while first < n_rows:
        four = min(first + 4, n_rows)
        if four - first == 4 and len(sq_radii) == 1 and sq_norms[first:four].max() <= finest:
            for start in range(0, n, _CHUNK):
                stop = min(start + _CHUNK, n)
                chunk = slice(start, stop)
                doubtful = _add_four(
                    # The four rows are separate arguments, so that Numba knows they are contiguous.
                    products[first, chunk],
                    products[first + 1, chunk],
                    products[first + 2, chunk],
                    products[first + 3, chunk],
                    _Limits(bounds[first:four], halves[chunk]),
                    _Limits(row_doubts[first:four], c_doubts[chunk]),
                    gains[chunk],
                    hits[chunk],
                )
                for i in range(first, four if doubtful else first):
                    for j in range(start, stop):
                        gain = products[i, j] - (bounds[i] + halves[j])
                        if abs(gain) > row_doubts[i] + c_doubts[j]:
                            continue
                        if gain > 0.0:  # undo what `_add_four` added
                            gains[j] -= np.float64(gain)
                            hits[j] -= 1
                        sq_dist = exact_sq_distance(raw[i], inv_norms[i], c_raw[j], c_inv[j], scale)
                        _add_pair(sq_dist, j, sq_radii, sq_sums, counts)
        else:
            for i in range(first, four):
                count = points.select_above(products[i], row_limits[i], limits, maybe, near)
                for s in range(count):
                    j = near[s]
                    sq_sum = sq_norms[i] + c_sq_norms[j]
                    sq_dist = max(0.0, sq_sum - 2.0 * products[i, j])
                    rounding = points.UNIT_ROUNDOFF * sq_sum
                    if _in_doubt(sq_dist, error_factor * sq_sum, rounding, sq_radii):
                        sq_dist = exact_sq_distance(raw[i], inv_norms[i], c_raw[j], c_inv[j], scale)
                    _add_pair(sq_dist, j, sq_radii, sq_sums, counts)
        first = four
    # A gain is (R^2 - d^2) / 2, so the sum of d^2 is hits * R^2 minus twice the gains.
    for j in range(n):
        sq_sums[j, 0] += hits[j] * sq_radii[0] - 2.0 * gains[j]
        counts[j, 0] += hits[j]


@jit()
def _add_near(which, products, outer, most, dense, rows, candidates, totals):  # type: ignore[no-untyped-def]
    n_seen, n = products.shape
    raw, inv_norms, mapped, sq_norms = rows
    c_raw, c_inv_norms, c_mapped, c_sq_norms, scale, _ = candidates
    sq_radii, sq_sums, counts = totals
    row_limits, limits = outer
    maybe = np.zeros(-(-n // 8) * 8, np.uint8)
    near = np.empty(len(maybe) + 1, np.int32)
    n_dense = finished = 0
    for seen in range(n_seen):
        i = which[seen]
        count = points.select_above(products[seen], row_limits[seen], limits, maybe, near)
        if count > most:
            dense[n_dense] = i
            n_dense += 1
            continue
        finished += count
        for s in range(count):
            j = near[s]
            sq_sum = sq_norms[i] + c_sq_norms[j]
            sq_dist = np.float64(points.sq_distance(mapped[i], c_mapped[j]))
            # `sq_distance` sums squared differences, without cancellation, so only the rounding of
            # the two vectors matters.
            rounding = points.UNIT_ROUNDOFF * math.sqrt(sq_sum * sq_dist)
            error = points.sq_distance_error(sq_dist, sq_sum, mapped.shape[1])
            if _in_doubt(sq_dist, error, rounding, sq_radii):
                sq_dist = exact_sq_distance(raw[i], inv_norms[i], c_raw[j], c_inv_norms[j], scale)
            _add_pair(sq_dist, j, sq_radii, sq_sums, counts)
    return n_dense, finished


@jit()
def _add_four(p0, p1, p2, p3, middle, doubts, gains, hits):  # type: ignore[no-untyped-def]
    """Add (R^2 - d^2) / 2 of each pair inside the radius, for four rows and some candidates.

    Returns whether rounding may decide some of the pairs. These pairs are also added, and the
    caller has to correct them.
    """
    bounds, halves = middle
    b0, b1, b2, b3 = bounds[0], bounds[1], bounds[2], bounds[3]
    d0, d1, d2, d3 = doubts.rows[0], doubts.rows[1], doubts.rows[2], doubts.rows[3]
    c_doubts = doubts.candidates
    zero, doubt = np.float32(0.0), np.int32(0)
    # This loop is written so that LLVM vectorizes it over candidates.
    for j in range(len(halves)):
        g0 = p0[j] - (b0 + halves[j])
        g1 = p1[j] - (b1 + halves[j])
        g2 = p2[j] - (b2 + halves[j])
        g3 = p3[j] - (b3 + halves[j])
        c_doubt = c_doubts[j]
        doubt |= np.int32(
            (abs(g0) <= d0 + c_doubt)
            | (abs(g1) <= d1 + c_doubt)
            | (abs(g2) <= d2 + c_doubt)
            | (abs(g3) <= d3 + c_doubt)
        )
        # In float64, because a float32 sum over 1e9 rows is too inaccurate to separate clusters.
        gains[j] += (
            np.float64(g0 if g0 > zero else zero) + np.float64(g1 if g1 > zero else zero)
        ) + (np.float64(g2 if g2 > zero else zero) + np.float64(g3 if g3 > zero else zero))
        hits[j] += np.int32(g0 > zero) + np.int32(g1 > zero)
        hits[j] += np.int32(g2 > zero) + np.int32(g3 > zero)
    return doubt != 0


@jit()
def _add_pair(sq_dist, j, sq_radii, sq_sums, counts):  # type: ignore[no-untyped-def]
    r = _first_radius(sq_dist, sq_radii)
    if r < len(sq_radii):
        sq_sums[j, r] += sq_dist
        counts[j, r] += 1.0


@jit()
def _first_radius(sq_dist, sq_radii):  # type: ignore[no-untyped-def]
    """Return the index of the least radius above the distance; the number of radii without one."""
    r = len(sq_radii)
    while r > 0 and sq_dist < sq_radii[r - 1]:
        r -= 1
    return r


@jit()
def _in_doubt(sq_dist, error, rounding, sq_radii):  # type: ignore[no-untyped-def]
    """Return whether float32 is too coarse for the pair, or may put it inside the wrong radius."""
    r = _first_radius(sq_dist, sq_radii)
    if r > 0 and sq_dist - sq_radii[r - 1] <= error:
        return True
    if r == len(sq_radii):
        return False
    return sq_radii[r] - sq_dist <= error or rounding > _MAX_RELATIVE_ROUNDING * sq_radii[r]
