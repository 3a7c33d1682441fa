"""Nearest center of each row, or outlier: steps 14 to 21 of Algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels import OUTLIER
from scrlm_dask.kernels.distances.cluster_sums import ClusterSums, sum_rows
from scrlm_dask.kernels.distances.nearest_center import measure_rows, nearest_centers
from scrlm_dask.kernels.distances.points import Points, exact_sq_distance, tiles, underflow
from scrlm_dask.kernels.distances.projections import DENSE
from scrlm_dask.kernels.distances.pruning import Prune, Pruned, merge_pruned
from scrlm_dask.kernels.jit import jit


@dataclass(frozen=True)
class Assignment:
    """Labels and distances of the rows of a block; distances are in the model's space."""

    labels: NDArray[np.int32]  # (rows,) OUTLIER if no center is closer than the radius
    sq_distances: NDArray[np.float64]  # (rows,) to the nearest center; NaN if not computed
    second_sq_distances: NDArray[np.float64] | None  # (rows,) to the second-nearest, if requested
    pruned: Pruned = field(default_factory=Pruned)

    @property
    def distances(self) -> NDArray[np.float32]:
        """Distances (rows,) to the nearest center."""
        return np.sqrt(self.sq_distances).astype(np.float32)

    @property
    def margins(self) -> NDArray[np.float32] | None:
        """Margins (rows,): distance to the second-nearest center minus distance to the nearest.

        None if they were not requested.
        """
        if self.second_sq_distances is None:
            return None
        second = np.sqrt(self.second_sq_distances)
        nearest = np.where(np.isfinite(self.sq_distances), np.sqrt(self.sq_distances), 0.0)
        return (second - nearest).astype(np.float32)


def concatenate_assignments(parts: Sequence[Assignment]) -> Assignment:
    """Return the labels and distances of consecutive blocks as those of one block."""
    if len(parts) == 1:
        return parts[0]
    second = [part.second_sq_distances for part in parts if part.second_sq_distances is not None]
    return Assignment(
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.sq_distances for part in parts]),
        np.concatenate(second) if second else None,
        reduce(merge_pruned, [part.pruned for part in parts]),
    )


@dataclass(frozen=True)
class SummedAssignment:
    """An assignment, and the cluster sums from which mixture parameters are computed."""

    assignment: Assignment
    sums: ClusterSums


def assign_rows(
    block: NDArray[Any],
    centers: Points,
    sq_radius: float,
    *,
    margins: bool = False,
    prune: Prune = "auto",
) -> Assignment:
    """Label each row of a block (rows, p) with its nearest center; ties go to the first center.

    With `margins`, also compute the distance to the second-nearest center, and the distance of
    outliers to the nearest center. Pruning saves little then, so all distances are computed.
    """
    if margins:
        return _apply_radius(_two_nearest(block, centers)[0], sq_radius)
    nearest = nearest_centers(block, centers, sq_radius, prune)
    sq_distances = measure_rows(block, nearest, centers)
    sq_distances[~(sq_distances < sq_radius)] = np.nan
    return _apply_radius(Assignment(nearest.labels, sq_distances, None, nearest.pruned), sq_radius)


def assign_and_sum(
    block: NDArray[Any],
    centers: Points,
    sq_radius: float,
    weights: NDArray[np.float64] | None = None,
    *,
    margins: bool = False,
    prune: Prune = "auto",
) -> SummedAssignment:
    """Label rows as `assign_rows` does, and sum them by cluster with sample weights (rows,)."""
    if margins:
        two, inv_norms = _two_nearest(block, centers)
        summed = sum_rows(block, two.labels, inv_norms, centers, sq_radius, weights)
        return SummedAssignment(_apply_radius(two, sq_radius), summed.sums)
    nearest = nearest_centers(block, centers, sq_radius, prune)
    summed = sum_rows(block, nearest.labels, nearest.inv_norms, centers, sq_radius, weights)
    assignment = Assignment(summed.labels, summed.sq_distances, None, nearest.pruned)
    return SummedAssignment(assignment, summed.sums)


_LEAF_ROWS = 1024  # rows of a cluster that are copied at a time


@dataclass(frozen=True)
class LeafPoints:
    """Points of the fine level, which divide the clusters of the default level."""

    children: tuple[Points, ...]  # the points of each cluster
    firsts: NDArray[np.int64]  # (k,) number of the first leaf of each cluster

    @property
    def n_leaves(self) -> int:
        """Number of leaves."""
        return sum(len(points.raw) for points in self.children)


def assign_leaves(
    block: NDArray[Any], labels: NDArray[np.int32], leaves: LeafPoints
) -> NDArray[np.int32]:
    """Return the nearest leaf (rows,) among the leaves of each row's cluster; outliers stay."""
    nearest = labels.copy()
    order = np.argsort(labels, kind="stable")
    bounds = np.searchsorted(labels[order], np.arange(len(leaves.children) + 1))
    for k, points in enumerate(leaves.children):
        for start in range(bounds[k], bounds[k + 1], _LEAF_ROWS):
            rows = order[start : min(start + _LEAF_ROWS, bounds[k + 1])]
            nearest[rows] = leaves.firsts[k]
            if len(points.raw) > 1:
                nearest[rows] += nearest_centers(block[rows], points, prune=0).labels
    return nearest


def _apply_radius(assignment: Assignment, sq_radius: float) -> Assignment:
    """Label rows outside the radius as outliers."""
    inside = assignment.sq_distances < sq_radius  # False for NaN
    labels = np.where(inside, assignment.labels, OUTLIER).astype(np.int32)
    return replace(assignment, labels=labels)


def _two_nearest(block: NDArray[Any], centers: Points) -> tuple[Assignment, NDArray[np.float64]]:
    """Assign rows to their nearest center without a radius, with distances to the two nearest.

    Also returns the `inverse_norms` (rows,) of the rows.
    """
    labels, inv_norms = np.full(len(block), OUTLIER, np.int32), np.ones(len(block))
    nearest, second = np.full(len(block), np.inf), np.full(len(block), np.inf)
    for tile in tiles(block, centers):
        span = slice(int(tile.positions[0]), int(tile.positions[-1]) + 1)
        inv_norms[span] = tile.inv_norms
        if len(centers.raw):
            _label_two(
                tile.products,
                tile.arrays,
                centers.arrays,
                underflow(centers.raw.shape[1]),
                labels[span],
                nearest[span],
                second[span],
            )
    pairs = len(block) * len(centers.raw)
    return Assignment(labels, nearest, second, Pruned({str(DENSE): 1}, pairs, 0, pairs)), inv_norms


@jit()
def _label_two(products, rows, centers, floor, labels, nearest, second):  # type: ignore[no-untyped-def]
    n_rows, k = products.shape
    raw, inv_norms, _, sq_norms = rows
    c_raw, c_inv_norms, _, c_sq_norms, scale, error_factor = centers
    for i in range(n_rows):
        # |c|^2 - 2 y.c ranks centers like the distance. Find the second-smallest of its upper
        # bounds over all centers.
        best = runner_up = np.inf
        for j in range(k):
            error = error_factor * (sq_norms[i] + c_sq_norms[j]) + floor
            upper = c_sq_norms[j] - 2.0 * products[i, j] + error
            if upper < runner_up:
                if upper < best:
                    best, runner_up = upper, best
                else:
                    runner_up = upper
        # Only centers that may be among the two nearest, within rounding, are compared exactly.
        for j in range(k):
            error = error_factor * (sq_norms[i] + c_sq_norms[j]) + floor
            if c_sq_norms[j] - 2.0 * products[i, j] - error > runner_up:
                continue
            sq_dist = exact_sq_distance(raw[i], inv_norms[i], c_raw[j], c_inv_norms[j], scale)
            if sq_dist < nearest[i]:
                second[i], nearest[i], labels[i] = nearest[i], sq_dist, j
            elif sq_dist < second[i]:
                second[i] = sq_dist
