"""Which rows of a block can be worked with, and what is wrong with the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_FEW = 10
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class UnusableRows:
    """How many rows hold what cannot be worked with: a mergeable part."""

    nan: int  # rows with at least one NaN
    infinite: int  # rows with at least one infinity and no NaN
    too_large: int  # finite rows with a number that float32 cannot hold
    first: tuple[int, ...]  # the first few of all of them, rising

    @property
    def total(self) -> int:
        return self.nan + self.infinite + self.too_large


@dataclass(frozen=True)
class UsableRows:
    """The rows of a block that can be worked with, their numbers, and a count of the others."""

    block: NDArray[Any]  # (rows, p)
    numbers: NDArray[np.int64]  # (rows,) row numbers
    unusable: UnusableRows


def usable_rows(block: NDArray[Any], start: int) -> UsableRows:
    """Leave out the rows of a block (rows, p), the first of them number `start`, that no sum over
    rows would survive."""
    # the extremes of a row tell all: NaN is passed on by both
    lowest, highest = (ends.astype(np.float64) for ends in (block.min(axis=1), block.max(axis=1)))
    nan = np.isnan(lowest)
    infinite = ~nan & (np.isinf(lowest) | np.isinf(highest))
    too_large = ~nan & ~infinite & ((lowest < -_LARGEST) | (highest > _LARGEST))
    bad = nan | infinite | too_large
    first = tuple(int(row) + start for row in np.flatnonzero(bad)[:_FEW])
    unusable = UnusableRows(int(nan.sum()), int(infinite.sum()), int(too_large.sum()), first)
    numbers = np.arange(start, start + len(block), dtype=np.int64)
    if not bad.any():  # no copy of the block
        return UsableRows(block, numbers, unusable)
    return UsableRows(block[~bad], numbers[~bad], unusable)


def merge_unusable(a: UnusableRows, b: UnusableRows) -> UnusableRows:
    return UnusableRows(
        a.nan + b.nan,
        a.infinite + b.infinite,
        a.too_large + b.too_large,
        tuple(sorted(a.first + b.first)[:_FEW]),
    )
