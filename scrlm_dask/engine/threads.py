"""Threads and memory of this process.

Dask runs one task per thread, so each library may use one thread inside a task. Two libraries that
each used all cores in every task were measured to be ten times slower.
"""

from __future__ import annotations

import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

# Imported so that their thread pools are loaded, and detected, before threads are limited.
import numba
import numpy as np  # noqa: F401
import scipy.linalg  # noqa: F401
from threadpoolctl import OpenBLASController, ThreadpoolController

_lock = threading.Lock()
_depth = 0
_limits = ExitStack()
_PER_THREAD = ["openmp", "mkl", "blis", "flexiblas"]


@contextmanager
def pinned_threads() -> Iterator[None]:
    """Limit BLAS, OpenMP and Numba to one thread in a `with` block.

    OpenBLAS has one limit per process: the first thread that enters sets it, the last thread that
    leaves restores it. All other limits apply to the calling thread.
    """
    global _depth
    before = numba.get_num_threads()  # first: this call loads Numba's thread pool
    with _controller().select(internal_api=_PER_THREAD).limit(limits=1):
        with _lock:
            if _depth == 0:
                _take_openblas()
                _limits.enter_context(_controller().select(internal_api="openblas").limit(limits=1))
            _depth += 1
        numba.set_num_threads(1)
        try:
            yield
        finally:
            numba.set_num_threads(before)
            with _lock:
                _depth -= 1
                if _depth == 0:
                    _take_openblas()
                    _limits.close()


def _take_openblas() -> None:
    """Let this thread set OpenBLAS limits: threadpoolctl >= 3.7 ignores all but one thread."""
    clear = getattr(OpenBLASController, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)


@cache
def _controller() -> Any:
    return ThreadpoolController()


def effective_threads() -> dict[str, int]:
    """Return the number of threads that each library reports inside a task."""
    with pinned_threads():
        threads = {"numba": int(numba.get_num_threads())}
        for pool in _controller().info():
            name = f"{pool['user_api']}:{pool['internal_api']}"
            threads[name] = max(threads.get(name, 0), int(pool["num_threads"]))
    return threads


def peak_memory() -> int:
    """Return the peak resident memory of this process in bytes.

    On Linux it is read from /proc, because `ru_maxrss` of a spawned process starts at the memory of
    its parent.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its finished child processes."""
    usages = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def process_report() -> dict[str, Any]:
    """Return peak memory and threads of this process, for the record in `run.json`."""
    return {"peak_memory_bytes": peak_memory(), "threads": effective_threads()}
