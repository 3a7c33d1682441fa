"""Trial bandwidths on a sample, computed from one table of distances."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrlm_dask.kernels.bandwidth.ladder import (
    BandwidthTrial,
    find_clusters,
    judge,
    make_ladder,
    pair_sq_distances,
    trial_losses,
)
from scrlm_dask.kernels.distances.points import prepare_points
from scrlm_dask.kernels.distances.preprocessing import fit_map


def table(raw: list[list[float]], n_candidates: int | None = None) -> np.ndarray:
    """Return squared distances by their definition, in float32."""
    x = np.array(raw)
    n = len(x) if n_candidates is None else n_candidates
    return np.square(x[:n, None] - x[None]).sum(axis=2).astype(np.float32)


LINE = [[0.0], [1.0], [2.0], [10.0], [11.0], [30.0]]


@pytest.mark.parametrize("far", [0.0, 1e6])
def test_distances_of_pairs(far: float) -> None:
    raw = np.random.default_rng(0).normal(size=(300, 5)) + far
    raw[7] = raw[3]
    raw[8] = raw[3] + 1e-4  # float32 products would lose this difference
    points = prepare_points(raw, fit_map("none", 5, None))
    found = pair_sq_distances(points, 280)
    expected = np.square(raw[:280, None] - raw[None]).sum(axis=2)
    assert found.shape == (280, 300)
    np.testing.assert_allclose(found, expected, rtol=2e-3 if far == 0.0 else 0.3, atol=1e-6)
    assert found[3, 7] == 0.0
    assert (found[np.arange(280), np.arange(280)] == 0.0).all()


def test_ladder_rises_from_near_to_far_pairs() -> None:
    radii = make_ladder(table(LINE))
    assert (np.diff(radii) > 0.0).all()
    assert radii[0] == pytest.approx(1.0)  # the nearest neighbors are 1 apart
    positive = table(LINE)[table(LINE) > 0.0]
    assert radii[-1] == pytest.approx(np.quantile(positive, 0.6))
    steps = radii[1:] / radii[:-1]
    np.testing.assert_allclose(steps, steps[0])
    assert 8 <= len(radii) <= 64


def test_no_ladder_for_equal_rows() -> None:
    assert len(make_ladder(table([[1.0]] * 4))) == 0


def test_ladder_for_repeated_rows_starts_below_all_distances() -> None:
    radii = make_ladder(table([[0.0], [0.0], [3.0], [3.0]]))
    assert radii[0] < 9.0
    assert len(radii) >= 8


def test_losses_by_hand() -> None:
    # F = 2, R^2 = 2: candidate 0 has one neighbor at 1: 2 (1 / 2 - 1) = -1; candidate 1 has two
    small, large = trial_losses(table(LINE, 3), np.array([2.0, 8.0]), 2.0)
    assert small.neighbors.tolist() == [1, 2, 1]
    assert small.losses.tolist() == [-1.0, -2.0, -1.0]
    # R^2 = 8: candidate 0 has neighbors at 1 and 4: 2 (5 / 8 - 2) = -2.75
    assert large.neighbors.tolist() == [2, 2, 2]
    assert large.losses.tolist() == [-2.75, -3.5, -2.75]


@given(
    values=st.lists(st.integers(0, 40), min_size=2, max_size=12),
    radii=st.lists(st.integers(1, 400), min_size=1, max_size=5, unique=True),
)
def test_losses_of_many_radii_equal_those_of_each(values: list[int], radii: list[int]) -> None:
    distances = table([[float(value)] for value in values])
    rising = np.array(sorted(radii), np.float64)
    for sq_radius, losses in zip(rising, trial_losses(distances, rising, 2.5), strict=True):
        inside = (distances < sq_radius) & ~np.eye(len(values), dtype=bool)
        expected = 2.5 * np.where(inside, distances / sq_radius - 1.0, 0.0).sum(axis=1)
        assert losses.neighbors.tolist() == inside.sum(axis=1).tolist()
        np.testing.assert_allclose(losses.losses, expected, atol=1e-9)


def test_clusters_by_hand() -> None:
    distances = table(LINE)
    (losses,) = trial_losses(distances, np.array([2.0]), 2.5)
    # row 1 has the lowest loss and removes 0 and 2; of 3 and 4 the first wins; 30 has no neighbor
    found = find_clusters(distances, losses, 2.0, 2.5, min_neighbors=1)
    assert found.picks.tolist() == [1, 3]
    assert found.labels.tolist() == [0, 0, 0, 1, 1, -1]
    assert found.boundary_share == 0.0
    few = find_clusters(distances, losses, 2.0, 2.5, min_neighbors=2)
    assert few.picks.tolist() == [1]
    assert few.labels.tolist() == [0, 0, 0, -1, -1, -1]


def test_rows_at_the_boundary() -> None:
    # R^2 = 100: 81 and 100 and 121 are between 80 and 125, of which 81 is inside
    distances = table([[0.0], [9.0], [10.0], [11.0], [12.0], [1.0]], 1)
    labels, inside, boundary = judge(distances, np.array([0]), 100.0)
    assert labels.tolist() == [0, 0, -1, -1, -1, 0]
    assert (inside, boundary) == (3, 3)


def test_rows_belong_to_the_nearest_pick() -> None:
    labels, *_ = judge(table([[0.0], [10.0], [4.0], [7.0], [90.0]], 2), np.array([1, 0]), 1e3)
    assert labels.tolist() == [1, 0, 1, 0, -1]


def test_record_has_the_keys_of_the_file_format() -> None:
    trial = BandwidthTrial(0.5, 3, 0.9, 0.25, (1.0, 2.0, 3.0), cluster_rows=12.5)
    assert trial.shell == 0.25
    assert trial.record() == {
        "rho": 0.5,
        "clusters": 3,
        "coverage": 0.9,
        "shell": 0.25,
        "neighbors": (1.0, 2.0, 3.0),
        "held_out": None,
        "merged": None,
        "cluster_rows": 12.5,
    }
