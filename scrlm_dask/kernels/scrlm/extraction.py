"""Greedy extraction of centers: steps 5 to 13 of Algorithm 1, and residual extraction.

Residual extraction is a variant that computes losses over the rows that no center covers yet.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels.distances.points import Points, exact_sq_distance, squared_radius
from scrlm_dask.kernels.jit import jit
from scrlm_dask.kernels.scrlm.loss import Losses

# Losses with a smaller relative difference are ties. Duplicated rows and mirrored pairs have equal
# losses, which float32 makes slightly different; rounding must not decide which row is picked.
TIE_TOLERANCE = 1e-5
TOGETHER, AGAINST = 256, 4096  # candidates in a batch, and others compared with it at a time


@dataclass(frozen=True)
class Extraction:
    """The picked candidates in the order in which they were picked."""

    picks: NDArray[np.int64]  # (m,) positions among the candidates
    losses: NDArray[np.float64]  # (m,)
    neighbors: NDArray[np.int64]  # (m,)


def extract_centers(
    candidates: Points,
    candidate_rows: NDArray[np.int64],
    losses: Losses,
    rho: float,
    F: float,
    max_clusters: int | None,
    min_neighbors: int,
) -> Extraction:
    """Pick the candidate with the lowest loss, drop candidates inside its radius, and repeat.

    Stops after `max_clusters` picks, or when no remaining candidate has `min_neighbors` other rows
    inside its radius. With `min_neighbors` 1 this is the paper's condition L < -F: the paper's loss
    includes -F for the candidate's own row, which is excluded here. Candidates are compared in
    batches, by one matrix product per batch.
    """
    sq_radius = squared_radius(rho, F, candidates.raw.shape[1])
    limit = len(candidate_rows) if max_clusters is None else max_clusters
    alive = np.flatnonzero(losses.neighbors >= min_neighbors)
    order = alive[loss_order(losses.losses[alive], candidate_rows[alive], F)]
    picks: list[int] = []
    while len(order) and len(picks) < limit:
        batch = order[:TOGETHER]
        suppressed = np.zeros(len(batch), np.bool_)
        near = _near(candidates, batch, batch, sq_radius)
        new: list[int] = []
        for k in range(len(batch)):
            if not suppressed[k] and len(picks) + len(new) < limit:
                new.append(int(batch[k]))
                suppressed |= near[k]
        picks += new
        order = _outside_radius(candidates, np.array(new), order[len(batch) :], sq_radius)
    chosen = np.array(picks, np.int64)
    return Extraction(chosen, losses.losses[chosen], losses.neighbors[chosen])


def loss_order(losses: NDArray[np.float64], rows: NDArray[np.int64], F: float) -> NDArray[np.int64]:
    """Return positions by ascending loss; ties are ordered by row number."""
    order = np.argsort(losses, kind="stable")
    return order[np.lexsort((rows[order], _tie_groups(losses[order], F)))]


@jit()
def _tie_groups(ascending, F):  # type: ignore[no-untyped-def]
    groups = np.zeros(len(ascending), np.int64)
    first = 0
    for k in range(1, len(ascending)):
        groups[k] = groups[k - 1]
        if ascending[k] - ascending[first] > TIE_TOLERANCE * (F + abs(ascending[first])):
            groups[k] += 1
            first = k
    return groups


def _outside_radius(
    candidates: Points, picks: NDArray[np.int64], rest: NDArray[np.int64], sq_radius: float
) -> NDArray[np.int64]:
    """Return the candidates of `rest` that are outside the radius of every pick."""
    keep = np.ones(len(rest), np.bool_)
    for start in range(0, len(rest), AGAINST):
        batch = slice(start, start + AGAINST)
        keep[batch] = ~_near(candidates, picks, rest[batch], sq_radius).any(axis=0)
    return rest[keep]


def _near(
    points: Points, a: NDArray[np.int64], b: NDArray[np.int64], sq_radius: float
) -> NDArray[np.bool_]:
    """Return (len(a), len(b)): whether each point of `a` is inside the radius of each of `b`."""
    products = points.mapped[a] @ points.mapped[b].T
    near = np.empty(products.shape, np.bool_)
    _decide(products, a, b, points.arrays, sq_radius, near)
    return near


@jit()
def _decide(products, a, b, points, sq_radius, near):  # type: ignore[no-untyped-def]
    raw, inv_norms, _, sq_norms, scale, error_factor = points
    for i in range(len(a)):
        for j in range(len(b)):
            sq_sum = sq_norms[a[i]] + sq_norms[b[j]]
            sq_dist = sq_sum - 2.0 * products[i, j]
            if abs(sq_dist - sq_radius) <= error_factor * sq_sum:
                sq_dist = exact_sq_distance(
                    raw[a[i]], inv_norms[a[i]], raw[b[j]], inv_norms[b[j]], scale
                )
            near[i, j] = sq_dist < sq_radius


def extract_residual(
    sq_distances: NDArray[np.float32],
    sq_radius: float,
    F: float,
    max_clusters: int,
    min_neighbors: int,
) -> Extraction:
    """Pick the candidate with the lowest loss over uncovered rows, cover its rows, and repeat.

    A pick covers the rows inside its radius. `sq_distances` (n, rows) are the squared distances of
    n candidates to the rows of a sample; the candidates are the first n rows. A candidate's own row
    does not count. The returned losses and neighbors count the rows that were uncovered when the
    candidate was picked. Stops after `max_clusters` picks, or when no candidate has
    `min_neighbors` uncovered rows inside its radius. Ties go to the first candidate.
    """
    picks, gains, neighbors = _extract(sq_distances, sq_radius, max_clusters, min_neighbors)
    return Extraction(picks, -F * gains, neighbors)


@jit()
def _extract(sq_distances, sq_radius, most, min_neighbors):  # type: ignore[no-untyped-def]
    n, rows = sq_distances.shape
    open_rows = np.ones(rows, np.bool_)
    gains, counts = np.empty(n), np.empty(n, np.int64)
    for j in range(n):
        gains[j], counts[j] = _gain(sq_distances[j], sq_radius, open_rows, j)
    seen = np.zeros(n, np.int64)  # number of picks when the gain was computed
    most = min(most, n)
    picks, pick_gains = np.empty(most, np.int64), np.empty(most)
    neighbors = np.empty(most, np.int64)
    m = 0
    while m < most:
        # Gains only decrease as rows are covered, so an old gain is an upper bound. If the largest
        # gain is up to date, no other candidate has a larger one.
        j = int(np.argmax(gains))
        if gains[j] < 0.0:
            break
        if seen[j] < m:
            gains[j], counts[j] = _gain(sq_distances[j], sq_radius, open_rows, j)
            seen[j] = m
        elif counts[j] < min_neighbors:
            gains[j] = -1.0  # too few neighbors: never picked
        else:
            picks[m], pick_gains[m], neighbors[m] = j, gains[j], counts[j]
            for i in range(rows):
                if sq_distances[j, i] < sq_radius:
                    open_rows[i] = False
            gains[j] = -1.0
            m += 1
    return picks[:m], pick_gains[:m], neighbors[:m]


@jit()
def _gain(sq_distances, sq_radius, open_rows, own):  # type: ignore[no-untyped-def]
    """Return the sum of 1 - d^2 / R^2 over other open rows inside the radius, and their number.

    Open rows are rows that no pick covers yet.
    """
    total, count = 0.0, 0
    for i in range(len(sq_distances)):
        if open_rows[i] and i != own and sq_distances[i] < sq_radius:
            total += 1.0 - sq_distances[i] / sq_radius
            count += 1
    return total, count
