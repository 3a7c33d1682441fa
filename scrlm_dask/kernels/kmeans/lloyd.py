"""One Lloyd iteration of k-means: label rows with their nearest center, then move the centers.

Each center moves to the mean of its rows. With a radius, rows outside the radius of every center
are ignored. Labelling and moving then both decrease the sum over rows of min(|x - c|^2, R^2),
called inertia here; without a radius this sum is the usual inertia.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels import OUTLIER
from scrlm_dask.kernels.distances import cluster_sums
from scrlm_dask.kernels.distances.nearest_center import nearest_centers
from scrlm_dask.kernels.distances.points import Points, inverse_norms
from scrlm_dask.kernels.distances.preprocessing import FloatArray, native_float
from scrlm_dask.kernels.distances.pruning import Prune, Pruned, merge_pruned

_ROUNDINGS = 16  # bound on float64 roundings in the mean of identical rows
MOST_WORST = 16  # rows returned by a pass; further empty clusters are reseeded in the next pass


@dataclass(frozen=True)
class WorstRows:
    """Rows farthest from their centers, the farthest first; ties are ordered by row number."""

    sq_distances: NDArray[np.float64]  # (w,) in model units
    numbers: NDArray[np.int64]  # (w,) row numbers
    raw: FloatArray  # (w, p)


@dataclass(frozen=True)
class LloydPart:
    """Sums over some rows in one iteration: a mergeable part."""

    sums: cluster_sums.ClusterSums
    moved: int  # rows of weight > 0 whose label changed; all rows if there are no previous labels
    worst: WorstRows
    pruned: Pruned


@dataclass(frozen=True)
class LloydBlock:
    """The part of a block, and the labels of its rows, to be compared in the next iteration."""

    part: LloydPart
    labels: NDArray[np.int32]  # (rows,)
    counting: NDArray[np.bool_] | None = None  # (rows,) True for positive weight; None: all rows


@dataclass(frozen=True)
class MovedCenters:
    """Centers after an iteration, in input units, and counts of empty clusters."""

    centers: NDArray[np.float64]  # (k, p)
    empty: int  # clusters without rows
    reseeded: int  # empty clusters moved to a row far from its center


def lloyd_part(
    block: NDArray[Any],
    start: int,
    centers: Points,
    sq_radius: float,
    weights: NDArray[np.float64] | None = None,
    prune: Prune = "auto",
    coordinates: NDArray[np.float32] | None = None,
) -> LloydBlock:
    """Label the rows of a block (rows, p) that begins at row `start`, and sum them by label.

    `weights` (rows,) are sample weights. `coordinates` (rows, q) are precomputed coordinates of the
    rows on the q axes that pruning uses for these centers.
    """
    nearest = nearest_centers(block, centers, sq_radius, prune, coordinates)
    summed = cluster_sums.sum_rows(
        block, nearest.labels, nearest.inv_norms, centers, sq_radius, weights
    )
    labels, sq_distances = summed.labels, summed.sq_distances
    counting = None if weights is None else weights > 0.0
    off_center = (labels != OUTLIER) & (sq_distances > _sq_roundings(centers)[labels])
    eligible = off_center if counting is None else off_center & counting
    worst = _worst_rows(block, start, np.where(eligible, sq_distances, 0.0))
    part = LloydPart(summed.sums, len(block), worst, nearest.pruned)
    return LloydBlock(part, labels, counting)


def compare_labels(block: LloydBlock, previous: NDArray[np.int32]) -> LloydPart:
    """Return the block's part with the number of rows whose label differs from `previous` (rows,).

    The comparison is separate from labelling, so that the labels of a block do not depend on
    previous labels. Otherwise, computing lost labels again would require all earlier iterations.
    """
    changed = block.labels != previous
    if block.counting is not None:
        changed &= block.counting
    return replace(block.part, moved=int(np.count_nonzero(changed)))


def merge_lloyd(a: LloydPart, b: LloydPart) -> LloydPart:
    """Add up the sums of two parts, and keep the `MOST_WORST` worst rows of the two."""
    worst = WorstRows(
        np.concatenate([a.worst.sq_distances, b.worst.sq_distances]),
        np.concatenate([a.worst.numbers, b.worst.numbers]),
        np.concatenate([a.worst.raw, b.worst.raw]),
    )
    order = np.lexsort((worst.numbers, -worst.sq_distances))[:MOST_WORST]
    worst = WorstRows(worst.sq_distances[order], worst.numbers[order], worst.raw[order])
    pruned = merge_pruned(a.pruned, b.pruned)
    return LloydPart(cluster_sums.merge_sums(a.sums, b.sums), a.moved + b.moved, worst, pruned)


def inertia(sums: cluster_sums.ClusterSums, sq_radius: float = math.inf) -> float:
    """Return the sum of squared distances; each row outside the radius adds the squared radius."""
    outside = sums.total_mass - float(sums.masses.sum())
    inside = float(sums.sq_distances.sum())
    return inside if math.isinf(sq_radius) else inside + max(outside, 0.0) * sq_radius


def move_centers(
    centers: NDArray[np.float64], part: LloydPart, unit_length: bool, reseed: bool = True
) -> MovedCenters:
    """Move centers (k, p) to the mean of their rows, and centers without rows to the worst rows.

    With `unit_length`, rows and centers are scaled to unit length (spherical k-means). Without
    `reseed`, centers without rows stay in place: the sample may just contain none of their rows.
    """
    moved = centers * inverse_norms(centers, unit_length)[:, None] + cluster_sums.cluster_drifts(
        part.sums
    )
    if unit_length:
        moved = _unit_or(moved, centers)
    empty = np.flatnonzero(part.sums.masses == 0.0)
    n_reseeded = len(empty) if reseed else 0
    seeds = _distinct_rows(part.worst, unit_length)[:n_reseeded] if n_reseeded else ()
    for k, seed in zip(empty, seeds, strict=False):
        moved[k] = seed
    return MovedCenters(moved, len(empty), len(seeds))


def relative_shift(
    before: NDArray[np.float64],
    after: NDArray[np.float64],
    scale: NDArray[np.float64],
    mean_sq_distance: float,
) -> float:
    """Return the RMS shift of centers (k, p), divided by the RMS distance of rows to centers."""
    mean_sq_shift = float(np.square((after - before) * scale).sum()) / max(len(after), 1)
    if mean_sq_shift == 0.0:
        return 0.0
    return math.sqrt(mean_sq_shift / mean_sq_distance) if mean_sq_distance > 0.0 else math.inf


def _sq_roundings(centers: Points) -> NDArray[np.float64]:
    """Return squared distances (k,) that rounding may cause between a center and a row equal to it.

    A row within this distance must not become the new center of an empty cluster: the cluster would
    be empty again, and would be moved again in every iteration.
    """
    sq_norms = np.einsum("ij,ij,j->i", centers.raw, centers.raw, centers.scale**2, dtype=np.float64)
    return np.asarray((_ROUNDINGS * np.finfo(np.float64).eps * centers.inv_norms) ** 2 * sq_norms)


def _worst_rows(block: NDArray[Any], start: int, sq_distances: NDArray[np.float64]) -> WorstRows:
    """Return the worst rows of a block; rows at distance 0 do not count."""
    rows = np.arange(len(block), dtype=np.int64)
    if len(block) > MOST_WORST:
        # Include all rows that tie with the last one; row numbers decide among these rows.
        least = np.partition(sq_distances, -MOST_WORST)[-MOST_WORST]
        rows = np.flatnonzero(sq_distances >= least)
    rows = rows[sq_distances[rows] > 0.0]
    rows = rows[np.lexsort((rows, -sq_distances[rows]))][:MOST_WORST]
    return WorstRows(sq_distances[rows], start + rows, native_float(block[rows]))


def _distinct_rows(worst: WorstRows, unit_length: bool) -> list[NDArray[np.float64]]:
    """Return the worst rows as new centers, without duplicates."""
    raw = worst.raw.astype(np.float64)
    points = raw * inverse_norms(raw, unit_length)[:, None]
    distinct: list[NDArray[np.float64]] = []
    for point in points:
        if not any(np.array_equal(point, other) for other in distinct):
            distinct.append(point)
    return distinct


def _unit_or(points: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scale points (k, p) to unit length; replace a point of length 0 by its entry in `others`."""
    norms = np.sqrt(np.square(points).sum(axis=1, keepdims=True))
    return np.asarray(np.where(norms > 0.0, points / np.where(norms > 0.0, norms, 1.0), others))
