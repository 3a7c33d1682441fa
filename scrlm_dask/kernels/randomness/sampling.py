"""Random samples and a Feistel permutation of rows, which depend only on seed and row numbers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

_STRATUM_ROWS = 1024


class Purpose(IntEnum):
    """Keys of independent random streams. Results depend on them: never change a number."""

    CANDIDATES = 1
    LOSS_ROWS = 2
    SYNTH_MIXTURE = 3
    SYNTH_ROWS = 4
    BLOCK_SAMPLE = 5
    INIT_ROWS = 6
    INIT_CHOICES = 7
    INIT_ROUNDS = 8
    SHUFFLE = 9
    INSPECTED_ROWS = 10
    SCAN_ROWS = 11
    SCAN_ORDER = 12
    COMPARED_ROWS = 13
    RADIUS_ROWS = 14


def stream(seed: int, purpose: Purpose, *index: int) -> np.random.Generator:
    """Return the random stream of a seed, a purpose and optional indices."""
    return np.random.default_rng([seed, int(purpose), *index])


def sample_rows(seed: int, purpose: Purpose, n_rows: int, size: int) -> NDArray[np.int64]:
    """Draw `size` of the row numbers 0..n_rows-1, uniformly without replacement; ascending."""
    rng = stream(seed, purpose)
    if 2 * size <= n_rows:
        return _distinct(rng, n_rows, size)
    left_out = np.zeros(n_rows, np.bool_)
    left_out[_distinct(rng, n_rows, n_rows - size)] = True
    return np.flatnonzero(~left_out)


def random_order(seed: int, purpose: Purpose, n_rows: int) -> NDArray[np.int64]:
    """Return a random order of gathered rows.

    Gathered rows are sorted by row number. Without a random order, the first rows, which become
    candidates, would not be a random subset.
    """
    return stream(seed, purpose).permutation(n_rows)


def _distinct(rng: np.random.Generator, n_rows: int, size: int) -> NDArray[np.int64]:
    """Draw `size` distinct row numbers; `size` is at most half of all rows.

    Memory is O(size); `Generator.choice` would shuffle all row numbers.
    """
    rows = np.empty(0, np.int64)
    while len(rows) < size:
        more = rng.integers(n_rows, size=size - len(rows) + size // 8 + 8)
        rows = np.unique(np.concatenate([rows, more]))
    if len(rows) > size:
        rows = np.sort(rng.permutation(rows)[:size])
    return rows


def row_uniforms(
    seed: int, purpose: Purpose, start: int, stop: int, *index: int
) -> NDArray[np.float64]:
    """Return a uniform number in [0, 1) for each row start..stop-1, independent of the blocks."""
    strata = range(start // _STRATUM_ROWS, -(-stop // _STRATUM_ROWS))
    drawn = [stream(seed, purpose, *index, s).random(_STRATUM_ROWS) for s in strata]
    first = strata.start * _STRATUM_ROWS
    return np.concatenate([np.empty(0), *drawn])[start - first : stop - first]


def weighted_keys(
    weights: NDArray[np.float64], uniforms: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return random keys (rows,) for weighted sampling (Efraimidis & Spirakis).

    The rows with the largest keys are a weighted sample without replacement.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        keys = np.log(uniforms) / weights
    return np.where(weights > 0.0, keys, -np.inf)


def rows_within(rows: NDArray[np.int64], start: int, stop: int) -> NDArray[np.int64]:
    """Return the row numbers in [start, stop); `rows` must be ascending."""
    first, last = np.searchsorted(rows, (start, stop))
    return rows[first:last]


_ROUNDS = 8
_LEAST_BITS = 4  # per half; with fewer, only few permutations are possible


@dataclass(frozen=True)
class Permutation:
    """A random permutation of rows: a Feistel network on the smallest domain of 4^b >= n_rows.

    Results that are not below `n_rows` are mapped again until they are (cycle walking), so that the
    permutation is a bijection of the rows.
    """

    n_rows: int
    seed: int

    def places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the new position of each row number."""
        half = max(_LEAST_BITS, (max(1, self.n_rows - 1).bit_length() + 1) // 2)
        keys = stream(self.seed, Purpose.SHUFFLE).integers(
            2**64, size=_ROUNDS, dtype=np.uint64, endpoint=False
        )
        positions = _network(rows.astype(np.uint64), keys, half)
        outside = np.flatnonzero(positions >= self.n_rows)
        while len(outside):
            positions[outside] = _network(positions[outside], keys, half)
            outside = outside[positions[outside] >= self.n_rows]
        return positions.astype(np.int64)


def _network(
    numbers: NDArray[np.uint64], keys: NDArray[np.uint64], half: int
) -> NDArray[np.uint64]:
    bits, mask = np.uint64(half), np.uint64(2**half - 1)
    left, right = numbers >> bits, numbers & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << bits) | right


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finalizer of splitmix64: every bit of the result depends on every bit of x."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
