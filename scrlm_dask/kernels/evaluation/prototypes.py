"""Closest pairs of centers, and the rows nearest to each center."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels import OUTLIER

_TILE = 512


@dataclass(frozen=True)
class Pairs:
    """Pairs of points, given by their positions (first < second), sorted by ascending distance."""

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    distances: NDArray[np.float64]


def nearest_pairs(points: NDArray[np.float64], most: int) -> Pairs:
    """Return up to `most` pairs of points (k, p), the closest pairs.

    Time is O(k^2 p). Distances are computed tile by tile, without a k x k matrix.
    """
    centered = points - points.mean(axis=0)
    sq_norms = np.square(centered).sum(axis=1)
    closest = np.empty((0, 2), np.int64), np.empty(0)
    for a in range(0, len(points), _TILE):
        for b in range(a, len(points), _TILE):
            closest = _merge_pairs(closest, _tile(centered, sq_norms, a, b), most)
    pairs = closest[0]
    # Products lose digits if points are close, so reported distances come from differences.
    distances = np.linalg.norm(points[pairs[:, 0]] - points[pairs[:, 1]], axis=1)
    order = np.lexsort((pairs[:, 1], pairs[:, 0], distances))
    return Pairs(pairs[order, 0], pairs[order, 1], distances[order])


_PairDistances = tuple[NDArray[np.int64], NDArray[np.float64]]


def _tile(
    points: NDArray[np.float64], sq_norms: NDArray[np.float64], a: int, b: int
) -> _PairDistances:
    rows, columns = slice(a, a + _TILE), slice(b, b + _TILE)
    products = points[rows] @ points[columns].T
    sq_distances = sq_norms[rows, None] + sq_norms[None, columns] - 2.0 * products
    first, second = np.indices(sq_distances.shape)
    pairs = np.stack([first.ravel() + a, second.ravel() + b], axis=1)
    above = pairs[:, 0] < pairs[:, 1]
    return pairs[above], sq_distances.ravel()[above]


def _merge_pairs(a: _PairDistances, b: _PairDistances, most: int) -> _PairDistances:
    pairs = np.concatenate([a[0], b[0]])
    sq_distances = np.concatenate([a[1], b[1]])
    if len(pairs) > most:
        kept = np.argpartition(sq_distances, most - 1)[:most]
        pairs, sq_distances = pairs[kept], sq_distances[kept]
    return pairs, sq_distances


@dataclass(frozen=True)
class Prototypes:
    """The rows nearest to each center, sorted by cluster, then by distance, then by row number."""

    clusters: NDArray[np.int32]
    distances: NDArray[np.float32]
    rows: NDArray[np.int64]

    def of(self, cluster: int) -> NDArray[np.int64]:
        """Return the row numbers of a cluster's prototypes, the nearest row first."""
        return self.rows[slice(*np.searchsorted(self.clusters, [cluster, cluster + 1]))]


def prototypes(
    labels: NDArray[np.int32], distances: NDArray[np.float32], rows: NDArray[np.int64], most: int
) -> Prototypes:
    """Return up to `most` rows per cluster, the rows nearest to its center.

    For each row of a block, `labels` has its cluster, `distances` its distance to the center, and
    `rows` its row number; all are (n,). Outliers are ignored.
    """
    inside = labels != OUTLIER
    return _nearest(labels[inside], distances[inside], rows[inside], most)


def merge_prototypes(a: Prototypes, b: Prototypes, most: int) -> Prototypes:
    """Merge two parts: keep up to `most` rows per cluster, the rows nearest to its center."""
    return _nearest(
        np.concatenate([a.clusters, b.clusters]),
        np.concatenate([a.distances, b.distances]),
        np.concatenate([a.rows, b.rows]),
        most,
    )


def _nearest(
    clusters: NDArray[np.int32], distances: NDArray[np.float32], rows: NDArray[np.int64], most: int
) -> Prototypes:
    order = np.lexsort((rows, distances, clusters))
    sorted_clusters = clusters[order]
    first = np.searchsorted(
        sorted_clusters, sorted_clusters
    )  # position of the first row of the cluster
    order = order[np.arange(len(order)) - first < most]
    return Prototypes(clusters[order], distances[order], rows[order])
