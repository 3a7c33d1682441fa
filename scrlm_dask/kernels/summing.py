"""Sums of a block's rows by cluster, from which means and deviations come."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels import OUTLIER
from scrlm_dask.kernels.compiled import compiled
from scrlm_dask.kernels.mixture import ClusterSums
from scrlm_dask.kernels.points import Points, exact_sq_distance
from scrlm_dask.kernels.preprocessing import native_float

_SLAB_ROWS = 8192


@dataclass(frozen=True)
class SummedRows:
    """A block's rows with their clusters' sums."""

    labels: NDArray[np.int32]  # (rows,) OUTLIER for rows outside the radius
    sq_distances: NDArray[np.float64]  # (rows,) to their centers; NaN for outliers
    sums: ClusterSums


def sum_rows(
    block: NDArray[Any],
    labels: NDArray[np.int32],
    inv_norms: NDArray[np.float64],
    centers: Points,
    sq_radius: float,
    weights: NDArray[np.float64] | None = None,
) -> SummedRows:
    """Measure the rows of a block (rows, p) from the centers that `labels` give, and add them up.

    `weights` (rows,) says how much each row counts.
    """
    k, p = centers.raw.shape
    weights = np.ones(len(block)) if weights is None else weights
    labels, sq_distances = labels.copy(), np.full(len(block), np.nan)
    counts, masses, offsets = np.zeros(k, np.int64), np.zeros(k), np.zeros((k, p))
    sq_sums, input_sq_sums = np.zeros(k), np.zeros(k)
    for first in range(0, len(block), _SLAB_ROWS):
        here = slice(first, first + _SLAB_ROWS)
        _add_slab(
            # by cluster: its center and its sums are fetched once for all of its rows
            np.argsort(labels[here], kind="stable"),
            native_float(block[here]),
            inv_norms[here],
            weights[here],
            centers.raw,
            centers.inv_norms,
            centers.scale,
            sq_radius,
            labels[here],
            sq_distances[here],
            counts,
            masses,
            offsets,
            sq_sums,
            input_sq_sums,
        )
    total_mass = float(weights.sum())
    sums = ClusterSums(counts, masses, offsets, sq_sums, input_sq_sums, len(block), total_mass)
    return SummedRows(labels, sq_distances, sums)


@compiled()
def _add_slab(  # type: ignore[no-untyped-def]
    order,
    raw,
    inv_norms,
    weights,
    c_raw,
    c_inv_norms,
    scale,
    sq_radius,
    labels,
    sq_distances,
    counts,
    masses,
    offsets,
    sq_sums,
    input_sq_sums,
):
    for i in order:
        k = labels[i]
        if k == OUTLIER:
            continue
        x, c = raw[i], c_raw[k]
        if sq_radius < math.inf:
            sq_dist = exact_sq_distance(x, inv_norms[i], c, c_inv_norms[k], scale)
            if not sq_dist < sq_radius:
                labels[i] = OUTLIER
                continue
        sq_distances[i], input_sq_distance = _add_offset(
            x, inv_norms[i], c, c_inv_norms[k], scale, weights[i], offsets[k]
        )
        counts[k] += 1
        masses[k] += weights[i]
        sq_sums[k] += weights[i] * sq_distances[i]
        input_sq_sums[k] += weights[i] * input_sq_distance


@compiled("reassoc", "contract")
def _add_offset(x, x_inv_norm, c, c_inv_norm, scale, weight, offset):  # type: ignore[no-untyped-def]
    """Add a row's weighted difference from its center; returns its squares, in model and input
    units.
    """
    total = input_total = 0.0
    for j in range(x.shape[0]):
        d = x[j] * x_inv_norm - c[j] * c_inv_norm
        offset[j] += weight * d
        input_total += d * d
        scaled = d * scale[j]
        total += scaled * scaled
    return total, input_total
