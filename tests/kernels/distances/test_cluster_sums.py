"""Sums per cluster: by hand, by definition, and for any split of the rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrlm_dask.kernels.distances.cluster_sums import (
    ClusterSums,
    SummedRows,
    cluster_drifts,
    merge_sums,
    sum_rows,
)
from scrlm_dask.kernels.distances.points import prepare_points
from scrlm_dask.kernels.distances.preprocessing import AffineMap

CENTERS, SCALE = np.array([[0.0, 0.0], [3.0, -2.0], [7.0, 7.0]]), np.array([1.0, 2.0])


def sum_with_labels(
    x: np.ndarray,
    labels: np.ndarray,
    sq_radius: float = math.inf,
    weights: np.ndarray | None = None,
) -> SummedRows:
    points = prepare_points(CENTERS, AffineMap("none", np.zeros(2), SCALE))
    return sum_rows(x, labels.astype(np.int32), np.ones(len(x)), points, sq_radius, weights)


def test_by_hand() -> None:
    # the center is (3, -2): (4, -2) is 1 away, (3, 0) is 2 away, which is 4 in model units
    x = np.array([[4.0, -2.0], [3.0, 0.0], [9.0, 9.0], [0.0, 0.0]])
    found = sum_with_labels(x, np.array([1, 1, -1, 0]), weights=np.array([2.0, 1.0, 5.0, 0.5]))
    assert found.labels.tolist() == [1, 1, -1, 0]
    np.testing.assert_array_equal(found.sq_distances, [1.0, 16.0, np.nan, 0.0])
    sums = found.sums
    assert sums.counts.tolist() == [1, 2, 0]
    assert sums.masses.tolist() == [0.5, 3.0, 0.0]
    assert sums.offsets.tolist() == [[0.0, 0.0], [2.0, 2.0], [0.0, 0.0]]
    assert sums.sq_distances.tolist() == [0.0, 2 * 1.0 + 16.0, 0.0]
    assert sums.input_sq_distances.tolist() == [0.0, 2 * 1.0 + 4.0, 0.0]
    assert (sums.n_rows, sums.total_mass) == (4, 8.5)
    # an empty cluster does not move
    np.testing.assert_allclose(cluster_drifts(sums), [[0, 0], [2 / 3, 2 / 3], [0, 0]])


@pytest.mark.parametrize(("sq_radius", "labels"), [(16.0, [1, -1]), (16.5, [1, 1])])
def test_rows_outside_the_radius_become_outliers(sq_radius: float, labels: list[int]) -> None:
    given_labels = np.array([1, 1], np.int32)
    found = sum_with_labels(np.array([[4.0, -2.0], [3.0, 0.0]]), given_labels, sq_radius)
    assert found.labels.tolist() == labels
    assert found.sums.counts.sum() == labels.count(1)
    assert found.sums.n_rows == 2
    assert given_labels.tolist() == [1, 1]  # the input is not changed


def by_definition(x: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> ClusterSums:
    own = [(x[labels == k] - center, weights[labels == k]) for k, center in enumerate(CENTERS)]
    return ClusterSums(
        counts=np.array([len(w) for _, w in own]),
        masses=np.array([w.sum() for _, w in own]),
        offsets=np.array([w @ d for d, w in own]),
        sq_distances=np.array([w @ np.square(d * SCALE).sum(axis=1) for d, w in own]),
        input_sq_distances=np.array([w @ np.square(d).sum(axis=1) for d, w in own]),
        n_rows=len(x),
        total_mass=float(weights.sum()),
    )


@given(
    rows=st.lists(
        st.tuples(*[st.integers(-50, 50)] * 2, st.integers(-1, 2), st.integers(0, 3)), max_size=30
    ),
    cut=st.integers(0, 30),
)
def test_merging_any_split_equals_the_whole(
    rows: list[tuple[int, int, int, int]], cut: int
) -> None:
    # float64 adds integers without rounding, so the sums are exactly equal
    numbers = np.array(rows, dtype=np.float64).reshape(-1, 4)
    x, labels, weights = numbers[:, :2], numbers[:, 2].astype(np.int32), numbers[:, 3]
    parts = [
        sum_with_labels(x[some], labels[some], weights=weights[some]).sums
        for some in (slice(cut), slice(cut, None))
    ]
    merged, expected = merge_sums(*parts), by_definition(x, labels, weights)
    for name, value in vars(expected).items():
        np.testing.assert_array_equal(getattr(merged, name), value, err_msg=name)
