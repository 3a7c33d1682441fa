"""Who may compute: as many tasks of a worker as it has threads that do not read ahead.

A block's task comes here when its block is read. While all who may compute do, it waits with its
block, and that is as far as reading gets ahead. Nobody who has a permit waits for another task, so
everybody gets one. Merges need none: they are short, and what they merge leaves the memory.

Reading ahead gains what a read waits for a disk. A block that lies in the system's cache takes a
core to read: beside those who compute it would only be in their way, so it waits for its turn.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from numpy.typing import NDArray

from scrlm_dask.engine.workers import current_worker, metered, metered_read, reads_are_quick
from scrlm_dask.settings import computing_threads, read_ahead

_POLL_SECONDS = 0.1

_lock = threading.Lock()
# by worker: those of a cluster inside one process share this module
_permits: WeakKeyDictionary[Any, threading.Semaphore] = WeakKeyDictionary()


def _always() -> bool:
    return True


@contextmanager
def compute_slot(wanted: Callable[[], bool] = _always) -> Iterator[bool]:
    """Wait until this task may compute; says whether it is still wanted then."""
    permits = _compute_slots()
    if permits is None:
        yield wanted()
    elif _acquire(permits, wanted):
        try:
            yield wanted()
        finally:
            permits.release()
    else:
        yield False


def read_in_turn(read: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """Read a block: at once if that waits for a disk, else when a task may compute."""
    if reads_are_quick():
        permits = _compute_slots()
        if permits is not None:
            with metered("read-ahead"), permits:
                pass  # nobody keeps it while reading: who reads may not compute at all
    return metered_read(read)


def _acquire(permits: threading.Semaphore, wanted: Callable[[], bool]) -> bool:
    """Take a permit, unless the run ends before there is one."""
    if permits.acquire(blocking=False):
        return True
    with metered("read-ahead"):
        while wanted():
            if permits.acquire(timeout=_POLL_SECONDS):
                return True
    return False


def _compute_slots() -> threading.Semaphore | None:
    """Those of the worker that runs this task; none are needed where nobody reads ahead."""
    worker, ahead = current_worker(), read_ahead()
    if worker is None or ahead == 0:
        return None
    with _lock:
        if worker not in _permits:
            number = computing_threads(worker.state.nthreads, ahead)
            _permits[worker] = threading.Semaphore(number)
        return _permits[worker]
