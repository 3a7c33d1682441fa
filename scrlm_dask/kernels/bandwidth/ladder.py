"""Trial bandwidths on a sample: the clusters at each bandwidth, from the same distances."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels import OUTLIER
from scrlm_dask.kernels.distances.points import Points, sq_distance
from scrlm_dask.kernels.distances.pruning import Pruned
from scrlm_dask.kernels.jit import jit
from scrlm_dask.kernels.scrlm.extraction import loss_order
from scrlm_dask.kernels.scrlm.loss import Losses, LossPart, losses_of

_BATCH = 256
# A squared distance below this share of the sum of both squared norms is too inaccurate if it comes
# from a float32 product, and is computed from differences instead.
_CLOSE = 1e-3
_STEP, _LEAST_TRIALS, _MOST_TRIALS = 1.07, 8, 64
_NEAREST_QUANTILE, _WIDEST_QUANTILE = 0.02, 0.6
_MANY_DUPLICATES, _TRIALS_BELOW = 0.5, 16
_SAMPLED_DISTANCES = 4_000_000  # distances that determine the largest trial radius
# Shares of R^2. A row whose squared distance is between them is at the boundary: with a slightly
# different radius it would be on the other side.
BOUNDARY = (0.8, 1.25)


@dataclass(frozen=True)
class BandwidthTrial:
    """Result of SCRLM on the sample with one bandwidth.

    Attributes
    ----------
    rho : float
        The bandwidth.
    clusters : int
        Clusters found.
    coverage : float
        Share of rows inside the radius of a center.
    boundary_share : float
        Number of rows whose squared distance to a center is between 0.8 R^2 and 1.25 R^2, divided
        by the number of rows inside the radius.
    neighbors : tuple of float
        Quantiles 0.1, 0.5 and 0.9 of the number of neighbors of a candidate.
    held_out : float or None
        Mean squared distance of held-out rows to their nearest center, after the centers are merged
        to the requested number; None if they are not merged.
    merged : int or None
        Number of centers after merging.
    cluster_rows : float
        Mean number of rows inside the radius per cluster.
    """

    rho: float
    clusters: int
    coverage: float
    boundary_share: float = field(metadata={"json": "shell"})
    neighbors: tuple[float, float, float]
    held_out: float | None = None
    merged: int | None = None
    cluster_rows: float = 1e9  # not stored by earlier versions

    @property
    def shell(self) -> float:
        """Alias of `boundary_share`: its name in records and in earlier versions."""
        return self.boundary_share

    def record(self) -> dict[str, Any]:
        """Return the fields as a dictionary, with the names that records use."""
        return {
            each.metadata.get("json", each.name): getattr(self, each.name) for each in fields(self)
        }


@dataclass(frozen=True)
class TrialClusters:
    """Centers picked on the sample with one bandwidth, and the labels of the sample's rows."""

    picks: NDArray[np.int64]  # (m,) positions of the picked candidates
    labels: NDArray[np.int32]  # (rows,) OUTLIER outside every radius
    boundary_share: float


def pair_sq_distances(sample: Points, n_candidates: int) -> NDArray[np.float32]:
    """Return squared distances of the first `n_candidates` points of a sample to all points."""
    sq_distances = np.empty((n_candidates, len(sample.mapped)), np.float32)
    for start in range(0, n_candidates, _BATCH):
        some = slice(start, min(start + _BATCH, n_candidates))
        np.matmul(sample.mapped[some], sample.mapped.T, out=sq_distances[some])
        _products_to_distances(sq_distances[some], start, sample.mapped, sample.sq_norms)
    return sq_distances


def make_ladder(sq_distances: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the squared trial radii, ascending, for distances from `pair_sq_distances`.

    Inside the smallest radius almost no row has a neighbor; inside the largest, most rows are
    neighbors. The result is empty if no two rows differ.
    """
    n = len(sq_distances)
    nearest = np.array([_nearest(sq_distances[j], j) for j in range(n)])
    apart = nearest[(nearest > 0.0) & np.isfinite(nearest)]
    stride = max(1, sq_distances.size // _SAMPLED_DISTANCES)
    some = sq_distances.ravel()[::stride]
    some = some[some > 0.0]
    if len(some) == 0 or len(apart) == 0:
        return np.zeros(0)
    high = float(np.quantile(some, _WIDEST_QUANTILE))
    low = min(float(np.quantile(apart, _NEAREST_QUANTILE)), high / _STEP**2)
    if np.mean([_has_duplicate(sq_distances[j], j) for j in range(n)]) >= _MANY_DUPLICATES:
        # Identical rows are clusters at every radius below the least distance of different rows,
        # so smaller radii are also tried.
        low /= _STEP ** (2 * _TRIALS_BELOW)
    n_trials = math.ceil(math.log(high / low) / (2.0 * math.log(_STEP)))
    return np.geomspace(low, high, min(max(n_trials, _LEAST_TRIALS), _MOST_TRIALS))


def trial_losses(
    sq_distances: NDArray[np.float32], sq_radii: NDArray[np.float64], F: float
) -> tuple[Losses, ...]:
    """Return the losses of the candidates over the sample at each of the ascending radii."""
    shape = len(sq_distances), len(sq_radii)
    sums, counts = np.zeros(shape), np.zeros(shape, np.int64)
    _add_pairs(sq_distances, sq_radii, sums, counts)
    return losses_of(LossPart(sums, counts, Pruned()), sq_radii.tolist(), F)


def find_clusters(
    sq_distances: NDArray[np.float32],
    losses: Losses,
    sq_radius: float,
    F: float,
    min_neighbors: int,
) -> TrialClusters:
    """Extract clusters from the sample by the paper's greedy algorithm, and label its rows."""
    alive = np.flatnonzero(losses.neighbors >= min_neighbors)
    order = alive[loss_order(losses.losses[alive], alive, F)]
    picks = _greedy(sq_distances, order, sq_radius)
    labels, inside, boundary = judge(sq_distances, picks, sq_radius)
    return TrialClusters(picks, labels, boundary / max(inside, 1))


def judge(
    sq_distances: NDArray[np.float32], picks: NDArray[np.int64], sq_radius: float
) -> tuple[NDArray[np.int32], int, int]:
    """Label each row (rows,) with its nearest pick inside the radius.

    Returns the labels, and the numbers of pairs of a row and a pick that are inside the radius and
    at its boundary.
    """
    labels = np.full(sq_distances.shape[1], OUTLIER, np.int32)
    low, high = BOUNDARY
    inside, boundary = _judge(sq_distances, picks, sq_radius, low, high, labels)
    return labels, inside, boundary


@jit()
def _products_to_distances(products, start, mapped, sq_norms):  # type: ignore[no-untyped-def]
    for a in range(products.shape[0]):
        j = start + a
        for i in range(products.shape[1]):
            sq_sum = sq_norms[i] + sq_norms[j]
            value = sq_sum - 2.0 * products[a, i]
            if value < _CLOSE * sq_sum:
                value = 0.0 if i == j else sq_distance(mapped[i], mapped[j])
            products[a, i] = value


@jit()
def _nearest(sq_distances, own):  # type: ignore[no-untyped-def]
    """Return the least squared distance above 0 of a candidate to another row.

    Identical rows are skipped, because they give no information about the scale.
    """
    least = np.inf
    for i in range(len(sq_distances)):
        if i != own and 0.0 < sq_distances[i] < least:
            least = sq_distances[i]
    return least


@jit()
def _has_duplicate(sq_distances, own):  # type: ignore[no-untyped-def]
    duplicates = 0
    for i in range(len(sq_distances)):
        duplicates += i != own and sq_distances[i] == 0.0
    return duplicates > 0


@jit()
def _add_pairs(sq_distances, sq_radii, sums, counts):  # type: ignore[no-untyped-def]
    n, rows = sq_distances.shape
    widest = sq_radii[-1]
    for j in range(n):
        for i in range(rows):
            value = sq_distances[j, i]
            if value < widest and i != j:
                low, high = 0, len(sq_radii) - 1
                while low < high:
                    middle = (low + high) // 2
                    if value < sq_radii[middle]:
                        high = middle
                    else:
                        low = middle + 1
                sums[j, low] += value
                counts[j, low] += 1


@jit()
def _greedy(sq_distances, order, sq_radius):  # type: ignore[no-untyped-def]
    dropped = np.zeros(sq_distances.shape[0], np.bool_)
    picks = np.empty(len(order), np.int64)
    m = 0
    for j in order:
        if not dropped[j]:
            picks[m] = j
            m += 1
            for k in order:
                if sq_distances[j, k] < sq_radius:
                    dropped[k] = True
    return picks[:m]


@jit()
def _judge(sq_distances, picks, sq_radius, low, high, labels):  # type: ignore[no-untyped-def]
    rows = sq_distances.shape[1]
    nearest = np.full(rows, np.inf)
    inside = boundary = 0
    for k in range(len(picks)):
        for i in range(rows):
            value = sq_distances[picks[k], i]
            if low * sq_radius < value < high * sq_radius:
                boundary += 1
            if value < sq_radius:
                inside += 1
                if value < nearest[i]:
                    nearest[i] = value
                    labels[i] = k
    return inside, boundary
