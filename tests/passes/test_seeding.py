"""Initial centers of k-means: samples of rows and the passes of k-means||."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest
from backends import backend
from hypothesis import given, settings
from hypothesis import strategies as st

from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.features import as_features
from scrlm_dask.kernels.bandwidth.search import ScanSizes
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.passes import seeding
from scrlm_dask.passes.survey import survey_pass

X = np.array([[0.0], [1.0], [5.0], [9.0], [10.0]])
PLAIN = AffineMap("none", np.zeros(1), np.ones(1))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with backend("one thread"):
        yield


def column(values: Any, block_rows: int) -> da.Array:
    return da.from_array(np.asarray(values, np.float64)[:, None], chunks=(block_rows, 1))


@settings(max_examples=10)
@given(block_rows=st.integers(1, 40), size=st.integers(1, 20))
def test_weighted_samples_do_not_depend_on_blocks(block_rows: int, size: int) -> None:
    weights = np.arange(40) % 4  # 30 rows have a positive weight
    found = seeding.choose_rows(3, 40, size, column(weights, block_rows))
    np.testing.assert_array_equal(found, seeding.choose_rows(3, 40, size, column(weights, 40)))
    assert len(set(found.tolist())) == size
    assert found.tolist() == sorted(found.tolist())
    assert (weights[found] > 0).all()


def test_fewer_rows_of_positive_weight_than_requested() -> None:
    weights = np.zeros(10)
    weights[[2, 7]] = 1.0, 5.0
    assert seeding.choose_rows(0, 10, 6, column(weights, 3)).tolist() == [2, 7]


def test_equal_weights_draw_the_same_rows_as_no_weights() -> None:
    plain = seeding.choose_rows(5, 100, 9, None)
    found = seeding.choose_rows(5, 100, 9, column(np.full(100, 2.5), 30))
    np.testing.assert_array_equal(found, plain)


def test_heavy_rows_are_drawn_more_often() -> None:
    weights = column(np.where(np.arange(20) < 10, 1.0, 50.0), 20)
    drawn = [seeding.choose_rows(seed, 20, 3, weights) for seed in range(10)]
    assert np.mean(np.concatenate(drawn) >= 10) > 0.8


def survey_of(execution: Execution, x: np.ndarray) -> Any:
    return survey_pass(execution, as_features(x), np.arange(len(x)), with_moments=False)


def test_gathered_rows_and_plus_plus_centers() -> None:
    groups = np.repeat([[0.0], [50.0], [900.0]], 5, axis=0) + np.arange(15)[:, None] / 100
    with Execution(lambda event: None) as execution:
        survey = survey_of(execution, groups)
        np.testing.assert_array_equal(seeding.gather_rows(survey), groups)
        found = seeding.plus_plus_centers(survey, PLAIN, 3, seed=1)
    assert set(found[:, 0]) <= set(groups[:, 0])
    assert sorted(np.searchsorted([25.0, 500.0], found[:, 0])) == [0, 1, 2]  # one per group


def test_scrlm_starts_for_several_radii() -> None:
    rng = np.random.default_rng(0)
    groups = np.repeat([[0.0], [50.0], [900.0]], 20, axis=0) + rng.normal(size=(60, 1))
    with Execution(lambda event: None) as execution:
        survey = survey_of(execution, groups)
        starts = seeding.scrlm_starts(survey, PLAIN, 3, ScanSizes(50, 50, 10), seed=1)
        none = seeding.scrlm_starts(
            survey_of(execution, np.ones((4, 1))), PLAIN, 3, ScanSizes(4, 4, 0), seed=1
        )
    rhos = [start.rho for start in starts]
    assert rhos == sorted(set(rhos))
    assert len(rhos) > 1
    best = min(starts, key=lambda start: start.mean_sq_distance)
    np.testing.assert_allclose(np.sort(best.centers[:, 0]), [0.0, 50.0, 900.0], atol=1.5)
    assert none == []  # equal rows have no radius


@pytest.mark.parametrize("block_rows", [1, 2, 5])
@pytest.mark.parametrize("weighted", [False, True])
def test_costs_by_hand(block_rows: int, weighted: bool) -> None:
    weights = column([1.0, 2.0, 3.0, 4.0, 0.0], block_rows) if weighted else None
    with Execution(lambda event: None) as execution:
        features = as_features(X, block_rows)
        first = seeding.cost_pass(execution, features, X[:1], PLAIN, 0, None, weights)
        # The squared distances to 0 are 0, 1, 25, 81 and 100.
        assert first.total_cost == (2.0 + 75.0 + 324.0 if weighted else 207.0)
        assert first.masses.tolist() == [10.0 if weighted else 5.0]
        both = seeding.cost_pass(execution, features, X[4:], PLAIN, 1, first, weights)
        # The row at 5 is equally far from 0 and 10; the earlier point wins.
        assert both.total_cost == (2.0 + 75.0 + 4.0 if weighted else 1.0 + 25.0 + 1.0)
        assert both.masses.tolist() == ([6.0, 4.0] if weighted else [3.0, 2.0])
        assert both.columns["nearest"].compute()[:, 0].tolist() == [0, 0, 0, 1, 1]
        assert both.columns["sq_distances"].compute()[:, 0].tolist() == [0.0, 1.0, 25.0, 1.0, 0.0]


def test_draws_do_not_depend_on_blocks_and_follow_the_costs() -> None:
    found = []
    for block_rows in (1, 2, 5):
        with Execution(lambda event: None) as execution:
            features = as_features(X, block_rows)
            cover = seeding.cost_pass(execution, features, X[:1], PLAIN, 0, None, None)
            some = seeding.draw_pass(execution, features, cover, 2.0, None, seed=1, turn=0)
            # If the mean number of draws is large, all rows of positive cost are drawn.
            most = seeding.draw_pass(execution, features, cover, 1e9, None, seed=1, turn=0)
            weights = column([1.0, 1.0, 0.0, 1.0, 1.0], block_rows)
            others = seeding.draw_pass(execution, features, cover, 1e9, weights, seed=1, turn=0)
        assert most.numbers.tolist() == [1, 2, 3, 4]
        assert most.raw.tolist() == X[1:].tolist()
        assert others.numbers.tolist() == [1, 3, 4]
        found.append(some.numbers.tolist())
    assert found[0] == found[1] == found[2]
