"""Rows with NaN, infinity or values too large: counted, named and excluded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrlm_dask.kernels.statistics.row_statistics import (
    NonFiniteRows,
    finite_rows,
    merge_nonfinite,
)


def test_by_hand() -> None:
    x = np.ones((6, 3))
    x[1, 2] = np.nan
    x[2, 0] = -np.inf
    x[3] = [np.inf, np.nan, 1]  # counted as NaN
    x[4, 1] = -1e39
    found = finite_rows(x, 100)
    assert found.unusable == NonFiniteRows(2, 1, 1, (101, 102, 103, 104))
    assert found.unusable.total == 4
    assert found.numbers.tolist() == [100, 105]
    np.testing.assert_array_equal(found.block, np.ones((2, 3)))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4"])
def test_finite_block_is_not_copied(dtype: str) -> None:
    x = np.full((5, 2), 6e4).astype(dtype)
    found = finite_rows(x, 0)
    assert found.block is x
    assert found.unusable == NonFiniteRows(0, 0, 0, ())


@given(
    kinds=st.lists(st.sampled_from([0.0, np.nan, np.inf, 1e300]), min_size=1, max_size=60),
    cut=st.integers(0, 60),
)
def test_any_split_gives_the_same_counts(kinds: list[float], cut: int) -> None:
    x = np.array(kinds)[:, None]
    cut = min(cut, len(x))
    whole = finite_rows(x, 0).unusable
    parts = finite_rows(x[:cut], 0).unusable, finite_rows(x[cut:], cut).unusable
    assert merge_nonfinite(*parts) == whole
    assert whole.first == tuple(np.flatnonzero(x[:, 0] != 0)[:10])
