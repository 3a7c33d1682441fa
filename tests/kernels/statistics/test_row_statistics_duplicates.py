"""Duplicate rows by their hashes: exact up to a capacity, estimated from a share beyond it."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from scrlm_dask.kernels.statistics.row_statistics import (
    CAPACITY,
    RowHashes,
    duplicates_among,
    merge_hashes,
    row_hashes,
)


def hashes_of(x: NDArray[Any], cuts: list[int], capacity: int = CAPACITY) -> RowHashes:
    edges = [0, *sorted(cuts), len(x)]
    parts = [row_hashes(x[a:b], np.arange(a, b), capacity) for a, b in itertools.pairwise(edges)]
    return reduce(lambda a, b: merge_hashes(a, b, capacity), parts)


def test_by_hand() -> None:
    # rows 0, 2 and 5 are equal, and 1 and 3: three rows repeat an earlier one
    x = np.array([[1, 2], [3, 4], [1, 2], [3, 4], [2, 1], [1, 2]], np.float32)
    found = duplicates_among(hashes_of(x, [2]))
    assert (found.rows, found.counted_share) == (3, 1.0)
    assert found.groups == ((0, 3), (1, 2))


def test_no_duplicates() -> None:
    found = duplicates_among(hashes_of(np.eye(50, dtype=np.float32), [7, 30]))
    assert (found.rows, found.groups) == (0, ())


@given(
    values=st.lists(st.tuples(*[st.integers(0, 2)] * 2), min_size=1, max_size=50),
    cuts=st.lists(st.integers(0, 50), max_size=4),
    dtype=st.sampled_from(["float16", "float32", "float64", ">f4"]),
)
def test_any_split_gives_the_counts_of_a_dictionary(
    values: list[tuple[int, int]], cuts: list[int], dtype: str
) -> None:
    x = np.array(values).astype(dtype)
    found = duplicates_among(hashes_of(x, [min(cut, len(x)) for cut in cuts]))
    counts = Counter(values)
    assert found.rows == len(values) - len(counts)
    expected = sorted(
        ((values.index(v), n) for v, n in counts.items() if n > 1), key=lambda g: (-g[1], g[0])
    )
    assert list(found.groups) == expected[:5]


@given(cuts=st.lists(st.integers(0, 3000), max_size=6), seed=st.integers(0, 99))
def test_sampled_share_does_not_depend_on_the_split(cuts: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(3000, 3)).astype(np.float32)
    x[rng.permutation(3000)[:600]] = x[rng.integers(3000, size=600)]
    one, many = hashes_of(x, [], 200), hashes_of(x, cuts, 200)
    assert one.level == many.level >= 3
    for name in ("hashes", "counts", "first_rows"):
        assert getattr(one, name).tobytes() == getattr(many, name).tobytes()
    assert 50 < len(one.hashes) <= 200


def test_estimate_is_close() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40_000, 2)).astype(np.float32)
    x[20_000:30_000] = x[:10_000]
    found = duplicates_among(hashes_of(x, [15_000], 4000))
    assert found.counted_share == 2.0**-3  # of 30,000 different rows 4,000 fit
    assert found.rows == pytest.approx(10_000, rel=0.1)


def test_similar_rows_have_different_hashes() -> None:
    x = np.array([[0.0, 0.0], [-0.0, 0.0], [0.0, -0.0], [1e-45, 0.0], [0.0, 1e-45]], np.float32)
    ints = np.stack(np.divmod(np.arange(2**16), 2**8), axis=1).astype(np.float32)
    for rows in (x, ints, np.full((500, 40), 2.0, np.float32) + np.eye(500, 40, -3, np.float32)):
        different = len(np.unique(rows.view(np.uint32), axis=0))
        assert len(row_hashes(rows, np.arange(len(rows))).hashes) == different


def test_hashes_are_spread_over_all_64_bits() -> None:
    ints = np.arange(2**14, dtype=np.float32)[:, None]
    hashes = row_hashes(ints, np.arange(2**14)).hashes
    bits = np.unpackbits(hashes.view(np.uint8)).reshape(-1, 64).mean(axis=0)
    np.testing.assert_allclose(bits, 0.5, atol=0.03)
