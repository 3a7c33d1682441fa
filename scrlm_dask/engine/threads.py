"""Threads and memory of this process.

Dask runs one task per thread, so the libraries inside a task get one thread each. Two libraries
that each use all cores for every task were measured to run ten times slower.
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

# Imported so that their thread pools are loaded, and seen, before the first pin.
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
    """Limit BLAS, OpenMP and Numba to one thread while any thread of this process is inside.

    The limits of BLAS and OpenMP apply to the whole process: the first thread in sets them, the
    last one out restores them. Numba's applies to the calling thread.
    """
    global _depth
    before = numba.get_num_threads()  # first: it loads Numba's own pool
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
    """Make the calling thread the one that threadpoolctl (from 3.7 on) obeys: it obeys only one."""
    clear = getattr(OpenBLASController, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)


@cache
def _controller() -> Any:
    return ThreadpoolController()


def effective_threads() -> dict[str, int]:
    """Return the number of threads of each library inside a task, as the libraries report it."""
    with pinned_threads():
        threads = {"numba": int(numba.get_num_threads())}
        for pool in _controller().info():
            name = f"{pool['user_api']}:{pool['internal_api']}"
            threads[name] = max(threads.get(name, 0), int(pool["num_threads"]))
    return threads


def peak_memory() -> int:
    """Return the largest resident memory of this process so far, in bytes.

    On Linux from /proc: `ru_maxrss` of a spawned process starts at its parent's memory.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def cpu_seconds() -> float:
    """Return the CPU seconds of all threads of this process and of its ended children."""
    usages = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def process_report() -> dict[str, Any]:
    """Return what `run.json` records of each worker."""
    return {"peak_memory_bytes": peak_memory(), "threads": effective_threads()}
