"""Sizes of rows, chunks and blocks, for planning."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Layout:
    """Shape of the rows, and how many of them a block and a chunk hold."""

    n_rows: int
    n_features: int
    itemsize: int
    block_rows: int
    chunk_rows: int  # the least that a read brings
    read_copies: int = 2  # of the chunks in addition to the block during a read: encoded, decoded

    @property
    def row_bytes(self) -> int:
        return self.n_features * self.itemsize

    @property
    def total_bytes(self) -> int:
        return self.n_rows * self.row_bytes

    @property
    def n_blocks(self) -> int:
        return -(-self.n_rows // self.block_rows)

    @property
    def block_bytes(self) -> int:
        return min(self.block_rows, self.n_rows) * self.row_bytes

    @property
    def reading_bytes(self) -> int:
        """Bytes that a thread needs to read a block: all of each chunk that the block touches."""
        # the least distance above 0 between the starts of a block and a chunk
        step = math.gcd(self.block_rows, self.chunk_rows)
        touched = (2 * self.chunk_rows - step + self.block_rows - 1) // self.chunk_rows
        stored = -(-self.n_rows // self.chunk_rows)
        chunk_bytes = min(touched, stored) * self.chunk_rows * self.row_bytes
        return self.block_bytes + self.read_copies * chunk_bytes

    def rows_in(self, blocks: list[int]) -> int:
        """Return the number of rows of the blocks; the last one of all may be smaller."""
        ends = [min(self.n_rows, (number + 1) * self.block_rows) for number in blocks]
        return sum(ends) - self.block_rows * sum(blocks)

    def cut_into(self, block_rows: int) -> Layout:
        return replace(self, block_rows=min(block_rows, self.n_rows))

    def in_blocks_for(self, n_clusters: int) -> Layout:
        """Return blocks at least as large as the float64 sums of `n_clusters` clusters.

        A pass holds such sums for every block in flight, so large sums get more rows per block.
        """
        least = -(-8 * n_clusters * self.n_features // self.row_bytes)
        if self.block_rows >= min(least, self.n_rows):
            return self
        block_rows = self.block_rows * -(-least // self.block_rows)
        # they are concatenated from the smaller blocks, which are in memory at the same time
        return replace(self, block_rows=block_rows, read_copies=2)
