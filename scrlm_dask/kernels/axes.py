"""Orthonormal axes along which points differ most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_OVERSAMPLED = 8  # axes more than asked for, so that the last ones asked for are good, too
_ROUNDS = 2
_MOST_POINTS = 2048
_LEAST_SIZE = 2.0**-100


@dataclass(frozen=True)
class Frame:
    """Axes to see points along, and from where: it stays while the points move a little."""

    directions: NDArray[np.float32]  # (p, q) orthonormal
    origin: NDArray[np.float64]  # (p,)


def principal_axes(points: NDArray[np.float32], n_axes: int) -> NDArray[np.float32]:
    """The first `n_axes` principal axes (p, n_axes) of centered points (k, p), strongest first.

    By subspace iteration from a fixed start, on some of the points. Whoever projects onto them
    needs them orthonormal, not exact: a poor axis costs time and changes no result.
    """
    points = points[:: -(-len(points) // _MOST_POINTS)]
    # at a size whose squares float32 can hold; directions do not change
    points = points / np.float32(max(float(np.abs(points).max(initial=0.0)), _LEAST_SIZE))
    width = min(n_axes + _OVERSAMPLED, points.shape[1])
    basis = np.random.default_rng(0).standard_normal((points.shape[1], width))
    for _ in range(_ROUNDS):
        along: NDArray[Any] = points.T @ (points @ basis.astype(np.float32))
        basis = np.linalg.qr(along.astype(np.float64))[0]
    seen = (points @ basis.astype(np.float32)).astype(np.float64)
    _, turn = np.linalg.eigh(seen.T @ seen)
    return np.ascontiguousarray((basis @ turn[:, ::-1])[:, :n_axes], dtype=np.float32)
