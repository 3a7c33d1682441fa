"""Mixture parameters of the paper's model: weight, mean and sigma of every cluster.

A cluster keeps only its rows inside the radius R, which makes it look narrower and lighter than
the Gaussian it came from. With G_k the chi-squared CDF with k degrees of freedom,

    E |y - mean|^2 given |y - mean| < R  =  p sigma^2 G_{p+2}(R^2/sigma^2) / G_p(R^2/sigma^2)

and a share G_p(R^2/sigma^2) of the Gaussian lies inside. Both effects are undone here. Distances
are in model units, y = (x - shift) * scale; what users read is in input units.
"""

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
    """What one pass over some rows says about k clusters; parts over disjoint rows add up.

    A row of weight w counts like w rows; without sample weights every row weighs 1.

    counts: (k,) rows of each cluster.
    masses: (k,) sum of their weights.
    offsets: (k, p) weighted sum of x - center over them, in input units.
    sq_distances: (k,) weighted sum of their squared distances to the center, in model units.
    input_sq_distances: (k,) the same in input units.
    n_rows: all rows seen, outliers included; total_mass: the sum of their weights.
    """

    counts: NDArray[np.int64]
    masses: NDArray[np.float64]
    offsets: NDArray[np.float64]
    sq_distances: NDArray[np.float64]
    input_sq_distances: NDArray[np.float64]
    n_rows: int
    total_mass: float


def merge_sums(a: ClusterSums, b: ClusterSums) -> ClusterSums:
    """The sums over the rows of both parts."""
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
    """How far each cluster's mean (k, p) lies from its center, in input units; 0 if it is empty."""
    return sums.offsets / np.where(sums.masses > 0.0, sums.masses, 1.0)[:, None]


_SLAB_ROWS = 8192


@dataclass(frozen=True)
class SummedRows:
    """A block's rows with their clusters' sums."""

    labels: NDArray[np.int32]  # (rows,) OUTLIER for rows outside the radius
    sq_distances: NDArray[np.float64]  # (rows,) to their centers; NaN for outliers
    sums: ClusterSums


class _Slab(NamedTuple):
    """Some rows of a block; labels and distances are written."""

    raw: FloatArray  # (rows, p)
    inv_norms: NDArray[np.float64]  # (rows,)
    weights: NDArray[np.float64]  # (rows,)
    labels: NDArray[np.int32]  # (rows,)
    sq_distances: NDArray[np.float64]  # (rows,)


class _Totals(NamedTuple):
    """The arrays of `ClusterSums`, which are added to."""

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
    """Measure the rows of a block (rows, p) from the centers that `labels` give, and add them up.

    `weights` (rows,) says how much each row counts.
    """
    k, p = centers.raw.shape
    weights = np.ones(len(block)) if weights is None else weights
    labels, sq_distances = labels.copy(), np.full(len(block), np.nan)
    totals = _Totals(np.zeros(k, np.int64), np.zeros(k), np.zeros((k, p)), np.zeros(k), np.zeros(k))
    for first in range(0, len(block), _SLAB_ROWS):
        here = slice(first, first + _SLAB_ROWS)
        slab = _Slab(
            native_float(block[here]),
            inv_norms[here],
            weights[here],
            labels[here],
            sq_distances[here],
        )
        # by cluster: its center and its sums are fetched once for all of its rows
        order = np.argsort(slab.labels, kind="stable")
        _add_slab(order, slab, centers.arrays, sq_radius, totals)
    total_mass = float(weights.sum())
    return SummedRows(labels, sq_distances, ClusterSums(*totals, len(block), total_mass))


@jit()
def _add_slab(order, slab, centers, sq_radius, totals):  # type: ignore[no-untyped-def]
    scale = centers.scale
    for i in order:
        k = slab.labels[i]
        if k == OUTLIER:
            continue
        x, inv_norm, weight = slab.raw[i], slab.inv_norms[i], slab.weights[i]
        c, c_inv_norm = centers.raw[k], centers.inv_norms[k]
        if sq_radius < math.inf:
            sq_dist = exact_sq_distance(x, inv_norm, c, c_inv_norm, scale)
            if not sq_dist < sq_radius:
                slab.labels[i] = OUTLIER
                continue
        sq_dist, input_sq_dist = _add_offset(
            x, inv_norm, c, c_inv_norm, scale, weight, totals.offsets[k]
        )
        slab.sq_distances[i] = sq_dist
        totals.counts[k] += 1
        totals.masses[k] += weight
        totals.sq_distances[k] += weight * sq_dist
        totals.input_sq_distances[k] += weight * input_sq_dist


@jit("reassoc", "contract")
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
