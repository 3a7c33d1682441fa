"""Greedy extraction with suppression."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from scrlm_dask.kernels.distances.points import prepare_points
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.kernels.scrlm.extraction import TIE_TOLERANCE, Extraction, extract_centers
from scrlm_dask.kernels.scrlm.loss import Losses


def extract(
    x: NDArray[np.float32],
    losses: list[float],
    neighbors: list[int] | None = None,
    rows: list[int] | None = None,
    at_most: int | None = None,
    least: int = 1,
) -> Extraction:
    """Extract centers with rho and F such that R = 1."""
    p = x.shape[1]
    points = prepare_points(x, AffineMap("none", np.zeros(p), np.ones(p)))
    found = Losses(np.array(losses), np.array(neighbors or [1] * len(x)))
    return extract_centers(
        points, np.array(rows or range(len(x))), found, 1 / p**0.5, 1.0, at_most, least
    )


LINE = np.array([[0.0], [0.9], [1.8], [5.0]], np.float32)


def test_by_hand() -> None:
    # 0.9 has the lowest loss and removes 0 and 1.8 (both 0.9 away); then 5.0 is chosen
    assert extract(LINE, [-2, -3, -2, -1]).picks.tolist() == [1, 3]
    # 0 has the lowest loss and removes only 0.9; 1.8 keeps its loss and is chosen next
    assert extract(LINE, [-4, -3, -2, -1]).picks.tolist() == [0, 2, 3]


def test_maximum_number_and_minimum_neighbors() -> None:
    assert extract(LINE, [-2, -3, -2, -1], at_most=1).picks.tolist() == [1]
    assert extract(LINE, [-2, -3, -2, 0], neighbors=[1, 2, 1, 0]).picks.tolist() == [1]
    # the best candidate has too few neighbors: it is not chosen and removes no other
    found = extract(LINE, [-2, -3, -2.5, -1], neighbors=[5, 4, 5, 5], least=5)
    assert found.picks.tolist() == [2, 0, 3]
    assert found.losses.tolist() == [-2.5, -2.0, -1.0]
    assert found.neighbors.tolist() == [5, 5, 5]


def test_ties_go_to_the_lowest_row() -> None:
    x = np.array([[0.0], [10.0], [20.0]], np.float32)
    nearly = -3 * (1 - TIE_TOLERANCE / 10)
    assert extract(x, [-3.0, nearly, -3.0], rows=[7, 3, 5]).picks.tolist() == [1, 2, 0]
    clearly = -3 * (1 - 10 * TIE_TOLERANCE)
    assert extract(x, [-3.0, clearly, -3.0], rows=[7, 3, 5]).picks.tolist() == [2, 0, 1]


def test_no_candidate_with_neighbors() -> None:
    assert extract(LINE, [0.0] * 4, neighbors=[0, 0, 0, 0]).picks.tolist() == []


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 900), p=st.integers(1, 4))
def test_batches_do_not_change_the_result(seed: int, n: int, p: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 6, size=(n, p)).astype(np.float32)
    losses = -rng.permutation(n).astype(float) - 1.0  # distinct, so there are no ties
    found = extract(x, losses.tolist())
    y, left, expected = x.astype(float), set(range(n)), []
    while left:
        best = min(left, key=lambda j: losses[j])
        expected.append(best)
        left = {j for j in left if ((y[j] - y[best]) ** 2).sum() >= 1.0 * (1 / p**0.5) ** 2 * p}
    assert found.picks.tolist() == expected
