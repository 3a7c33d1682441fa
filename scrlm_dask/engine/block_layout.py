"""Sizes of rows, chunks and blocks, for planning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

_BATCH_BYTES = 8 * 2**20  # a task has these bytes in memory; 8 blocks of up to 1 MiB
_BATCH_SIZES = (512, 64, 8)  # powers of every fan-in, so that a batch is a complete subtree
_MIN_BATCHES = 33  # enough tasks for several workers; more than the groups of a checkpoint


def blocks_per_task(n_blocks: int, block_bytes: int) -> int:
    """Return the number of consecutive blocks per task: 1, unless there are many small blocks.

    The fixed cost of a task is several milliseconds, most of it in Dask's scheduler.
    """
    for size in _BATCH_SIZES:
        if size * block_bytes <= _BATCH_BYTES and n_blocks >= _MIN_BATCHES * size:
            return size
    return 1


@dataclass(frozen=True)
class Layout:
    """Shape of the features, and sizes of rows, chunks and blocks."""

    n_rows: int
    n_features: int
    itemsize: int
    block_rows: int
    chunk_rows: int  # smallest unit of a read
    read_copies: int = 2  # copies of a chunk during a read (encoded, decoded), without the block
    blocks_per_task: int = field(init=False)  # of a pass over all blocks
    task_rows: int = field(init=False)  # rows of the blocks of a task
    row_bytes: int = field(init=False)
    total_bytes: int = field(init=False)
    block_bytes: int = field(init=False)
    # memory of a thread during a read: the rows of a task, and the copies of the chunks it overlaps
    reading_bytes: int = field(init=False)
    n_blocks: int = field(init=False)
    float_bytes: int = field(init=False)  # size of the floats that are computed from a block

    def __post_init__(self) -> None:
        row_bytes = self.n_features * self.itemsize
        block_bytes = min(self.block_rows, self.n_rows) * row_bytes
        n_blocks = -(-self.n_rows // self.block_rows)
        size = blocks_per_task(n_blocks, block_bytes)
        task_rows = size * self.block_rows
        # the smallest nonzero offset between the starts of a task's rows and a chunk
        step = math.gcd(task_rows, self.chunk_rows)
        touched = (2 * self.chunk_rows - step + task_rows - 1) // self.chunk_rows
        stored = -(-self.n_rows // self.chunk_rows)
        chunk_bytes = min(touched, stored) * self.chunk_rows * row_bytes
        # blocks that are not consecutive are concatenated to a batch
        read_bytes = min(task_rows, self.n_rows) * row_bytes * (1 if size == 1 else 2)
        object.__setattr__(self, "blocks_per_task", size)
        object.__setattr__(self, "task_rows", min(task_rows, self.n_rows))
        object.__setattr__(self, "row_bytes", row_bytes)
        object.__setattr__(self, "total_bytes", self.n_rows * row_bytes)
        object.__setattr__(self, "block_bytes", block_bytes)
        object.__setattr__(self, "reading_bytes", read_bytes + self.read_copies * chunk_bytes)
        object.__setattr__(self, "n_blocks", n_blocks)
        object.__setattr__(self, "float_bytes", 8 if self.itemsize > 4 else 4)

    def rows_in(self, blocks: Sequence[int]) -> int:
        """Return the number of rows in the given blocks; the last block may be smaller."""
        ends = [min(self.n_rows, (number + 1) * self.block_rows) for number in blocks]
        return sum(ends) - self.block_rows * sum(blocks)

    def cut_into(self, block_rows: int) -> Layout:
        """Return the layout of the same rows in blocks of `block_rows` rows."""
        return replace(self, block_rows=min(block_rows, self.n_rows))

    def in_blocks_for(self, n_clusters: int) -> Layout:
        """Return a layout with blocks at least as large as the sums of `n_clusters` clusters.

        The sums are float64, one per cluster and feature. A pass keeps them in memory for every
        block that is being computed, so a block must not be smaller than its sums. A larger block
        is concatenated from smaller blocks; all of these are in memory at the same time.
        """
        least = -(-8 * n_clusters * self.n_features // self.row_bytes)
        if self.block_rows >= min(least, self.n_rows):
            return self
        block_rows = self.block_rows * -(-least // self.block_rows)
        return replace(self, block_rows=block_rows, read_copies=2)
