"""The radius of a share of outliers, and the pass that computes distances of sampled rows."""

from __future__ import annotations

import math
from typing import Any

import dask
import numpy as np
import pytest
from backends import BACKENDS, backend
from hypothesis import given, settings
from hypothesis import strategies as st

from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.features import as_features
from scrlm_dask.engine.threads import pinned_threads
from scrlm_dask.events import BlockDone
from scrlm_dask.kernels.distances.nearest_center import measure_rows, nearest_centers
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.kernels.distances.pruning import prepare_centers
from scrlm_dask.passes.radius import distances_pass, radius_of_share

# --- the radius of a share -----------------------------------------------------------------------


def outside(sq_distances: np.ndarray, radius: float) -> int:
    """Return the number of rows that are labelled as outliers."""
    return int((~(sq_distances < radius**2)).sum())


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(1, 10**6), min_size=2, max_size=60, unique=True), st.floats(0.001, 0.999)
)
def test_share_of_distinct_distances_is_exact(distances: list[int], share: float) -> None:
    sq_distances = np.square(np.array(distances, float))
    expected = min(round(share * len(distances)), len(distances) - 1)
    assert outside(sq_distances, radius_of_share(sq_distances, share)) == expected


@pytest.mark.parametrize(
    ("share", "sq_radius"),
    [
        (0.2, (9 + 16) / 2),  # one of five rows is outside
        (0.4, (4 + 9) / 2),
        (0.25, (9 + 16) / 2),  # 1.25 rows
        (0.8, (0 + 1) / 2),
        (0.99, (0 + 1) / 2),  # one row stays inside
    ],
)
def test_radius_by_hand(share: float, sq_radius: float) -> None:
    sq_distances = np.array([9.0, 0.0, 16.0, 1.0, 4.0])
    assert radius_of_share(sq_distances, share) == pytest.approx(math.sqrt(sq_radius))


def test_share_that_rounds_to_no_row() -> None:
    sq_distances = np.array([9.0, 0.0, 16.0, 1.0, 4.0])
    radius = radius_of_share(sq_distances, 0.05)
    assert radius == pytest.approx(4.0, rel=1e-5)
    assert outside(sq_distances, radius) == 0


@pytest.mark.parametrize(("share", "number"), [(0.2, 1), (0.4, 1), (0.6, 1), (0.8, 4)])
def test_equal_distances_stay_inside(share: float, number: int) -> None:
    sq_distances = np.array([1.0, 4.0, 4.0, 4.0, 9.0])
    assert outside(sq_distances, radius_of_share(sq_distances, share)) == number


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.floats(0.0, 1.0))
def test_share_is_never_exceeded(distances: list[int], share: float) -> None:
    sq_distances = np.square(np.array(distances, float))
    radius = radius_of_share(sq_distances, share)
    assert 0.0 < radius < math.inf
    most = min(round(share * len(distances)), len(distances) - 1)
    at_centers = int((sq_distances == 0.0).sum())
    assert outside(sq_distances, radius) <= min(most, len(distances) - at_centers)


def test_rows_are_not_reordered() -> None:
    sq_distances = np.array([9.0, 1.0, 4.0])
    radius_of_share(sq_distances, 0.5)
    assert sq_distances.tolist() == [9.0, 1.0, 4.0]


def test_one_row() -> None:
    assert math.isfinite(radius_of_share(np.array([4.0]), 0.9))


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_rows_at_their_centers_are_not_outliers(share: float) -> None:
    assert outside(np.zeros(5), radius_of_share(np.zeros(5), share)) == 0


# --- the pass ------------------------------------------------------------------------------------

ROWS, FEATURES, BLOCK = 500, 6, 64
RNG = np.random.default_rng(0)
X = RNG.normal(size=(ROWS, FEATURES)).astype(np.float32)
CENTERS = RNG.normal(size=(9, FEATURES))
AFFINE = AffineMap("standardize", RNG.normal(size=FEATURES), np.linspace(0.5, 2.0, FEATURES))
SOME = np.sort(RNG.choice(ROWS, 120, replace=False))


def run_pass(block_rows: int, rows: np.ndarray, events: list[Any] | None = None) -> np.ndarray:
    listener = (lambda event: None) if events is None else events.append
    centers = dask.delayed(prepare_centers)(CENTERS, AFFINE)
    with Execution(listener) as execution:
        return distances_pass(execution, as_features(X, block_rows), centers, rows, len(CENTERS))


def plain_loop(rows: np.ndarray) -> np.ndarray:
    """Compute the expected result block by block, without Dask."""
    centers, parts = prepare_centers(CENTERS, AFFINE), []
    with pinned_threads():
        for start in range(0, ROWS, BLOCK):
            some = X[rows[(rows >= start) & (rows < start + BLOCK)]]
            parts.append(measure_rows(some, nearest_centers(some, centers), centers))
    return np.concatenate(parts)


@pytest.mark.cluster
@pytest.mark.parametrize("name", BACKENDS)
def test_every_backend_equals_the_plain_loop(name: str) -> None:
    with backend(name):
        found = run_pass(BLOCK, SOME)
    assert found.dtype == np.float64
    assert found.tobytes() == plain_loop(SOME).tobytes()


def test_distances_are_those_to_the_nearest_center() -> None:
    with backend("one thread"):
        found = run_pass(BLOCK, SOME)
    mapped = (X[SOME, None].astype(float) - CENTERS) * AFFINE.scale
    np.testing.assert_allclose(found, np.square(mapped).sum(axis=-1).min(axis=1), rtol=1e-12)


@pytest.mark.parametrize("block_rows", [1, 7, 64, 499, 500])
def test_distances_do_not_depend_on_the_blocks(block_rows: int) -> None:
    with backend("one thread"):
        np.testing.assert_array_equal(run_pass(block_rows, SOME), plain_loop(SOME))


def test_only_blocks_with_sampled_rows_are_read() -> None:
    rows, events = np.array([3, 70, 71, 499]), []
    with backend("one thread"):
        found = run_pass(BLOCK, rows, events)
    np.testing.assert_array_equal(found, plain_loop(rows))
    assert sum(isinstance(event, BlockDone) for event in events) == 3


def test_radius_leaves_the_share_outside() -> None:
    with backend("one thread"):
        sq_distances = run_pass(BLOCK, np.arange(ROWS))
    for share in (0.01, 0.1, 0.5):
        assert outside(sq_distances, radius_of_share(sq_distances, share)) == share * ROWS
