"""Sizes of blocks, and of the chunks that are read for them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrlm_dask.engine.block_layout import Layout

TINY = Layout(n_rows=10, n_features=3, itemsize=4, block_rows=4, chunk_rows=4, read_copies=1)


def test_blocks() -> None:
    assert (TINY.row_bytes, TINY.n_blocks, TINY.block_bytes) == (12, 3, 48)
    assert TINY.rows_in([0, 2]) == 4 + 2


@pytest.mark.parametrize(
    ("block_rows", "chunk_rows", "chunks"),
    [(4, 4, 1), (8, 4, 2), (2, 4, 1), (6, 4, 2), (3, 4, 2), (5, 4, 2), (4, 3, 2), (7, 4, 3)],
)
def test_read_includes_whole_chunks(block_rows: int, chunk_rows: int, chunks: int) -> None:
    layout = Layout(500, 1, 1, block_rows, chunk_rows, read_copies=1)  # too few rows for batches
    touched = max(
        math.ceil((start + block_rows) / chunk_rows) - start // chunk_rows
        for start in range(0, 900, block_rows)
    )
    assert touched == chunks
    assert layout.reading_bytes == block_rows + chunks * chunk_rows


@given(n_rows=st.integers(1, 200), block_rows=st.integers(1, 50), data=st.data())
def test_rows_of_some_blocks(n_rows: int, block_rows: int, data: st.DataObject) -> None:
    layout = Layout(n_rows, 3, 4, block_rows, block_rows)
    assert layout.n_blocks == len(range(0, n_rows, block_rows))
    blocks = data.draw(st.lists(st.integers(0, layout.n_blocks - 1), unique=True))
    assert layout.rows_in(blocks) == sum(row // block_rows in blocks for row in range(n_rows))
    assert layout.rows_in(list(range(layout.n_blocks))) == n_rows


def test_sizes_by_hand() -> None:
    assert TINY.total_bytes == 120
    # the only block has 3 rows, fewer than block_rows
    assert Layout(3, 5, 2, block_rows=4, chunk_rows=4).block_bytes == 3 * 5 * 2


def test_read_includes_only_existing_chunks() -> None:
    # 3 rows are in one chunk of 4 rows, which exists encoded and decoded
    layout = Layout(3, 1, 1, block_rows=6, chunk_rows=4, read_copies=2)
    assert layout.reading_bytes == 3 + 2 * 4


def test_smaller_blocks() -> None:
    assert TINY.cut_into(2).n_blocks == 5
    assert TINY.cut_into(100).block_rows == 10


def test_blocks_grow_to_the_size_of_the_sums() -> None:
    # 5 clusters have 5 * 3 * 8 = 120 bytes of sums, as much as 10 rows of 12 bytes: 3 blocks of 4
    grown = TINY.in_blocks_for(5)
    assert (grown.block_rows, grown.chunk_rows, grown.read_copies) == (12, 4, 2)
    assert TINY.in_blocks_for(2) == TINY  # 48 bytes are one block
    assert TINY.in_blocks_for(3).block_rows == 8
