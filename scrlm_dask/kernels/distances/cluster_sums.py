"""Mergeable sums per cluster: counts, offsets from the centers and squared distances."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels import OUTLIER
from scrlm_dask.kernels.distances.points import Points, exact_sq_distance
from scrlm_dask.kernels.distances.preprocessing import FloatArray, native_float
from scrlm_dask.kernels.jit import jit


@dataclass(frozen=True)
class ClusterSums:
    """Sums of k clusters over some rows: a mergeable part.

    A row of weight w counts like w rows; without sample weights every row has weight 1.

    counts: (k,) number of rows of each cluster.
    masses: (k,) sum of the weights of the cluster's rows.
    offsets: (k, p) weighted sum of x - center over the cluster's rows, in input units.
    sq_distances: (k,) weighted sum of squared distances to the center, in model units.
    input_sq_distances: (k,) weighted sum of squared distances to the center, in input units.
    n_rows: number of all rows, including outliers.
    total_mass: sum of the weights of all rows, including outliers.
    """

    counts: NDArray[np.int64]
    masses: NDArray[np.float64]
    offsets: NDArray[np.float64]
    sq_distances: NDArray[np.float64]
    input_sq_distances: NDArray[np.float64]
    n_rows: int
    total_mass: float


def merge_sums(a: ClusterSums, b: ClusterSums) -> ClusterSums:
    """Add up the sums of two parts."""
    return ClusterSums(
        counts=a.counts + b.counts,
        masses=a.masses + b.masses,
        offsets=a.offsets + b.offsets,
        sq_distances=a.sq_distances + b.sq_distances,
        input_sq_distances=a.input_sq_distances + b.input_sq_distances,
        n_rows=a.n_rows + b.n_rows,
        total_mass=a.total_mass + b.total_mass,
    )


def cluster_drifts(sums: ClusterSums) -> NDArray[np.float64]:
    """Return the mean minus the center (k, p) of each cluster, in input units; 0 if it is empty."""
    return sums.offsets / np.where(sums.masses > 0.0, sums.masses, 1.0)[:, None]


_SLAB_ROWS = 8192


@dataclass(frozen=True)
class SummedRows:
    """Labels and distances of the rows of a block, and the sums per cluster."""

    labels: NDArray[np.int32]  # (rows,) OUTLIER for rows outside the radius
    sq_distances: NDArray[np.float64]  # (rows,) to their centers; NaN for outliers
    sums: ClusterSums


class _Slab(NamedTuple):
    """Some rows of a block; `labels` and `sq_distances` are updated in place."""

    raw: FloatArray  # (rows, p)
    inv_norms: NDArray[np.float64]  # (rows,)
    weights: NDArray[np.float64]  # (rows,)
    labels: NDArray[np.int32]  # (rows,)
    sq_distances: NDArray[np.float64]  # (rows,)


class _Totals(NamedTuple):
    """The arrays of `ClusterSums`, updated in place."""

    counts: NDArray[np.int64]
    masses: NDArray[np.float64]
    offsets: NDArray[np.float64]
    sq_distances: NDArray[np.float64]
    input_sq_distances: NDArray[np.float64]


def sum_rows(
    block: NDArray[Any],
    labels: NDArray[np.int32],
    inv_norms: NDArray[np.float64],
    centers: Points,
    sq_radius: float,
    weights: NDArray[np.float64] | None = None,
) -> SummedRows:
    """Compute the distance of each row of a block (rows, p) to its labelled center; sum by cluster.

    Rows outside the radius become outliers. `weights` (rows,) are the sample weights.
    """
    k, p = centers.raw.shape
    weights = np.ones(len(block)) if weights is None else weights
    labels, sq_distances = labels.copy(), np.full(len(block), np.nan)
    totals = _Totals(np.zeros(k, np.int64), np.zeros(k), np.zeros((k, p)), np.zeros(k), np.zeros(k))
    for first in range(0, len(block), _SLAB_ROWS):
        span = slice(first, first + _SLAB_ROWS)
        slab = _Slab(
            native_float(block[span]),
            inv_norms[span],
            weights[span],
            labels[span],
            sq_distances[span],
        )
        # Rows are sorted by cluster, so that the center and the sums of a cluster stay in cache.
        order = np.argsort(slab.labels, kind="stable")
        _add_slab(order, slab, centers.arrays, sq_radius, totals)
    total_mass = float(weights.sum())
    return SummedRows(labels, sq_distances, ClusterSums(*totals, len(block), total_mass))


@jit()
def _add_slab(order, slab, centers, sq_radius, totals):  # type: ignore[no-untyped-def]
    raw, inv_norms, weights, labels, sq_distances = slab
    c_raw, c_inv_norms, _, _, scale, _ = centers
    counts, masses, offsets, sq_sums, input_sq_sums = totals
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


@jit("reassoc", "contract")
def _add_offset(x, x_inv_norm, c, c_inv_norm, scale, weight, offset):  # type: ignore[no-untyped-def]
    """Add a row's weighted difference from its center to `offset` (p,).

    Returns the squared difference in model units and in input units.
    """
    total = input_total = 0.0
    for j in range(x.shape[0]):
        d = x[j] * x_inv_norm - c[j] * c_inv_norm
        offset[j] += weight * d
        input_total += d * d
        scaled = d * scale[j]
        total += scaled * scaled
    return total, input_total
