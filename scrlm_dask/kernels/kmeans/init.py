"""Initial centers of k-means: k-means++, k-means|| (Bahmani et al.) and SCRLM on a sample."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels.bandwidth.search import ScanSizes
from scrlm_dask.kernels.distances import nearest_center
from scrlm_dask.kernels.distances.points import Points, prepare_points
from scrlm_dask.kernels.distances.preprocessing import AffineMap, FloatArray, native_float
from scrlm_dask.kernels.distances.pruning import prepare_with_axes
from scrlm_dask.kernels.kmeans.lloyd import lloyd_part, move_centers
from scrlm_dask.kernels.scrlm.extraction import extract_centers
from scrlm_dask.kernels.scrlm.loss import Losses, loss_part, losses_of
from scrlm_dask.kernels.scrlm.theory import required_sizes

ROUNDS = 3
OVERSAMPLING = 2  # l / k of k-means||: mean number of points drawn per round, per requested cluster


@dataclass(frozen=True)
class RowCosts:
    """Cost of each row of a block: its squared distance to the nearest point drawn so far."""

    sq_distances: NDArray[np.float64]  # (rows,) to the nearest point
    nearest: NDArray[np.int64]  # (rows,) number of this point


@dataclass(frozen=True)
class DrawnRows:
    """Rows drawn as points by k-means||: a mergeable part."""

    numbers: NDArray[np.int64]  # (m,) row numbers, ascending
    raw: FloatArray  # (m, p)


def row_costs(block: NDArray[Any], points: Points, first: int, before: RowCosts | None) -> RowCosts:
    """Return the costs of the rows of a block after new points are added.

    `before` has the costs without the new points; None if there were no points. New points are
    numbered from `first` on. Ties go to earlier points.
    """
    labelled = nearest_center.nearest_centers(block, points)
    sq_distances = nearest_center.measure_rows(block, labelled, points)
    nearest = first + labelled.labels.astype(np.int64)
    if before is None:
        return RowCosts(sq_distances, nearest)
    closer = sq_distances < before.sq_distances
    return RowCosts(
        np.where(closer, sq_distances, before.sq_distances),
        np.where(closer, nearest, before.nearest),
    )


def draw_rows(
    block: NDArray[Any],
    start: int,
    uniforms: NDArray[np.float64],
    masses: NDArray[np.float64],
    mean_draws: float,
    total_cost: float,
) -> DrawnRows:
    """Draw each row independently, with a probability proportional to its weighted cost.

    `masses` (rows,) are weights times squared distances, `total_cost` is their sum over all rows
    of all blocks, and `mean_draws` is the expected number of rows drawn from all blocks.
    """
    drawn = np.flatnonzero(uniforms * total_cost < mean_draws * masses)
    return DrawnRows(start + drawn, native_float(block[drawn]))


def merge_drawn(a: DrawnRows, b: DrawnRows) -> DrawnRows:
    """Concatenate two parts."""
    return DrawnRows(np.concatenate([a.numbers, b.numbers]), np.concatenate([a.raw, b.raw]))


_F = 2.5
LADDER_ROWS = 2**14  # rows whose distances determine the trial radii
# Each number defines a trial radius: the expected number of sample rows inside the radius, as a
# share of a cluster of average size.
RADIUS_LADDER = (0.125, 0.25, 0.5, 1.0, 2.0)
PROBES = 512  # points whose distances to all points are computed at a time
_SAMPLE_BYTES = 128 * 2**20
_LEAST_CANDIDATES = 4096
_PLUS_PLUS_ROWS_PER_CLUSTER, _PLUS_PLUS_LEAST_ROWS = 10, 10_000


@dataclass(frozen=True)
class Start:
    """Initial centers found with one trial radius, and their cost on held-out rows."""

    centers: NDArray[np.float64]  # (k, p) in input units
    rho: float
    extracted: int  # number of centers found by SCRLM; k-means++ chose the other centers
    mean_sq_distance: float

    def record(self) -> dict[str, Any]:
        """Return the values that `run.json` records."""
        cost = self.mean_sq_distance
        return {"rho": self.rho, "extracted": self.extracted, "mean_sq_distance": cost}


def plus_plus(
    points: Points,
    n_clusters: int,
    rng: np.random.Generator,
    weights: NDArray[np.float64] | None = None,
    begin: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Choose `n_clusters` points by k-means++ and return their positions.

    Each step takes the best of a few draws, as in scikit-learn. `begin` has the positions of points
    that are chosen already. If too few points are distinct, the first points that are not chosen
    yet are added.
    """
    n = len(points.raw)
    masses = np.ones(n) if weights is None else weights
    picks = [] if begin is None else [int(i) for i in begin]
    if not picks:
        picks.append(int(rng.choice(n, p=masses / masses.sum())))
    closest = np.full(n, np.inf)
    for some in range(0, len(picks), PROBES):
        near = _sq_distances(points, np.array(picks[some : some + PROBES])).min(axis=0)
        closest = np.minimum(closest, near)
    draws = _draws(n_clusters)
    while len(picks) < n_clusters:
        cumulative = np.cumsum(masses * closest)
        if not cumulative[-1] > 0.0:
            break  # every point of positive weight coincides with a chosen point
        drawn = np.searchsorted(cumulative, rng.random(draws) * cumulative[-1], side="right")
        drawn = np.minimum(drawn, n - 1)
        costs = np.minimum(closest, _sq_distances(points, drawn))
        best = int(np.argmin(costs @ masses))
        closest = costs[best]
        closest[drawn[best]] = 0.0
        picks.append(int(drawn[best]))
    others = np.setdiff1d(np.arange(n), picks)
    return np.concatenate([picks, others[: n_clusters - len(picks)]]).astype(np.int64)


def plus_plus_sample_rows(n_rows: int, n_clusters: int) -> int:
    """Return the number of rows in the sample for k-means++.

    A sample is used because k-means++ on all rows would need one pass per cluster.
    """
    return min(n_rows, max(_PLUS_PLUS_LEAST_ROWS, _PLUS_PLUS_ROWS_PER_CLUSTER * n_clusters))


def plus_plus_draws(n_points: int, n_clusters: int) -> int:
    """Return the number of distances that `plus_plus` computes: draws per center, times points."""
    return n_points * n_clusters * _draws(n_clusters)


def _draws(n_clusters: int) -> int:
    return 2 + int(math.log(n_clusters))


def scrlm_sample_sizes(n_rows: int, n_features: int, n_clusters: int) -> ScanSizes:
    """Return the sample sizes that SCRLM needs for `n_clusters`, within bounds on memory and time.

    The sizes of a search for rho (`scan_sizes`) have fixed limits, which are too small for many
    clusters.
    """
    fitting = max(2 * n_clusters, _SAMPLE_BYTES // (4 * n_features))
    judged = min(n_rows, fitting, max(_LEAST_CANDIDATES, required_sizes(n_clusters).n_rows))
    candidates = min(judged, max(_LEAST_CANDIDATES, 4 * n_clusters))
    return ScanSizes(candidates, judged, min(n_rows - judged, candidates))


def radius_ladder(sample: Points, n_clusters: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the squared trial radii, ascending: quantiles of squared distances in a sample.

    With k clusters of equal size, a row shares its cluster with 1 / k of all rows. The quantile
    1 / k of the distances is therefore about the size of a cluster, at any scale of the data.
    """
    probes = rng.permutation(len(sample.raw))[:PROBES]
    sq = np.sort(_sq_distances(sample, probes), axis=None)[
        len(probes) :
    ]  # without the distance 0 of each probe to itself
    shares = np.minimum(np.array(RADIUS_LADDER) / n_clusters, 0.5)
    ladder = np.quantile(sq, shares) if len(sq) else np.zeros(0)
    return np.unique(ladder[ladder > 0.0])


def radius_losses(
    judged: FloatArray, n_candidates: int, affine: AffineMap, sq_radii: NDArray[np.float64]
) -> tuple[Losses, ...]:
    """Return, per radius, the losses of the first `n_candidates` rows over all rows (judged, p)."""
    rows = np.arange(len(judged), dtype=np.int64)
    candidates = prepare_with_axes(judged[:n_candidates], affine)
    radii = sq_radii.tolist()
    part = loss_part(judged, rows, candidates, rows[:n_candidates], radii)
    return losses_of(part, radii, _F)


def scrlm_start(
    judged: FloatArray,
    held_out: FloatArray,
    losses: Losses,
    affine: AffineMap,
    n_clusters: int,
    sq_radius: float,
    seed: int,
) -> Start:
    """Run SCRLM on rows (judged, p) with one radius, then move centers to their rows' means.

    `losses` has the losses of the candidates, which are the first rows. If SCRLM finds fewer than
    `n_clusters` centers, k-means++ adds the missing centers. The cost is measured on held-out rows,
    or on the judged rows if no rows are held out.
    """
    rows = np.arange(len(losses.losses), dtype=np.int64)
    candidates = prepare_points(judged[: len(rows)], affine)
    rho = math.sqrt(sq_radius / (_F * affine.n_features))
    extracted = extract_centers(candidates, rows, losses, rho, _F, n_clusters, 1).picks
    picks = plus_plus(candidates, n_clusters, np.random.default_rng(seed), begin=extracted)
    centers = judged[picks].astype(np.float64)
    step = lloyd_part(judged, 0, prepare_with_axes(centers, affine), math.inf)
    moved = move_centers(centers, step.part, affine.unit_length).centers
    test = held_out if len(held_out) else judged
    cost = nearest_center.mean_sq_distance(test, prepare_with_axes(moved, affine))
    return Start(moved, rho, len(extracted), cost)


def _sq_distances(points: Points, picks: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return squared distances (picks, points) with float32 accuracy."""
    products = points.mapped[picks] @ points.mapped.T
    sq = np.maximum(points.sq_norms[picks, None] + points.sq_norms - 2.0 * products, 0.0)
    # The distance of a point to itself must be 0 in spite of rounding.
    sq[np.arange(len(picks)), picks] = 0.0
    return np.asarray(sq)
