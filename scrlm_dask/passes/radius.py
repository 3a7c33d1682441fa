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
    """Return a radius > 0 outside which this share of the distances is, or less with ties."""
    ascending = np.sort(sq_distances)
    n_outside = min(round(share * len(ascending)), len(ascending) - 1)
    last, first = ascending[-n_outside - 1], ascending[-n_outside] if n_outside else math.inf
    if last < first < math.inf:
        return math.sqrt(0.5 * (last + first))
    if last > 0.0:  # equal distances stay inside
        return math.sqrt(last) * _BEYOND
    outside = ascending[ascending > 0.0]
    return math.sqrt(0.5 * outside[0]) if len(outside) else 1.0


def _distances_part(
    block: NDArray[Any], start: int, centers: Points, rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    some = block[rows_within(rows, start, start + len(block)) - start]
    return measure_rows(some, nearest_centers(some, centers), centers)


def _merge(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.concatenate([a, b])


_RADIUS = Pass("radius", _distances_part, _merge)
