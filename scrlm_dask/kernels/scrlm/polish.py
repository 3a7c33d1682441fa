"""Polishing: move each center to the mean of all rows inside its radius.

The robust loss is a sum of paraboloids truncated at the radius, so this step never increases the
loss of a center. Rows outside the radius have no influence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels.distances.points import Points, exact_sq_distance, inverse_norms, tiles
from scrlm_dask.kernels.jit import jit


@dataclass(frozen=True)
class PolishPart:
    """Sums over the rows inside each center's radius: a mergeable part.

    A row inside several radii counts for each of these centers.
    """

    counts: NDArray[np.int64]  # (k,) number of rows
    offsets: NDArray[np.float64]  # (k, p) sum of x - center, in input units


def polish_part(block: NDArray[Any], centers: Points, sq_radius: float) -> PolishPart:
    """Sum the rows of a block (rows, p) inside the radius of each center."""
    k, p = centers.raw.shape
    counts, offsets = np.zeros(k, np.int64), np.zeros((k, p))
    for tile in tiles(block, centers):
        _add_inside(tile.products, tile.arrays, centers.arrays, sq_radius, counts, offsets)
    return PolishPart(counts, offsets)


def merge_polish(a: PolishPart, b: PolishPart) -> PolishPart:
    """Add up the sums of two parts."""
    return PolishPart(a.counts + b.counts, a.offsets + b.offsets)


def polish_centers(
    centers: NDArray[Any], part: PolishPart, unit_length: bool
) -> NDArray[np.float64]:
    """Return centers (k, p), in input units, moved to the mean of the rows inside their radius."""
    raw = centers.astype(np.float64)
    start = raw * inverse_norms(raw, unit_length)[:, None]
    moved = start + part.offsets / np.maximum(part.counts, 1)[:, None]
    return np.asarray(moved * inverse_norms(moved, unit_length)[:, None])


@jit("reassoc", "contract")
def _add_inside(products, rows, centers, sq_radius, counts, offsets):  # type: ignore[no-untyped-def]
    n_rows, k = products.shape
    raw, inv_norms, _, sq_norms = rows
    c_raw, c_inv_norms, _, c_sq_norms, scale, error_factor = centers
    for i in range(n_rows):
        for j in range(k):
            sq_sum = sq_norms[i] + c_sq_norms[j]
            sq_dist = sq_sum - 2.0 * products[i, j]
            if sq_dist > sq_radius + error_factor * sq_sum:
                continue
            if abs(sq_dist - sq_radius) <= error_factor * sq_sum:
                sq_dist = exact_sq_distance(raw[i], inv_norms[i], c_raw[j], c_inv_norms[j], scale)
            if not sq_dist < sq_radius:
                continue
            counts[j] += 1
            for f in range(raw.shape[1]):
                offsets[j, f] += raw[i, f] * inv_norms[i] - c_raw[j, f] * c_inv_norms[j]
