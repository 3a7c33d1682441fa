"""Counts of integers, and classes of labels."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrlm_dask.kernels.statistics.histograms import (
    Classes,
    classes_among,
    count_values,
    merge_counts,
)


@given(values=st.lists(st.integers(-3, 3), max_size=40), cut=st.integers(0, 40))
def test_any_split_gives_the_counts_of_a_dictionary(values: list[int], cut: int) -> None:
    x = np.array(values, np.int32)
    found = merge_counts(count_values(x[:cut]), count_values(x[cut:]))
    assert dict(zip(found.values.tolist(), found.counts.tolist(), strict=True)) == Counter(values)
    assert found.total == len(values)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([0, 0, 1, -1], Classes(2, 0.25)),
        ([5], Classes(1, 0.0)),
        ([-1, -1], Classes(0, 1.0)),
    ],
)
def test_classes_by_hand(labels: list[int], expected: Classes) -> None:
    assert classes_among(count_values(np.array(labels))) == expected
