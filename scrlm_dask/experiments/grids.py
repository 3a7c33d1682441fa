"""Axes of grids, by equal factors."""

from __future__ import annotations

import math


def doubling(first: int, last: int) -> tuple[int, ...]:
    return steps(first, last, 2.0)


def steps(first: int, last: int, ratio: float) -> tuple[int, ...]:
    """Whole numbers from `first` up to `last`, each about `ratio` times the one before."""
    count = math.floor(math.log(last / first) / math.log(ratio) + 1e-9)
    return tuple(sorted({round(first * ratio**k) for k in range(count + 1)}))
