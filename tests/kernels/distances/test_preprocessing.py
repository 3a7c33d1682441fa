"""Moments without cancellation, and the preprocessing maps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrlm_dask.errors import NonFiniteRowError
from scrlm_dask.kernels.distances.preprocessing import (
    Moments,
    block_moments,
    fit_map,
    merge_moments,
    native_float,
    needs_moments,
    zero_rows,
)


def test_moments_by_hand() -> None:
    # 1, 2, 6: mean 3, squared deviations 4 + 1 + 9 = 14
    moments = block_moments(np.array([[1.0], [2.0], [6.0]], np.float32))
    assert (moments.count, moments.mean[0], moments.m2[0]) == (3, 3.0, 14.0)


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 1500),
    cut=st.integers(0, 1500),
    offset=st.sampled_from([0.0, 1e4, -1e8]),
    dtype=st.sampled_from(["float32", "float64", ">f4"]),
)
def test_any_split_gives_the_moments_of_all_rows(
    seed: int, rows: int, cut: int, offset: float, dtype: str
) -> None:
    x = (np.random.default_rng(seed).normal(size=(rows, 3)) + offset).astype(dtype)
    merged = merge_moments(block_moments(x[:cut]), block_moments(x[cut:]))
    y = x.astype(np.float64)
    assert merged.count == rows
    np.testing.assert_allclose(merged.mean, y.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(merged.m2, y.var(axis=0) * rows, rtol=1e-7, atol=1e-9)


def test_float16_is_summed_in_float64() -> None:
    x = np.full((5000, 1), 60000, np.float16)  # two of them overflow float16
    assert block_moments(x).mean[0] == float(np.float16(60000))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_row_is_named(bad: float) -> None:
    x = np.ones((1300, 2), np.float32)
    x[700, 1] = bad
    with pytest.raises(NonFiniteRowError) as caught:
        block_moments(x)
    assert caught.value.row == 700


def test_row_with_overflowing_squares_is_named() -> None:
    x = np.ones((10, 1))
    x[4] = 1e200
    with pytest.raises(NonFiniteRowError) as caught:
        block_moments(x)
    assert caught.value.row == 4


MOMENTS = Moments(4, np.array([1.0, 5.0, -2.0]), np.array([16.0, 0.0, 64.0]))  # var 4, 0, 16


def test_maps_by_hand() -> None:
    standard = fit_map("standardize", 3, MOMENTS)
    np.testing.assert_array_equal(standard.shift, MOMENTS.mean)
    np.testing.assert_array_equal(
        standard.scale, [0.5, 1.0, 0.25]
    )  # a constant feature is not scaled
    center = fit_map("center", 3, MOMENTS)
    np.testing.assert_array_equal(center.shift, MOMENTS.mean)
    np.testing.assert_array_equal(center.scale, np.ones(3))
    scale = fit_map("scale", 3, MOMENTS)  # mean variance 20 / 3
    np.testing.assert_array_equal(scale.shift, np.zeros(3))
    np.testing.assert_allclose(scale.scale, np.full(3, (3 / 20) ** 0.5))
    for kind in ("none", "l2"):
        plain = fit_map(kind, 3, None)
        np.testing.assert_array_equal(plain.shift, np.zeros(3))
        np.testing.assert_array_equal(plain.scale, np.ones(3))
        assert plain.unit_length == (kind == "l2")
        assert not needs_moments(kind)


def test_rounding_errors_of_a_constant_feature_are_ignored() -> None:
    x = np.full((100_000, 1), 0.1, np.float32)
    assert fit_map("standardize", 1, block_moments(x)).scale.tolist() == [1.0]
    small = np.full((1000, 1), 1e6)
    small[::2] += 1e-3  # a real spread far from the origin is kept
    assert fit_map("standardize", 1, block_moments(small)).scale[0] == pytest.approx(2000, rel=1e-3)


def test_native_float() -> None:
    for dtype, expected in (("f2", "f4"), (">f4", "f4"), ("f8", "f8"), (">f8", "f8")):
        x = native_float(np.asfortranarray(np.arange(6).reshape(2, 3).astype(dtype)))
        assert x.dtype == np.dtype(expected)
        assert x.dtype.isnative
        assert x.flags.c_contiguous


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_rows_of_zeros(dtype: str) -> None:
    rows = np.array([[0, 0], [0, 1], [1, 0], [-0.0, 0], [np.nan, 0], [0, 6e-8]], dtype)
    assert zero_rows(rows).tolist() == [0, 3]
    assert zero_rows(rows[:0]).tolist() == []
