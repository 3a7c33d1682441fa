"""The Numba decorator of all kernels: no GIL, no own threads, compiled once per machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def jit(*fastmath: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a kernel, with the given liberties of LLVM's fast math."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        options: dict[str, Any] = {"nogil": True, "fastmath": set(fastmath) or False}
        try:
            return njit(cache=True, **options)(function)  # type: ignore[no-any-return]
        except RuntimeError:  # no place to write to: each process compiles for itself
            return njit(**options)(function)  # type: ignore[no-any-return]

    return decorate
