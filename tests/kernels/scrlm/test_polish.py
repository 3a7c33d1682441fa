"""Polishing moves centers to the mean of the rows inside their radius."""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from lloyd_oracle import directions
from numpy.typing import NDArray

from scrlm_dask.kernels.distances.points import prepare_points
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.kernels.scrlm.polish import merge_polish, polish_centers, polish_part


def affine(p: int, kind: Any = "none", scale: float = 1.0) -> AffineMap:
    return AffineMap(kind, np.zeros(p), np.full(p, scale))


def test_by_hand() -> None:
    # R = 3 around 0 and 4: 2 is inside both, 3 on the radius of 0, 7 on that of 4, 9 outside
    x = np.array([[1.0], [2], [3], [7], [9]], np.float32)
    centers = np.array([[0.0], [4.0]], np.float32)
    part = polish_part(x, prepare_points(centers, affine(1)), 9.0)
    assert part.counts.tolist() == [2, 2]
    assert part.offsets.tolist() == [[3.0], [-3.0]]
    assert polish_centers(centers, part, False).tolist() == [[1.5], [2.5]]


def test_center_without_rows_does_not_move() -> None:
    x = np.array([[100.0]])
    part = polish_part(x, prepare_points(np.array([[5.0]]), affine(1)), 1.0)
    assert polish_centers(np.array([[5.0]]), part, False).tolist() == [[5.0]]


def test_unit_length_by_hand() -> None:
    x = np.array([[5.0, 0.0], [0.0, 2.0], [-1.0, 0.0]])
    part = polish_part(x, prepare_points(np.array([[7.0, 7.0]]), affine(2, "l2")), 1.0)
    assert part.counts.tolist() == [2]  # (-1, 0) is 1.85 away from (0.7, 0.7)
    np.testing.assert_allclose(
        polish_centers(np.array([[7.0, 7.0]]), part, True), [[np.sqrt(0.5), np.sqrt(0.5)]]
    )


@settings(max_examples=80)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 100),
    p=st.integers(1, 20),
    k=st.integers(1, 20),
    offset=st.sampled_from([0.0, 1e4]),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    spherical=st.booleans(),
    cut=st.integers(0, 100),
)
def test_equals_a_naive_loop(
    seed: int, rows: int, p: int, k: int, offset: float, dtype: str, spherical: bool, cut: int
) -> None:
    rng = np.random.default_rng(seed)
    x: NDArray[Any] = (rng.normal(size=(rows, p)) + offset).astype(dtype)
    centers = x[rng.integers(rows, size=k)]
    sq_radius = 0.5 if spherical else 1.7 * p
    here = prepare_points(centers, affine(p, "l2" if spherical else "none"))
    part = reduce(
        merge_polish, [polish_part(piece, here, sq_radius) for piece in (x[:cut], x[cut:])]
    )
    y, c = (directions(a) if spherical else a.astype(np.float64) for a in (x, centers))
    for j in range(k):
        sq = ((y - c[j]) ** 2).sum(axis=1)
        if (np.abs(sq - sq_radius) < 1e-9).any():
            continue
        inside = sq < sq_radius
        assert part.counts[j] == inside.sum()
        mean = y[inside].mean(axis=0)
        expected = mean / np.linalg.norm(mean) if spherical else mean
        found = polish_centers(centers, part, spherical)[j]
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
