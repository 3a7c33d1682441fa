"""Nearest center of each row, or outlier: steps 14 to 21 of Algorithm 1."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels import OUTLIER
from scrlm_dask.kernels.compiled import compiled
from scrlm_dask.kernels.mixture import ClusterSums
from scrlm_dask.kernels.points import Points, Tile, exact_sq_distance, tiles


@dataclass(frozen=True)
class Assignment:
    """Where each row of a block belongs; distances in the model's space."""

    labels: NDArray[np.int32]  # (rows,) OUTLIER if no center is closer than the radius
    sq_distances: NDArray[np.float64]  # (rows,) to the nearest center; inf if there is none
    second_sq_distances: NDArray[np.float64]  # (rows,) to the second-nearest; inf if there is none

    @property
    def distances(self) -> NDArray[np.float32]:
        return np.sqrt(self.sq_distances).astype(np.float32)

    @property
    def margins(self) -> NDArray[np.float32]:
        """How much farther the second-nearest center is: small where the label is a close call."""
        second = np.sqrt(self.second_sq_distances)
        nearest = np.where(np.isfinite(self.sq_distances), np.sqrt(self.sq_distances), 0.0)
        return (second - nearest).astype(np.float32)


@dataclass(frozen=True)
class SummedAssignment:
    """An assignment and what the mixture's parameters need of its rows."""

    assignment: Assignment
    sums: ClusterSums


def assign_rows(block: NDArray[Any], centers: Points, sq_radius: float) -> Assignment:
    """Label each row of a block (rows, p) with its nearest center (k, p), ties to the first."""
    return _join([part for _, part in _assign_tiles(block, centers, sq_radius)])


def assign_and_sum(
    block: NDArray[Any],
    centers: Points,
    sq_radius: float,
    weights: NDArray[np.float64] | None = None,
) -> SummedAssignment:
    """`assign_rows`, and each cluster's sums while its rows are still in cache.

    `weights` (rows,) says how much each row counts in the sums.
    """
    sums = RunningSums(centers, len(block), weights)
    parts = []
    for tile, part in _assign_tiles(block, centers, sq_radius):
        sums.add(tile, part.labels, part.sq_distances)
        parts.append(part)
    return SummedAssignment(_join(parts), sums.finish())


class RunningSums:
    """The clusters' sums of a block as its tiles go by."""

    def __init__(
        self, centers: Points, n_rows: int, weights: NDArray[np.float64] | None = None
    ) -> None:
        k, p = centers.raw.shape
        self._centers = centers
        self.weights = np.ones(n_rows) if weights is None else weights
        self._counts, self._masses = np.zeros(k, np.int64), np.zeros(k)
        self._offsets = np.zeros((k, p))
        self._sq_distances, self._input_sq_distances = np.zeros(k), np.zeros(k)

    def add(self, tile: Tile, labels: NDArray[np.int32], sq_distances: NDArray[np.float64]) -> None:
        _add_rows(
            tile.raw,
            tile.inv_norms,
            self.weights[tile.start : tile.stop],
            labels,
            sq_distances,
            self._centers.raw,
            self._centers.inv_norms,
            *self.arrays,
        )

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """What a kernel adds rows to: counts, masses, offsets and both sums of squares."""
        return (
            self._counts,
            self._masses,
            self._offsets,
            self._sq_distances,
            self._input_sq_distances,
        )

    def finish(self) -> ClusterSums:
        return ClusterSums(
            self._counts,
            self._masses,
            self._offsets,
            self._sq_distances,
            self._input_sq_distances,
            len(self.weights),
            float(self.weights.sum()),
        )


def _assign_tiles(
    block: NDArray[Any], centers: Points, sq_radius: float
) -> Iterator[tuple[Tile, Assignment]]:
    for tile in tiles(block, centers):
        rows = len(tile.raw)
        labels = np.full(rows, OUTLIER, np.int32)
        nearest, second = np.full(rows, np.inf), np.full(rows, np.inf)
        if len(centers.raw):
            _nearest_two(
                tile.products,
                tile.raw,
                tile.inv_norms,
                tile.sq_norms,
                centers.raw,
                centers.inv_norms,
                centers.sq_norms,
                centers.scale,
                centers.error_factor,
                labels,
                nearest,
                second,
            )
        labels[~(nearest < sq_radius)] = OUTLIER
        yield tile, Assignment(labels, nearest, second)


def _join(parts: list[Assignment]) -> Assignment:
    if not parts:
        return Assignment(np.empty(0, np.int32), np.empty(0), np.empty(0))
    return Assignment(
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.sq_distances for part in parts]),
        np.concatenate([part.second_sq_distances for part in parts]),
    )


@compiled()
def _nearest_two(  # type: ignore[no-untyped-def]
    products,
    raw,
    inv_norms,
    sq_norms,
    c_raw,
    c_inv_norms,
    c_sq_norms,
    scale,
    error_factor,
    labels,
    nearest,
    second,
):
    rows, k = products.shape
    for i in range(rows):
        # |c|^2 - 2 y.c ranks centers like the distance: its second least upper bound
        best = runner_up = np.inf
        for j in range(k):
            error = error_factor * (sq_norms[i] + c_sq_norms[j])
            upper = c_sq_norms[j] - 2.0 * products[i, j] + error
            if upper < runner_up:
                if upper < best:
                    best, runner_up = upper, best
                else:
                    runner_up = upper
        # whatever rounding could put among the first two is measured exactly
        for j in range(k):
            error = error_factor * (sq_norms[i] + c_sq_norms[j])
            if c_sq_norms[j] - 2.0 * products[i, j] - error > runner_up:
                continue
            sq_dist = exact_sq_distance(raw[i], inv_norms[i], c_raw[j], c_inv_norms[j], scale)
            if sq_dist < nearest[i]:
                second[i], nearest[i], labels[i] = nearest[i], sq_dist, j
            elif sq_dist < second[i]:
                second[i] = sq_dist


@compiled()
def _add_rows(  # type: ignore[no-untyped-def]
    raw,
    inv_norms,
    weights,
    labels,
    row_sq_distances,
    c_raw,
    c_inv_norms,
    counts,
    masses,
    offsets,
    sq_distances,
    input_sq_distances,
):
    for i in range(len(labels)):
        k = labels[i]
        if k < 0:
            continue
        counts[k] += 1
        masses[k] += weights[i]
        sq_distances[k] += weights[i] * row_sq_distances[i]
        input_sq_distances[k] += weights[i] * add_offset(
            raw[i], inv_norms[i], c_raw[k], c_inv_norms[k], weights[i], offsets[k]
        )


@compiled("reassoc", "contract")
def add_offset(x, x_inv_norm, c, c_inv_norm, weight, offset):  # type: ignore[no-untyped-def]
    """Add a row's weighted difference from its center; returns its square, in input units."""
    total = 0.0
    for j in range(x.shape[0]):
        d = x[j] * x_inv_norm - c[j] * c_inv_norm
        offset[j] += weight * d
        total += d * d
    return total
