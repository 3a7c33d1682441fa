"""Random choices with a separate stream for each purpose."""

from __future__ import annotations

import numpy as np

from scrlm_dask.kernels.randomness.sampling import (
    Purpose,
    row_uniforms,
    rows_within,
    sample_rows,
    stream,
    weighted_keys,
)


def test_sampled_rows_are_distinct_sorted_and_reproducible() -> None:
    rows = sample_rows(3, Purpose.CANDIDATES, 1000, 200)
    assert len(np.unique(rows)) == 200
    assert (np.diff(rows) > 0).all()
    assert rows.min() >= 0
    assert rows.max() < 1000
    np.testing.assert_array_equal(rows, sample_rows(3, Purpose.CANDIDATES, 1000, 200))
    np.testing.assert_array_equal(sample_rows(3, Purpose.CANDIDATES, 50, 50), np.arange(50))


def test_sampled_rows_are_fixed() -> None:
    # if this changes, all results that users have stored can no longer be reproduced
    assert sample_rows(0, Purpose.CANDIDATES, 100, 5).tolist() == [6, 30, 52, 80, 99]


def test_seed_and_purpose_matter() -> None:
    a = sample_rows(0, Purpose.CANDIDATES, 10**6, 100)
    assert not np.array_equal(a, sample_rows(1, Purpose.CANDIDATES, 10**6, 100))
    assert not np.array_equal(a, sample_rows(0, Purpose.LOSS_ROWS, 10**6, 100))
    assert stream(0, Purpose.SYNTH_ROWS, 1).random() != stream(0, Purpose.SYNTH_ROWS, 2).random()


def test_rows_are_sampled_uniformly() -> None:
    hits = np.zeros(20)
    for seed in range(2000):
        hits[sample_rows(seed, Purpose.CANDIDATES, 20, 5)] += 1
    assert np.abs(hits - 500).max() < 5 * np.sqrt(2000 * 0.25 * 0.75)


def test_rows_within() -> None:
    rows = np.array([1, 4, 5, 9], np.int64)
    assert rows_within(rows, 4, 9).tolist() == [4, 5]
    assert rows_within(rows, 10, 20).tolist() == []


def test_uniform_number_of_a_row_does_not_depend_on_the_split() -> None:
    whole = row_uniforms(4, Purpose.INIT_ROUNDS, 0, 5000, 1)
    assert len(whole) == 5000
    for start, stop in ((0, 1), (1023, 1025), (1024, 2048), (777, 4999), (5000, 5000)):
        piece = row_uniforms(4, Purpose.INIT_ROUNDS, start, stop, 1)
        np.testing.assert_array_equal(piece, whole[start:stop])
    assert abs(whole.mean() - 0.5) < 5 * np.sqrt(1 / 12 / 5000)
    assert len(np.unique(whole)) == 5000
    for other in (
        row_uniforms(5, Purpose.INIT_ROUNDS, 0, 5000, 1),
        row_uniforms(4, Purpose.INIT_ROWS, 0, 5000, 1),
        row_uniforms(4, Purpose.INIT_ROUNDS, 0, 5000, 2),
    ):
        assert not np.array_equal(whole, other)


def test_weighted_keys_draw_by_weight() -> None:
    weights = np.array([1.0, 0.0, 2.0, 5.0])
    rng, firsts = np.random.default_rng(0), np.zeros(4)
    for _ in range(4000):
        keys = weighted_keys(weights, rng.random(4))
        assert keys[1] == -np.inf
        firsts[int(np.argmax(keys))] += 1
    share = weights / weights.sum()
    assert (np.abs(firsts - 4000 * share) <= 5 * np.sqrt(4000 * share * (1 - share))).all()
    # also if the uniform number is 0
    assert weighted_keys(np.zeros(1), np.zeros(1)).tolist() == [-np.inf]
