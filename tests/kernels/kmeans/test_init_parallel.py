"""k-means||: distances of rows to the drawn points, and drawing of more points."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scrlm_dask.kernels.distances.points import Points, prepare_points
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.kernels.kmeans.init import DrawnRows, RowCosts, draw_rows, merge_drawn, row_costs


def points(raw: list[list[float]]) -> Points:
    return prepare_points(np.array(raw), AffineMap("none", np.zeros(1), np.ones(1)))


ROWS = np.array([[0.0], [4.0], [10.0]], np.float32)


def test_row_costs_by_hand() -> None:
    first = row_costs(ROWS, points([[1.0]]), 0, None)
    assert first.sq_distances.tolist() == [1.0, 9.0, 81.0]
    assert first.nearest.tolist() == [0, 0, 0]
    # 7 and 1 are equally far from 4: the earlier point keeps the row
    second = row_costs(ROWS, points([[7.0], [11.0]]), 1, first)
    assert second.sq_distances.tolist() == [1.0, 9.0, 1.0]
    assert second.nearest.tolist() == [0, 0, 2]
    assert second.nearest.dtype == np.int64


def test_row_is_drawn_by_its_own_random_number() -> None:
    masses = np.array([1.0, 3.0, 0.0])
    # the probabilities 2 * mass / 4 are 0.5, 1 and 0
    drawn = draw_rows(ROWS, 50, np.array([0.49, 0.999, 0.0]), masses, 2.0, 4.0)
    assert drawn.numbers.tolist() == [50, 51]
    assert drawn.raw.tolist() == [[0.0], [4.0]]
    none = draw_rows(ROWS, 50, np.array([0.5, 0.0, 0.0]), np.array([1.0, 0.0, 0.0]), 2.0, 4.0)
    assert none.numbers.tolist() == []
    assert none.raw.shape == (0, 1)


def test_expected_number_of_draws() -> None:
    rng = np.random.default_rng(0)
    masses = rng.exponential(size=20_000)
    x = np.zeros((20_000, 1), np.float32)
    counts = [
        len(draw_rows(x, 0, rng.random(20_000), masses, 100.0, masses.sum()).numbers)
        for _ in range(50)
    ]
    assert np.mean(counts) == pytest.approx(100.0, abs=5 * 10 / math.sqrt(50))


def test_merge_keeps_the_order() -> None:
    a = DrawnRows(np.array([1, 5]), np.array([[1.0], [5.0]]))
    b = DrawnRows(np.array([9]), np.array([[9.0]]))
    merged = merge_drawn(a, b)
    assert merged.numbers.tolist() == [1, 5, 9]
    assert merged.raw.tolist() == [[1.0], [5.0], [9.0]]


def test_costs_after_several_rounds_equal_those_of_one() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 1)).astype(np.float32)
    raw = rng.normal(size=(30, 1)).tolist()
    costs: RowCosts | None = None
    for begin in range(0, 30, 7):
        costs = row_costs(x, points(raw[begin : begin + 7]), begin, costs)
    whole = row_costs(x, points(raw), 0, None)
    assert costs is not None
    np.testing.assert_array_equal(costs.nearest, whole.nearest)
    np.testing.assert_array_equal(costs.sq_distances, whole.sq_distances)
