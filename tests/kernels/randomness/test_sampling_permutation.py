"""A permutation that is computed place by place is one, and mixes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import chisquare

from scrlm_dask.kernels.randomness.sampling import Permutation


@given(n_rows=st.integers(1, 3000), seed=st.integers(0, 2**40))
@example(n_rows=1, seed=0)
@example(n_rows=256, seed=0)  # the whole of the smallest domain
@example(n_rows=257, seed=0)
@example(n_rows=1025, seed=0)
def test_every_row_has_a_place_of_its_own(n_rows: int, seed: int) -> None:
    places = Permutation(n_rows, seed).places(np.arange(n_rows))
    np.testing.assert_array_equal(np.sort(places), np.arange(n_rows))


@given(cuts=st.lists(st.integers(0, 500), max_size=5))
def test_a_place_depends_on_the_row_alone(cuts: list[int]) -> None:
    permutation = Permutation(500, 7)
    whole = permutation.places(np.arange(500))
    pieces = np.split(np.arange(500), sorted(cuts))
    np.testing.assert_array_equal(np.concatenate([permutation.places(p) for p in pieces]), whole)


def test_places_of_more_rows_than_memory_could_hold() -> None:
    n_rows = 10**12
    rows = np.array([0, 1, 2, 10**11, n_rows - 1])
    places = Permutation(n_rows, 3).places(rows)
    assert len(set(places.tolist())) == len(rows)
    assert ((places >= 0) & (places < n_rows)).all()


@pytest.mark.parametrize("n_rows", [12, 40])
def test_over_seeds_every_place_is_equally_likely(n_rows: int) -> None:
    seeds = 400
    counts = np.zeros((n_rows, n_rows))
    for seed in range(seeds):
        counts[np.arange(n_rows), Permutation(n_rows, seed).places(np.arange(n_rows))] += 1
    # seeds are fixed, so this does not flicker
    assert chisquare(counts, axis=1).pvalue.min() > 1e-5


def test_neighbours_do_not_stay_neighbours() -> None:
    places = Permutation(100_000, 1).places(np.arange(100_000))
    assert abs(np.corrcoef(places, np.arange(100_000))[0, 1]) < 0.02
    assert (np.abs(np.diff(places)) == 1).mean() < 1e-3
    # rows of one block of the source go to all blocks of the store alike
    blocks = np.bincount(places[:10_000] // 10_000, minlength=10)
    assert chisquare(blocks).pvalue > 1e-6
