"""Random choices, keyed by what they are for: the seed and the row numbers decide, nothing else."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Purpose(IntEnum):
    """Keys of independent random streams. Part of every result: never renumber."""

    CANDIDATES = 1
    LOSS_ROWS = 2
    SYNTH_MIXTURE = 3
    SYNTH_ROWS = 4


def stream(seed: int, purpose: Purpose, *index: int) -> np.random.Generator:
    return np.random.default_rng([seed, int(purpose), *index])


def sample_rows(seed: int, purpose: Purpose, n_rows: int, size: int) -> NDArray[np.int64]:
    """`size` of the row numbers 0..n_rows-1, uniform without replacement, rising."""
    rows = stream(seed, purpose).choice(n_rows, size=size, replace=False, shuffle=False)
    return np.sort(rows.astype(np.int64))


def rows_within(rows: NDArray[np.int64], start: int, stop: int) -> NDArray[np.int64]:
    """Those of the rising row numbers that lie in [start, stop)."""
    first, last = np.searchsorted(rows, (start, stop))
    return rows[first:last]
