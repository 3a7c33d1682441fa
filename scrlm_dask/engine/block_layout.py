"""How rows are stored and cut into blocks, in numbers: what plans are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Layout:
    """Rows in blocks, as they are read from chunks."""

    n_rows: int
    n_features: int
    itemsize: int
    block_rows: int
    chunk_rows: int  # the least that a read brings
    read_copies: int = 2  # of the chunks beside the block while it is read: encoded, and decoded

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
        """What a thread holds while it reads a block: all of each chunk that the block touches."""
        # the least distance, but 0, between the beginnings of a block and a chunk
        step = math.gcd(self.block_rows, self.chunk_rows)
        touched = (2 * self.chunk_rows - step + self.block_rows - 1) // self.chunk_rows
        stored = -(-self.n_rows // self.chunk_rows)
        chunk_bytes = min(touched, stored) * self.chunk_rows * self.row_bytes
        return self.block_bytes + self.read_copies * chunk_bytes

    def rows_in(self, blocks: list[int]) -> int:
        """Rows of those blocks; the last one of all may be smaller."""
        ends = [min(self.n_rows, (number + 1) * self.block_rows) for number in blocks]
        return sum(ends) - self.block_rows * sum(blocks)

    def cut_into(self, block_rows: int) -> Layout:
        return replace(self, block_rows=min(block_rows, self.n_rows))

    def in_blocks_for(self, n_clusters: int) -> Layout:
        """The same rows in blocks that are no smaller than the float64 sums of so many clusters.

        A pass holds such sums for every block in flight: large ones are shared by more rows.
        """
        least = -(-8 * n_clusters * self.n_features // self.row_bytes)
        if self.block_rows >= min(least, self.n_rows):
            return self
        block_rows = self.block_rows * -(-least // self.block_rows)
        # they are put together of the blocks as they were: those are there, too
        return replace(self, block_rows=block_rows, read_copies=2)
