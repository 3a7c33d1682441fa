"""Rows that are equal byte for byte, found by their hashes in bounded memory.

Hashes are kept while there are at most `CAPACITY` different ones. Beyond that only those that begin
with a zero bit are, then with two, and so on: a share of the rows that the hashes choose, copies
together with their originals. Which rows these are depends on the rows alone, not on how they were
cut into blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels.compiled import compiled
from scrlm_dask.kernels.preprocessing import native_float

CAPACITY = 2**20  # different hashes kept: 24 bytes each
_FEW = 5


@dataclass(frozen=True)
class RowHashes:
    """The different hashes of rows, and how often each was met: a mergeable part."""

    level: int  # only hashes that begin with so many zero bits are kept
    hashes: NDArray[np.uint64]  # (n,) rising
    counts: NDArray[np.int64]  # (n,)
    first_rows: NDArray[np.int64]  # (n,) the row that had it first


@dataclass(frozen=True)
class Duplicates:
    """Rows that repeat an earlier one. Estimated from a share of the rows if that is below 1."""

    rows: int
    counted_share: float
    groups: tuple[tuple[int, int], ...]  # the largest: first row, and how many rows equal it


def row_hashes(
    block: NDArray[Any], numbers: NDArray[np.int64], capacity: int = CAPACITY
) -> RowHashes:
    """Hashes of the rows of a block (rows, p) whose row numbers are `numbers`."""
    rows = native_float(block)
    hashes = np.empty(len(rows), np.uint64)
    _hash(rows.view(np.uint32 if rows.itemsize == 4 else np.uint64), hashes)
    return _gathered(0, hashes, np.ones(len(rows), np.int64), numbers, capacity)


def merge_hashes(a: RowHashes, b: RowHashes, capacity: int = CAPACITY) -> RowHashes:
    return _gathered(
        max(a.level, b.level),
        np.concatenate([a.hashes, b.hashes]),
        np.concatenate([a.counts, b.counts]),
        np.concatenate([a.first_rows, b.first_rows]),
        capacity,
    )


def duplicates_among(found: RowHashes) -> Duplicates:
    repeated = np.flatnonzero(found.counts > 1)
    order = np.lexsort((found.first_rows[repeated], -found.counts[repeated]))[:_FEW]
    groups = tuple((int(found.first_rows[i]), int(found.counts[i])) for i in repeated[order])
    copies = int((found.counts - 1).sum())
    return Duplicates(copies << found.level, 0.5**found.level, groups)


def _gathered(
    level: int,
    hashes: NDArray[np.uint64],
    counts: NDArray[np.int64],
    rows: NDArray[np.int64],
    capacity: int,
) -> RowHashes:
    """Equal hashes put together, and thinned until they fit."""
    chosen = _begins_with_zeros(hashes, level)
    unique, places = np.unique(hashes[chosen], return_inverse=True)
    totals = np.zeros(len(unique), np.int64)
    np.add.at(totals, places, counts[chosen])
    first = np.full(len(unique), np.iinfo(np.int64).max)
    np.minimum.at(first, places, rows[chosen])
    while len(unique) > capacity:
        level += 1
        kept = _begins_with_zeros(unique, level)
        unique, totals, first = unique[kept], totals[kept], first[kept]
    return RowHashes(level, unique, totals, first)


def _begins_with_zeros(hashes: NDArray[np.uint64], level: int) -> NDArray[np.bool_]:
    return hashes <= np.uint64(2 ** (64 - level) - 1)


@compiled()
def _hash(words, hashes):  # type: ignore[no-untyped-def]
    # each step is a bijection for a given word, so rows that differ in one number never collide
    for i in range(words.shape[0]):
        h = np.uint64(0x9E3779B97F4A7C15)
        for j in range(words.shape[1]):
            h = (h ^ np.uint64(words[i, j])) * np.uint64(0xFF51AFD7ED558CCD)
            h ^= h >> np.uint64(32)
        h = (h ^ (h >> np.uint64(29))) * np.uint64(0xC4CEB9FE1A85EC53)
        hashes[i] = h ^ (h >> np.uint64(32))
