"""The robust loss of candidates: step 4 of Algorithm 1, the one heavy computation.

L(c) = sum over rows x of min(|x - c|^2 / (p rho^2) - F, 0), the candidate's own row left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels.compiled import compiled
from scrlm_dask.kernels.points import (
    UNIT_ROUNDOFF,
    Points,
    exact_sq_distance,
    squared_radius,
    tiles,
)

# One float32 rounding of a pair's norms may be this share of R^2; beyond it the pair is computed
# anew in float64: clusters tiny against their distance from each other would be lost in float32.
_MAX_RELATIVE_ROUNDING = 3e-6


@dataclass(frozen=True)
class LossPart:
    """Losses and neighbour counts of n candidates over some rows: a mergeable part."""

    losses: NDArray[np.float64]  # (n,)
    neighbors: NDArray[np.int64]  # (n,) other rows closer than the radius


def loss_part(
    block: NDArray[Any],
    row_numbers: NDArray[np.int64],
    candidates: Points,
    candidate_rows: NDArray[np.int64],
    rho: float,
    F: float,
) -> LossPart:
    """Loss of every candidate over a block (rows, p) whose rows are numbered `row_numbers`.

    A row never counts for the candidate that it is itself: it is left out by its number, since in
    float32 its distance to itself need not be 0.
    """
    n, p = candidates.raw.shape
    losses, neighbors = np.zeros(n), np.zeros(n, np.int64)
    for tile in tiles(block, candidates):
        _accumulate(
            tile.products,
            tile.raw,
            tile.inv_norms,
            tile.sq_norms,
            row_numbers[tile.start : tile.stop],
            candidates.raw,
            candidates.inv_norms,
            candidates.sq_norms,
            candidate_rows,
            candidates.scale,
            candidates.error_factor,
            squared_radius(rho, F, p),
            F,
            losses,
            neighbors,
        )
    return LossPart(losses, neighbors)


def merge_losses(a: LossPart, b: LossPart) -> LossPart:
    return LossPart(a.losses + b.losses, a.neighbors + b.neighbors)


@compiled()
def _accumulate(  # type: ignore[no-untyped-def]
    products,
    raw,
    inv_norms,
    sq_norms,
    row_numbers,
    c_raw,
    c_inv_norms,
    c_sq_norms,
    c_rows,
    scale,
    error_factor,
    sq_radius,
    F,
    losses,
    neighbors,
):
    rows, n = products.shape
    # |y|^2 + |c|^2 - 2 y.c - error < R^2, solved for y.c: one comparison settles most pairs
    half = (0.5 * (1.0 - error_factor) * c_sq_norms).astype(np.float32)
    # a byte a candidate, looked through eight at a time: nearly all of them are 0
    maybe = np.zeros(-(-n // 8) * 8, np.uint8)
    eights = maybe.view(np.uint64)
    for i in range(rows):
        bound = np.float32(0.5 * ((1.0 - error_factor) * sq_norms[i] - sq_radius))
        for j in range(n):
            maybe[j] = products[i, j] > bound + half[j]
        for eight in range(len(eights)):
            if eights[eight] == 0:
                continue
            for j in range(8 * eight, 8 * eight + 8):
                if maybe[j] == 0 or c_rows[j] == row_numbers[i]:
                    continue
                sq_sum = sq_norms[i] + c_sq_norms[j]
                sq_dist = max(0.0, sq_sum - 2.0 * products[i, j])
                on_edge = abs(sq_dist - sq_radius) <= error_factor * sq_sum
                if on_edge or UNIT_ROUNDOFF * sq_sum > _MAX_RELATIVE_ROUNDING * sq_radius:
                    sq_dist = exact_sq_distance(
                        raw[i], inv_norms[i], c_raw[j], c_inv_norms[j], scale
                    )
                if sq_dist < sq_radius:
                    # float64: a sum of 1e9 float32 terms loses the gap between clusters
                    losses[j] += F * (sq_dist / sq_radius - 1.0)
                    neighbors[j] += 1
