"""Naive float64 implementation of Algorithm 1 of the paper, the reference for other tests."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

TIE = 1e-5  # losses within this relative difference are equal; the lower row number wins


class Naive(NamedTuple):
    center_rows: list[int]
    labels: NDArray[np.int64]
    losses: NDArray[np.float64]  # of every row as a candidate, without the row itself
    sq_distances: NDArray[np.float64]  # between all rows, after preprocessing


def preprocessed(x: NDArray[Any], kind: str) -> NDArray[np.float64]:
    y = x.astype(np.float64)
    if kind == "l2":
        norms = np.linalg.norm(y, axis=1, keepdims=True)
        return y / np.where(norms > 0, norms, 1.0)
    deviation = y.std(axis=0)
    deviation[y.max(axis=0) == y.min(axis=0)] = 0.0
    if kind == "standardize":
        return (y - y.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
    if kind == "scale":
        factor = np.sqrt(np.mean(deviation**2))
        return y / (factor if factor > 0 else 1.0)
    return y - y.mean(axis=0) if kind == "center" else y


def naive_scrlm(
    x: NDArray[Any],
    candidates: NDArray[np.int64],
    rho: float,
    max_clusters: int | None = None,
    F: float = 2.5,
    preprocess: str = "none",
) -> Naive:
    y = preprocessed(x, preprocess)
    N, p = y.shape
    sq_radius = rho**2 * p * F
    sq = np.array([((y - row) ** 2).sum(axis=1) for row in y])
    inside = sq < sq_radius
    np.fill_diagonal(inside, False)
    losses = np.where(inside, sq / (p * rho**2) - F, 0.0).sum(axis=0)
    # Candidates without neighbors have L = -F and are not clusters.
    left = [int(j) for j in candidates if inside[j].any()]
    centers: list[int] = []
    while left and len(centers) < (max_clusters or N):
        low = min(losses[j] for j in left)
        best = min(j for j in left if losses[j] <= low + TIE * (F + abs(low)))
        centers.append(best)
        left = [j for j in left if sq[j, best] >= sq_radius]
    labels = np.full(N, -1)
    if centers:
        nearest = sq[:, centers].argmin(axis=1)
        close = sq[:, centers].min(axis=1) < sq_radius
        labels[close] = nearest[close]
    return Naive(centers, labels, losses, sq)


def is_clear(naive: Naive, candidates: NDArray[np.int64], sq_radius: float, F: float = 2.5) -> bool:
    """Return whether rounding cannot change a decision.

    No pair is at the edge of the radius, no losses are nearly tied and no row is halfway between
    two centers.
    """
    on_edge = np.abs(naive.sq_distances / sq_radius - 1.0) < 1e-9
    rising = np.sort(naive.losses[candidates])
    gaps = np.diff(rising) / (F + np.abs(rising[:-1]))
    nearly_tied = (gaps > 1e-9) & (gaps < 10 * TIE)
    to_centers = np.sort(naive.sq_distances[:, naive.center_rows], axis=1)[:, :2]
    halfway = np.diff(to_centers, axis=1) <= 1e-9 * to_centers[:, 1:]
    return not (on_edge.any() or nearly_tied.any() or halfway.any())
