"""Permutations that are computed position by position."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import chisquare

from scrlm_dask.kernels.randomness.sampling import Permutation


@given(n_rows=st.integers(1, 3000), seed=st.integers(0, 2**40))
@example(n_rows=1, seed=0)
@example(n_rows=256, seed=0)  # the full size of the smallest domain
@example(n_rows=257, seed=0)
@example(n_rows=1025, seed=0)
def test_every_row_has_its_own_position(n_rows: int, seed: int) -> None:
    places = Permutation(n_rows, seed).places(np.arange(n_rows))
    np.testing.assert_array_equal(np.sort(places), np.arange(n_rows))


@given(cuts=st.lists(st.integers(0, 500), max_size=5))
def test_position_depends_only_on_the_row(cuts: list[int]) -> None:
    permutation = Permutation(500, 7)
    whole = permutation.places(np.arange(500))
    pieces = np.split(np.arange(500), sorted(cuts))
    np.testing.assert_array_equal(np.concatenate([permutation.places(p) for p in pieces]), whole)


def test_positions_of_more_rows_than_fit_into_memory() -> None:
    n_rows = 10**12
    rows = np.array([0, 1, 2, 10**11, n_rows - 1])
    places = Permutation(n_rows, 3).places(rows)
    assert len(set(places.tolist())) == len(rows)
    assert ((places >= 0) & (places < n_rows)).all()


@pytest.mark.parametrize("n_rows", [12, 40])
def test_positions_are_uniform_over_seeds(n_rows: int) -> None:
    seeds = 400
    counts = np.zeros((n_rows, n_rows))
    for seed in range(seeds):
        counts[np.arange(n_rows), Permutation(n_rows, seed).places(np.arange(n_rows))] += 1
    # the seeds are fixed, so this test is deterministic
    assert chisquare(counts, axis=1).pvalue.min() > 1e-5


def test_adjacent_rows_are_separated() -> None:
    places = Permutation(100_000, 1).places(np.arange(100_000))
    assert abs(np.corrcoef(places, np.arange(100_000))[0, 1]) < 0.02
    assert (np.abs(np.diff(places)) == 1).mean() < 1e-3
    # rows of one block of the source are distributed evenly over the blocks of the store
    blocks = np.bincount(places[:10_000] // 10_000, minlength=10)
    assert chisquare(blocks).pvalue > 1e-6
