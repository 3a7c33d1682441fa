"""The radius of a given share of outliers, from the distances of sampled rows to the centers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.engine.execution import Execution, Pass, blocks_with_rows, task
from scrlm_dask.engine.features import Features
from scrlm_dask.kernels.distances.nearest_center import measure_rows, nearest_centers
from scrlm_dask.kernels.distances.points import Points
from scrlm_dask.kernels.randomness.sampling import rows_within

_BEYOND = 1.0 + 1e-6  # the radius is larger than the largest distance by this factor


def distances_pass(
    execution: Execution,
    features: Features,
    centers: Delayed,
    rows: NDArray[np.int64],
    n_clusters: int,
) -> NDArray[np.float64]:
    """Return the squared distance (n,) of each of the given rows to its nearest center."""
    features = features.in_blocks_for(n_clusters)
    blocks = blocks_with_rows(rows, features.block_rows)
    broadcast = {"centers": centers, "rows": task("radius-rows", np.array, rows)}
    sq_distances: NDArray[np.float64] = execution.run(_RADIUS, features, broadcast, blocks=blocks)
    return sq_distances


def radius_of_share(sq_distances: NDArray[np.float64], share: float) -> float:
    """Return the radius outside which this share of the distances is."""
    ascending = np.sort(sq_distances)
    n_outside = round(share * len(ascending))
    if n_outside == 0:
        return math.sqrt(ascending[-1]) * _BEYOND
    if n_outside == len(ascending):
        n_outside -= 1
    first = len(ascending) - n_outside
    return math.sqrt(0.5 * (ascending[first - 1] + ascending[first]))


def _distances_part(
    block: NDArray[Any], start: int, centers: Points, rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    some = block[rows_within(rows, start, start + len(block)) - start]
    return measure_rows(some, nearest_centers(some, centers), centers)


def _merge(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([a, b])


_RADIUS = Pass("radius", _distances_part, _merge)
