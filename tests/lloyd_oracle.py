"""Naive k-means in float64, the reference for tests of kernels and passes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class NaiveStep(NamedTuple):
    labels: NDArray[np.int64]  # (rows,); -1 outside the radius
    sq_distances: NDArray[np.float64]  # (rows,); to the nearest center
    means: NDArray[np.float64]  # (k, p); the center itself for a cluster without rows
    inertia: float
    clear: NDArray[np.bool_]  # (rows,); True if rounding cannot change the label


def directions(x: NDArray[Any]) -> NDArray[np.float64]:
    y = x.astype(np.float64)
    norms = np.linalg.norm(y, axis=1, keepdims=True)
    return y / np.where(norms > 0.0, norms, 1.0)


def naive_step(
    x: NDArray[Any],
    centers: NDArray[Any],
    sq_radius: float = math.inf,
    weights: NDArray[np.float64] | None = None,
    spherical: bool = False,
) -> NaiveStep:
    y = directions(x) if spherical else x.astype(np.float64)
    c = directions(centers) if spherical else centers.astype(np.float64)
    w = np.ones(len(y)) if weights is None else weights
    sq = np.array([((y - center) ** 2).sum(axis=1) for center in c]).T
    labels, nearest = sq.argmin(axis=1), sq.min(axis=1)
    two = np.sort(sq, axis=1)[:, :2]
    clear = np.abs(nearest - sq_radius) > 1e-9 * nearest
    if len(c) > 1:
        clear &= two[:, 1] - two[:, 0] > 1e-9 * two[:, 1]
    labels = np.where(nearest < sq_radius, labels, -1)
    means = c.copy()
    for k in range(len(c)):
        mass = w[labels == k].sum()
        if mass > 0.0:
            means[k] = (w[labels == k, None] * y[labels == k]).sum(axis=0) / mass
    inertia = float((w * np.minimum(nearest, sq_radius)).sum())
    return NaiveStep(labels, nearest, directions(means) if spherical else means, inertia, clear)


def naive_lloyd(
    x: NDArray[Any],
    centers: NDArray[Any],
    iterations: int,
    weights: NDArray[np.float64] | None = None,
    spherical: bool = False,
) -> NDArray[np.float64]:
    """Return the centers (k, p) after the given number of iterations."""
    for _ in range(iterations):
        centers = naive_step(x, centers, weights=weights, spherical=spherical).means
    return centers.astype(np.float64)
