"""One Lloyd iteration of k-means: rows to their nearest center, centers to the mean of their rows.

With a radius, rows farther than it from every center take no part. Both steps then lower the sum
over rows of min(|x - c|^2, R^2), which is what is called inertia here; without one it is the usual.
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

_ROUNDINGS = 16  # of float64, between a row and the mean of rows that are all alike
MOST_WORST = 16  # worst rows that a pass brings home; more empty clusters wait for the next


@dataclass(frozen=True)
class WorstRows:
    """Rows that lie farthest from their centers, the farthest first, ties by row number."""

    sq_distances: NDArray[np.float64]  # (w,) in model units
    numbers: NDArray[np.int64]  # (w,) row numbers
    raw: FloatArray  # (w, p)


@dataclass(frozen=True)
class LloydPart:
    """What some rows say about the centers: a mergeable part."""

    sums: cluster_sums.ClusterSums
    moved: int  # rows that count and whose label is another than before; all without one before
    worst: WorstRows
    pruned: Pruned


@dataclass(frozen=True)
class LloydBlock:
    """A block's part, and its labels for the next iteration to compare with."""

    part: LloydPart
    labels: NDArray[np.int32]  # (rows,)
    counting: NDArray[np.bool_] | None = None  # (rows,) those of some weight; None: all


@dataclass(frozen=True)
class MovedCenters:
    """Centers after an iteration, in input units, and what became of the empty ones."""

    centers: NDArray[np.float64]  # (k, p)
    empty: int  # clusters that had no row
    reseeded: int  # of them, moved to a row far from its center


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

    `weights` (rows,) are the rows' weights, and `coordinates` (rows, q) their coordinates along the
    centers' axes, if they are known.
    """
    found = nearest_centers(block, centers, sq_radius, prune, coordinates)
    summed = cluster_sums.sum_rows(
        block, found.labels, found.inv_norms, centers, sq_radius, weights
    )
    labels, sq_distances = summed.labels, summed.sq_distances
    counting = None if weights is None else weights > 0.0
    apart = (labels != OUTLIER) & (sq_distances > _sq_roundings(centers)[labels])
    badly = apart if counting is None else apart & counting
    worst = _worst_rows(block, start, np.where(badly, sq_distances, 0.0))
    part = LloydPart(summed.sums, len(block), worst, found.pruned)
    return LloydBlock(part, labels, counting)


def compare_labels(found: LloydBlock, previous: NDArray[np.int32]) -> LloydPart:
    """The block's part with the number of its rows that left `previous` (rows,), their cluster.

    Apart from labelling: labels that needed those before them would need all iterations so far.
    """
    changed = found.labels != previous
    if found.counting is not None:
        changed &= found.counting
    return replace(found.part, moved=int(np.count_nonzero(changed)))


def merge_lloyd(a: LloydPart, b: LloydPart) -> LloydPart:
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
    """Sum of squared distances, a row outside the radius counting as if it lay on it."""
    outside = sums.total_mass - float(sums.masses.sum())
    inside = float(sums.sq_distances.sum())
    return inside if math.isinf(sq_radius) else inside + max(outside, 0.0) * sq_radius


def move_centers(
    centers: NDArray[np.float64], part: LloydPart, unit_length: bool, reseed: bool = True
) -> MovedCenters:
    """Move centers (k, p) to the mean of their rows, empty ones to the worst rows.

    With `unit_length` rows count at unit length, and so do the centers: spherical k-means. Without
    `reseed` empty ones stay: those whose rows are merely in no sample are not lost.
    """
    moved = centers * inverse_norms(centers, unit_length)[:, None] + cluster_sums.cluster_drifts(
        part.sums
    )
    if unit_length:
        moved = _unit_or(moved, centers)
    empty = np.flatnonzero(part.sums.masses == 0.0)
    wanted = len(empty) if reseed else 0
    seeds = _distinct_rows(part.worst, unit_length)[:wanted] if wanted else ()
    for k, seed in zip(empty, seeds, strict=False):
        moved[k] = seed
    return MovedCenters(moved, len(empty), len(seeds))


def relative_shift(
    before: NDArray[np.float64],
    after: NDArray[np.float64],
    scale: NDArray[np.float64],
    mean_sq_distance: float,
) -> float:
    """How far centers (k, p) moved against how far rows lie from them, both root mean squares."""
    mean_sq_shift = float(np.square((after - before) * scale).sum()) / max(len(after), 1)
    if mean_sq_shift == 0.0:
        return 0.0
    return math.sqrt(mean_sq_shift / mean_sq_distance) if mean_sq_distance > 0.0 else math.inf


def _sq_roundings(centers: Points) -> NDArray[np.float64]:
    """Squared distances (k,) that rounding may leave between a center and a row that lies on it.

    A center moved to such a row would be empty again, and moved again, for ever.
    """
    sq_norms = np.einsum("ij,ij,j->i", centers.raw, centers.raw, centers.scale**2, dtype=np.float64)
    return np.asarray((_ROUNDINGS * np.finfo(np.float64).eps * centers.inv_norms) ** 2 * sq_norms)


def _worst_rows(block: NDArray[Any], start: int, sq_distances: NDArray[np.float64]) -> WorstRows:
    """The worst rows of a block; rows on their center do not count."""
    rows = np.arange(len(block), dtype=np.int64)
    if len(block) > MOST_WORST:
        # all that tie with the last one: which of them stay is decided by row number
        least = np.partition(sq_distances, -MOST_WORST)[-MOST_WORST]
        rows = np.flatnonzero(sq_distances >= least)
    rows = rows[sq_distances[rows] > 0.0]
    rows = rows[np.lexsort((rows, -sq_distances[rows]))][:MOST_WORST]
    return WorstRows(sq_distances[rows], start + rows, native_float(block[rows]))


def _distinct_rows(worst: WorstRows, unit_length: bool) -> list[NDArray[np.float64]]:
    """The worst rows as centers: of rows that are alike only the first."""
    raw = worst.raw.astype(np.float64)
    points = raw * inverse_norms(raw, unit_length)[:, None]
    distinct: list[NDArray[np.float64]] = []
    for point in points:
        if not any(np.array_equal(point, other) for other in distinct):
            distinct.append(point)
    return distinct


def _unit_or(points: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """Points (k, p) at unit length; where one has no direction, the other in its place."""
    norms = np.sqrt(np.square(points).sum(axis=1, keepdims=True))
    return np.asarray(np.where(norms > 0.0, points / np.where(norms > 0.0, norms, 1.0), others))
