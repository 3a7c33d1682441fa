"""Residual extraction, by hand and by its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scrlm_dask.kernels.scrlm.extraction import extract_residual


def pairs(points: np.ndarray, n: int) -> np.ndarray:
    return np.square(points[:n, None] - points[None]).sum(-1).astype(np.float32)


def naive(sq: np.ndarray, sq_radius: float, most: int, least: int) -> list[int]:
    open_rows, picks = np.ones(sq.shape[1], bool), []
    while len(picks) < most:
        inside = (sq < sq_radius) & open_rows
        inside[np.arange(len(sq)), np.arange(len(sq))] = False
        gains = np.where(inside, 1.0 - sq.astype(float) / sq_radius, 0.0).sum(axis=1)
        gains[inside.sum(axis=1) < least] = -1.0
        gains[picks] = -1.0
        if gains.max() < 0.0:
            break
        picks.append(int(np.argmax(gains)))
        open_rows &= ~(sq[picks[-1]] < sq_radius)
    return picks


def test_covered_rows_are_not_counted_again() -> None:
    """There are five rows near 0, three near 1.5 and two near 9; the radius is 1."""
    points = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 1.5, 1.6, 1.7, 9.0, 9.5])[:, None]
    found = extract_residual(pairs(points, 10), 1.0, 2.5, 10, 1)
    assert found.picks.tolist() == [2, 6, 8]
    assert found.neighbors.tolist() == [4, 2, 1]
    gain = 4 - (0.04 + 0.01 + 0.01 + 0.04)
    assert found.losses == pytest.approx([-2.5 * gain, -2.5 * (2 - 0.02), -2.5 * 0.75], rel=1e-5)
    assert extract_residual(pairs(points, 10), 1.0, 2.5, 2, 1).picks.tolist() == [2, 6]
    assert extract_residual(pairs(points, 10), 1.0, 2.5, 10, 2).picks.tolist() == [2, 6]
    assert extract_residual(pairs(points, 10), 1e-4, 2.5, 10, 1).picks.tolist() == []


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 12), st.integers(0, 20), st.integers(1, 3), st.integers(0, 10**6))
def test_equals_the_definition(n: int, more: int, least: int, seed: int) -> None:
    points = np.random.default_rng(seed).normal(size=(n + more, 2))
    sq = pairs(points, n)
    for sq_radius in (0.05, 0.5, 4.0):
        found = extract_residual(sq, sq_radius, 2.5, 8, least)
        assert found.picks.tolist() == naive(sq, sq_radius, 8, least)
