"""k-means|| (Bahmani et al.): many starting points in few passes, thinned out afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels.nearest import measure_rows, nearest_centers
from scrlm_dask.kernels.points import Points
from scrlm_dask.kernels.preprocessing import FloatArray, native_float

ROUNDS = 3
OVERSAMPLING = 2  # l / k: points drawn in a round, on average, for each cluster asked for


@dataclass(frozen=True)
class Served:
    """How well each row of a block is served by the points drawn so far."""

    sq_distances: NDArray[np.float64]  # (rows,) to the nearest one
    nearest: NDArray[np.int64]  # (rows,) which one it is


@dataclass(frozen=True)
class DrawnRows:
    """Rows drawn as points: a mergeable part."""

    numbers: NDArray[np.int64]  # (m,) rising
    raw: FloatArray  # (m, p)


def serve(block: NDArray[Any], points: Points, first: int, before: Served | None) -> Served:
    """Account for new points, numbered from `first` on; those drawn earlier win ties."""
    found = nearest_centers(block, points)
    sq_distances = measure_rows(block, found, points)
    nearest = first + found.labels.astype(np.int64)
    if before is None:
        return Served(sq_distances, nearest)
    closer = sq_distances < before.sq_distances
    return Served(
        np.where(closer, sq_distances, before.sq_distances),
        np.where(closer, nearest, before.nearest),
    )


def draw_rows(
    block: NDArray[Any],
    start: int,
    uniforms: NDArray[np.float64],
    masses: NDArray[np.float64],
    mean_draws: float,
    potential: float,
) -> DrawnRows:
    """Draw each row by itself, with a chance in proportion to its mass times squared distance.

    `masses` (rows,) are those products, `potential` their sum over all rows.
    """
    drawn = np.flatnonzero(uniforms * potential < mean_draws * masses)
    return DrawnRows(start + drawn, native_float(block[drawn]))


def merge_drawn(a: DrawnRows, b: DrawnRows) -> DrawnRows:
    return DrawnRows(np.concatenate([a.numbers, b.numbers]), np.concatenate([a.raw, b.raw]))
