"""A permutation of any number of rows that needs no memory: each place is computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels.sampling import Purpose, stream

_ROUNDS = 8
_LEAST_BITS = 4  # of a half: with fewer, few of the permutations could come out


@dataclass(frozen=True)
class Permutation:
    """A Feistel network with the seed's keys on the smallest domain of 4^b >= n_rows numbers.

    What leaves the rows walks on until it comes back, which keeps it a bijection of the rows.
    """

    n_rows: int
    seed: int

    def places(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where each of the rows goes."""
        half = max(_LEAST_BITS, (max(1, self.n_rows - 1).bit_length() + 1) // 2)
        keys = stream(self.seed, Purpose.SHUFFLE).integers(
            2**64, size=_ROUNDS, dtype=np.uint64, endpoint=False
        )
        found = _network(rows.astype(np.uint64), keys, half)
        outside = np.flatnonzero(found >= self.n_rows)
        while len(outside):
            found[outside] = _network(found[outside], keys, half)
            outside = outside[found[outside] >= self.n_rows]
        return found.astype(np.int64)


def _network(
    numbers: NDArray[np.uint64], keys: NDArray[np.uint64], half: int
) -> NDArray[np.uint64]:
    bits, mask = np.uint64(half), np.uint64(2**half - 1)
    left, right = numbers >> bits, numbers & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right ^ key) & mask)
    return (left << bits) | right


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finish of splitmix64: every bit of the result depends on every bit of x."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
