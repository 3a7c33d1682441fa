"""The choice of the preprocessing map on a sample."""

from __future__ import annotations

import numpy as np
import pytest

from scrlm_dask.kernels.bandwidth.representation import (
    RepresentationTrial,
    best_representation,
    has_unit_rows,
    judge_maps,
)
from scrlm_dask.kernels.distances.preprocessing import AffineMap, block_moments, fit_map


def trials(*values: tuple[float, float]) -> list[RepresentationTrial]:
    """Return trials with the given modularities and gaps."""
    kinds = ("standardize", "l2", "center")
    return [
        RepresentationTrial(kinds[i], 7, modularity, gap)
        for i, (modularity, gap) in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("values", "best"),
    [
        (((0.4, 0.05), (0.9, 0.09), (0.8, 0.0)), 0),  # no map shows structure
        (((0.4, 0.3), (0.5, 0.29), (0.6, 0.28)), 2),  # similar gaps: highest modularity
        (((0.4, 0.3), (0.5, 0.29), (0.9, 0.2)), 1),  # the last gap is too small
        (((0.4, 0.3), (0.4, 0.3), (0.4, 0.3)), 1),  # equal: l2
        (((0.41, 0.3), (0.4, 0.3), (0.41, 0.3)), 1),  # almost equal: l2
        (((0.5, 0.3), (0.4, 0.3), (0.5, 0.3)), 0),  # l2 is worse, the others are equal
        (((0.9, 0.0), (0.2, 0.13), (0.9, -0.2)), 1),
        (((0.5, -0.1),), 0),
    ],
)
def test_best_of_trials_by_hand(values: tuple[tuple[float, float], ...], best: int) -> None:
    assert best_representation(trials(*values)) == best


# --- rows of unit length -------------------------------------------------------------------------


def directions(n: int, p: int) -> np.ndarray:
    rows = np.random.default_rng(0).normal(size=(n, p))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("p", [2, 384])
def test_rounded_unit_rows_are_recognized(dtype: str, p: int) -> None:
    assert has_unit_rows(directions(300, p).astype(dtype))


def test_share_of_other_rows() -> None:
    rows = directions(1000, 8).astype(np.float32)
    rows[:9] *= 0.5
    assert has_unit_rows(rows)
    rows[:11] *= 0.5
    assert not has_unit_rows(rows)


def test_rows_of_zeros_are_ignored() -> None:
    rows = directions(1000, 8).astype(np.float32)
    rows[:600] = 0.0
    assert has_unit_rows(rows)
    rows[600:610] *= 0.5
    assert not has_unit_rows(rows)


@pytest.mark.parametrize("length", [0.9, 0.98, 1.02, 1.1, 100.0])
def test_rows_of_other_lengths(length: float) -> None:
    assert not has_unit_rows(length * directions(300, 8))


def test_rows_of_different_lengths_or_zeros() -> None:
    rng = np.random.default_rng(0)
    assert not has_unit_rows(rng.normal(size=(300, 100)) / 10.0)  # unit length only on average
    assert not has_unit_rows(np.zeros((10, 3)))


# --- judged maps ---------------------------------------------------------------------------------


def maps_of(rows: np.ndarray) -> list[AffineMap]:
    moments, p = block_moments(rows), rows.shape[1]
    return [
        fit_map("standardize", p, moments),
        fit_map("l2", p, None),
        fit_map("center", p, moments),
    ]


def groups(n: int, p: int, k: int, spread: float) -> tuple[np.ndarray, np.random.Generator]:
    rng = np.random.default_rng(0)
    centers = spread * rng.normal(size=(k, p))
    return centers[rng.integers(k, size=n)] + rng.normal(size=(n, p)), rng


def test_clusters_in_small_features_need_standardization() -> None:
    rows, rng = groups(800, 10, 8, 4.0)
    rows = np.c_[rows, 1e4 * rng.normal(size=(800, 10))]
    judged = judge_maps(rows, maps_of(rows), None)
    assert [trial.preprocess for trial in judged] == ["standardize", "l2", "center"]
    assert judged[0].gap > 0.2 > 0.1 > max(judged[1].gap, judged[2].gap)
    assert best_representation(judged) == 0


def test_clusters_of_directions_need_unit_length() -> None:
    rows, rng = groups(800, 20, 8, 6.0)
    rows *= rng.lognormal(0.0, 2.0, (800, 1))
    judged = judge_maps(rows, maps_of(rows), None)
    assert best_representation(judged) == 1
    assert 7 <= judged[1].clusters <= 10


def test_standardization_is_not_used_if_it_amplifies_noise() -> None:
    rows, rng = groups(800, 15, 8, 6.0)
    rows = np.c_[rows, 0.01 * rng.normal(size=(800, 1000))]
    judged = judge_maps(rows, maps_of(rows), None)
    assert judged[0].gap < 0.1 < 0.2 < judged[2].gap
    assert judged[2].clusters == 8
    assert best_representation(judged) != 0


@pytest.mark.parametrize(("n_clusters", "used"), [(1, 1), (5, 5), (1000, 50)])
def test_requested_number_of_clusters_is_used(n_clusters: int, used: int) -> None:
    """At most one cluster per eight rows can be compared."""
    rows, _ = groups(400, 5, 6, 8.0)
    judged = judge_maps(rows, maps_of(rows), n_clusters)
    assert [trial.clusters for trial in judged] == [used] * 3


def test_only_the_first_rows_are_judged() -> None:
    rows, _ = groups(2100, 5, 6, 8.0)
    maps = maps_of(rows)[:1]
    assert judge_maps(rows, maps, 6) == judge_maps(rows[:2048], maps, 6)
