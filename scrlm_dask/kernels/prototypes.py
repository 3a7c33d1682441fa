"""The rows that stand for a cluster: those nearest to its center. Mergeable."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels import OUTLIER


@dataclass(frozen=True)
class Prototypes:
    """Rows sorted by cluster, then by distance, then by number; at most so many a cluster."""

    clusters: NDArray[np.int32]
    distances: NDArray[np.float32]
    rows: NDArray[np.int64]

    def of(self, cluster: int) -> NDArray[np.int64]:
        """Numbers of the cluster's rows, the nearest first."""
        return self.rows[slice(*np.searchsorted(self.clusters, [cluster, cluster + 1]))]


def prototypes(
    labels: NDArray[np.int32], distances: NDArray[np.float32], rows: NDArray[np.int64], most: int
) -> Prototypes:
    """The `most` rows nearest to each center among those given; outliers stand for nothing."""
    inside = labels != OUTLIER
    return _nearest(labels[inside], distances[inside], rows[inside], most)


def merge_prototypes(a: Prototypes, b: Prototypes, most: int) -> Prototypes:
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
    first = np.searchsorted(sorted_clusters, sorted_clusters)  # of its cluster
    order = order[np.arange(len(order)) - first < most]
    return Prototypes(clusters[order], distances[order], rows[order])
