"""Covariance without cancellation, and its spectrum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scrlm_dask.kernels.distances.points import prepare_points
from scrlm_dask.kernels.distances.preprocessing import block_moments, fit_map
from scrlm_dask.kernels.statistics.covariance import (
    axes_holding,
    block_comoments,
    merge_comoments,
    sampled_spectrum,
    spectrum,
)


def test_by_hand() -> None:
    # means 2 and 0; deviations (-1, 1), (0, -2), (1, 1)
    found = block_comoments(np.array([[1, 1], [2, -2], [3, 1]], np.float32), False)
    assert (found.count, found.mean.tolist()) == (3, [2.0, 0.0])
    assert found.products.tolist() == [[2.0, 0.0], [0.0, 6.0]]
    none = fit_map("none", 2, None)
    np.testing.assert_allclose(spectrum(found, none), [2.0, 2 / 3])


@example(seed=232, rows=1511, cut=0, offset=0.0, dtype="float32", unit_length=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 2500),
    cut=st.integers(0, 2500),
    offset=st.sampled_from([0.0, 1e4, -1e7]),
    dtype=st.sampled_from(["float32", "float64", ">f4"]),
    unit_length=st.booleans(),
)
def test_any_split_gives_the_covariance_of_all_rows(
    seed: int, rows: int, cut: int, offset: float, dtype: str, unit_length: bool
) -> None:
    x = (np.random.default_rng(seed).normal(size=(rows, 3)) + offset).astype(dtype)
    merged = merge_comoments(
        block_comoments(x[:cut], unit_length), block_comoments(x[cut:], unit_length)
    )
    y = x.astype(np.float64)
    if unit_length:
        y /= np.linalg.norm(y, axis=1)[:, None]
    d = y - y.mean(axis=0)
    assert merged.count == rows
    # a mean near zero is only as exact as the numbers that cancel in it
    largest = float(np.abs(y).max())
    np.testing.assert_allclose(merged.mean, y.mean(axis=0), rtol=1e-12, atol=1e-15 * largest)
    scale = max(1e-30, float(np.abs(d).max())) ** 2 * rows
    np.testing.assert_allclose(merged.products, d.T @ d, rtol=1e-7, atol=1e-7 * scale + 1e-24)


@pytest.mark.parametrize("kind", ["none", "center", "scale", "standardize", "l2"])
def test_spectrum_of_the_mapped_rows(kind: Any) -> None:
    rng = np.random.default_rng(3)
    x = (rng.normal(size=(400, 6)) * [1, 2, 3, 0.1, 5, 1] + 4).astype(np.float32)
    affine = fit_map(kind, 6, None if kind in ("none", "l2") else block_moments(x))
    y = x.astype(np.float64)
    if kind == "l2":
        y /= np.linalg.norm(y, axis=1)[:, None]
    expected = np.linalg.eigvalsh(
        np.cov((y - affine.shift) * affine.scale, rowvar=False, bias=True)
    )
    found = spectrum(block_comoments(x, kind == "l2"), affine)
    np.testing.assert_allclose(found, expected[::-1], rtol=1e-9)
    sampled = sampled_spectrum(prepare_points(x, affine))
    np.testing.assert_allclose(sampled, expected[::-1], rtol=1e-4)


def test_axes() -> None:
    assert axes_holding(np.array([8.0, 1.0, 1.0]), 0.9) == 2
    assert axes_holding(np.array([8.0, 0.9, 0.6, 0.5]), 0.9) == 3
    assert axes_holding(np.array([1.0]), 0.9) == 1
    assert axes_holding(np.zeros(3), 0.9) == 0
    assert axes_holding(np.empty(0), 0.9) == 0


def test_low_rank_has_no_negative_variances() -> None:
    x = np.random.default_rng(0).normal(size=(50, 2)) @ np.ones((2, 8))
    found = spectrum(block_comoments(x, False), fit_map("none", 8, None))
    assert (found >= 0).all()
    assert axes_holding(found, 0.9) == 1
