"""The decorator that compiles kernels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from scrlm_dask.kernels.jit import jit


@jit()
def count_nan(x):  # type: ignore[no-untyped-def]
    n = 0
    for i in range(len(x)):
        n += math.isnan(x[i])
    return n


def test_kernels_release_the_gil_and_keep_nan() -> None:
    kernel: Any = count_nan
    assert kernel(np.array([1.0, np.nan, np.inf])) == 1
    assert kernel.nopython_signatures
    assert kernel.targetoptions["nogil"] is True
    assert not kernel.targetoptions["fastmath"]
    assert not kernel.targetoptions.get("parallel", False)


@pytest.mark.parametrize("flags", [("reassoc",), ("reassoc", "contract")])
def test_only_the_given_fastmath_flags_are_set(flags: tuple[str, ...]) -> None:
    kernel: Any = jit(*flags)(count_nan.py_func)  # type: ignore[attr-defined]
    assert kernel.targetoptions["fastmath"] == set(flags)


def test_function_that_cannot_be_cached_is_compiled() -> None:
    names: dict[str, Any] = {}
    exec(compile("def double(x):\n    return 2 * x\n", "/nowhere/at/all.py", "exec"), names)
    assert jit()(names["double"])(21) == 42
