"""Closest pairs of centers, and the rows nearest to each center."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scrlm_dask.kernels.evaluation.prototypes import (
    Prototypes,
    merge_prototypes,
    nearest_pairs,
    prototypes,
)


def test_merged_prototypes_equal_those_of_all_rows() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(-1, 4, 500).astype(np.int32)
    distances = rng.integers(0, 20, 500).astype(np.float32)  # many ties
    rows = np.arange(500)
    whole = prototypes(labels, distances, rows, 5)
    halves = [
        prototypes(labels[s], distances[s], rows[s], 5) for s in (slice(250), slice(250, 500))
    ]
    merged = merge_prototypes(halves[1], halves[0], 5)
    assert np.array_equal(merged.rows, whole.rows)
    for cluster in range(4):
        mine = sorted((distances[r], r) for r in rows if labels[r] == cluster)[:5]
        assert whole.of(cluster).tolist() == [r for _, r in mine]
    assert -1 not in whole.clusters


def test_nearest_pairs() -> None:
    points = np.random.default_rng(2).normal(size=(600, 3)) + 1e4
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    first, second = np.triu_indices(600, 1)
    order = np.argsort(distances[first, second])[:7]
    found = nearest_pairs(points, 7)
    assert np.array_equal(found.first, first[order])
    assert np.array_equal(found.second, second[order])
    assert np.allclose(found.distances, distances[first, second][order])


Rows = list[tuple[int, int]]


def nearest_of(rows: Rows, first: int, most: int) -> Prototypes:
    table = np.array(rows, np.int64).reshape(-1, 2)
    numbers = np.arange(first, first + len(rows))
    return prototypes(table[:, 0].astype(np.int32), table[:, 1].astype("f4"), numbers, most)


@given(
    rows=st.lists(st.tuples(st.integers(-1, 2), st.integers(0, 4)), max_size=30),
    cut=st.integers(0, 30),
    most=st.integers(1, 4),
)
def test_any_split_of_rows_gives_the_same_prototypes(rows: Rows, cut: int, most: int) -> None:
    cut = min(cut, len(rows))
    parts = nearest_of(rows[:cut], 0, most), nearest_of(rows[cut:], cut, most)
    for merged in (merge_prototypes(*parts, most), merge_prototypes(*parts[::-1], most)):
        for cluster in range(3):
            own = sorted((d, i) for i, (label, d) in enumerate(rows) if label == cluster)[:most]
            assert merged.of(cluster).tolist() == [i for _, i in own]
        assert merged.of(7).tolist() == []


def test_pairs_by_hand() -> None:
    # points 0, 10, 11 and 13 on a line: the smallest distances are 1, 2, 3 and 10
    found = nearest_pairs(np.array([[0.0], [10.0], [11.0], [13.0]]), 4)
    assert found.first.tolist() == [1, 2, 1, 0]
    assert found.second.tolist() == [2, 3, 3, 1]
    assert found.distances.tolist() == [1.0, 2.0, 3.0, 10.0]


def test_fewer_pairs_than_requested() -> None:
    assert nearest_pairs(np.array([[0.0], [2.0]]), 5).distances.tolist() == [2.0]
    assert len(nearest_pairs(np.array([[0.0]]), 5).first) == 0
