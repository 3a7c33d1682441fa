"""Residual extraction: each center is the candidate that serves the rows not yet covered best.

The paper's extraction never takes losses anew, and spends centers on the densest region again and
again. Here rows inside the radius of a center stop counting.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels.compiled import compiled
from scrlm_dask.kernels.extraction import Extraction


def extract_residual(
    sq_distances: NDArray[np.float32],
    sq_radius: float,
    F: float,
    max_clusters: int,
    min_neighbors: int,
) -> Extraction:
    """Pick among n candidates by their squared distances (n, rows) to the rows of a sample.

    The first n rows are the candidates themselves, and none counts for itself. A loss and the
    neighbours are those over the rows that were not covered when the candidate was picked; it
    stops where no candidate has `min_neighbors` of them. Ties go to the first candidate.
    """
    picks, gains, neighbors = _extract(sq_distances, sq_radius, max_clusters, min_neighbors)
    return Extraction(picks, -F * gains, neighbors)


@compiled()
def _extract(sq_distances, sq_radius, most, min_neighbors):  # type: ignore[no-untyped-def]
    n, rows = sq_distances.shape
    open_rows = np.ones(rows, np.bool_)
    gains, counts = np.empty(n), np.empty(n, np.int64)
    for j in range(n):
        gains[j], counts[j] = _gain(sq_distances[j], sq_radius, open_rows, j)
    seen = np.zeros(n, np.int64)  # number of picks when the gain was taken
    most = min(most, n)
    picks, found = np.empty(most, np.int64), np.empty(most)
    neighbors = np.empty(most, np.int64)
    m = 0
    while m < most:
        # gains only fall as rows are covered: the largest old one that still is when taken anew
        # is the largest of all
        j = int(np.argmax(gains))
        if gains[j] < 0.0:
            break
        if seen[j] < m:
            gains[j], counts[j] = _gain(sq_distances[j], sq_radius, open_rows, j)
            seen[j] = m
        elif counts[j] < min_neighbors:
            gains[j] = -1.0  # and never more
        else:
            picks[m], found[m], neighbors[m] = j, gains[j], counts[j]
            for i in range(rows):
                if sq_distances[j, i] < sq_radius:
                    open_rows[i] = False
            gains[j] = -1.0
            m += 1
    return picks[:m], found[:m], neighbors[:m]


@compiled()
def _gain(sq_distances, sq_radius, open_rows, own):  # type: ignore[no-untyped-def]
    """Sum over open rows inside the radius, but its own, of 1 - d^2 / R^2, and their number."""
    total, count = 0.0, 0
    for i in range(len(sq_distances)):
        if open_rows[i] and i != own and sq_distances[i] < sq_radius:
            total += 1.0 - sq_distances[i] / sq_radius
            count += 1
    return total, count
