"""How far centers lie from each other: a row near enough to one cannot be nearer to another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels.points import LARGEST_SQ_NORM, Points, underflow

MOST_CENTERS = 4096  # more are rarely worth all distances between them
_ROWS = 128


def half_gaps(centers: Points) -> NDArray[np.float64] | None:
    """Half the distance (k,) of each center to the next one, or a little less.

    By the triangle inequality a row closer than that to a center is farther from every other. None
    where there are too many centers, or some too large for float32.
    """
    k, p = centers.mapped.shape
    if k > MOST_CENTERS or not centers.sq_norms.max(initial=0.0) < LARGEST_SQ_NORM:
        return None
    least = np.empty(k)
    for start in range(0, k, _ROWS):
        here = slice(start, min(start + _ROWS, k))
        products = (centers.mapped[here] @ centers.mapped.T).astype(np.float64)
        sq_sums = centers.sq_norms[here, None] + centers.sq_norms
        sq_distances = (1.0 - centers.error_factor) * sq_sums - 2.0 * products
        sq_distances[np.arange(here.stop - start), np.arange(start, here.stop)] = np.inf
        least[here] = sq_distances.min(axis=1, initial=np.inf)
    return np.asarray(0.5 * np.sqrt(np.maximum(least - underflow(p), 0.0)))
