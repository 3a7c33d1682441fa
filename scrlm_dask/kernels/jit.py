"""Numba decorator of all kernels: releases the GIL, one thread, with a compilation cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def jit(*fastmath: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that compiles a kernel with the given fast-math flags of LLVM."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        options: dict[str, Any] = {"nogil": True, "fastmath": set(fastmath) or False}
        try:
            return njit(cache=True, **options)(function)  # type: ignore[no-any-return]
        except RuntimeError:  # no writable cache directory: compile in each process
            return njit(**options)(function)  # type: ignore[no-any-return]

    return decorate
