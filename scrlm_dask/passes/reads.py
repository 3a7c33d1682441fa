"""Reads of blocks, and the seconds spent on them: in Dask's fine performance metrics, and for the
record of a run.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from numpy.typing import NDArray

# Disks and networks give a thread less than this; more comes from memory, and costs a core's time.
_QUICK_BYTES_A_SECOND = 400e6
_TELLING_BYTES = 2**20  # a shorter read is mostly the call

_lock = threading.Lock()
_seconds = 0.0  # of all threads of this process, since it began
_last_rate = 0.0  # bytes a second of the latest read


def metered_read(read: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """Read, and count the time as reading."""
    global _seconds, _last_rate
    begin, n_bytes = time.perf_counter(), 0
    try:
        with metered("read"):
            rows = read()
        n_bytes = rows.nbytes
        return rows
    finally:
        seconds = time.perf_counter() - begin
        with _lock:
            _seconds += seconds
            if n_bytes >= _TELLING_BYTES:
                _last_rate = n_bytes / seconds


def seconds_read() -> float:
    with _lock:
        return _seconds


def reads_are_quick() -> bool:
    """Whether the latest read of this process waited for nothing, as it looks."""
    with _lock:
        return _last_rate > _QUICK_BYTES_A_SECOND


def metered(activity: str) -> AbstractContextManager[Any]:
    """The time inside as an activity of its own in the metrics of the Dask task that is here."""
    if "distributed" not in sys.modules:
        return nullcontext()
    from distributed.metrics import context_meter

    meter: AbstractContextManager[Any] = context_meter.meter(activity)
    return meter
