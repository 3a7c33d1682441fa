"""Limit concurrent compute tasks per worker, so that spare threads can prefetch blocks.

A block task requests a compute slot after it has read its block. While all slots are in use it
waits with the block in memory, so each spare thread prefetches one block. A task never waits for
another task while it has a slot, so this cannot deadlock. Merge tasks need no slot: they are short
and free memory.

Prefetching helps while reads wait for a disk. A read from the operating system's cache uses a core,
which the compute tasks would lose; such a read waits until a slot is free.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from numpy.typing import NDArray

from scrlm_dask.engine.workers import current_worker, metered, reads_are_quick, timed_read
from scrlm_dask.settings import computing_threads, read_ahead

_POLL_SECONDS = 0.1

_lock = threading.Lock()
# one semaphore per worker, because a process may have several workers
_slots: WeakKeyDictionary[Any, threading.Semaphore] = WeakKeyDictionary()


def _always() -> bool:
    return True


@contextmanager
def compute_slot(is_active: Callable[[], bool] = _always) -> Iterator[bool]:
    """Wait for a compute slot or the end of the run; yield whether the run is still active."""
    slots = _compute_slots()
    if slots is None:
        yield is_active()
    elif _acquire(slots, is_active):
        try:
            yield is_active()
        finally:
            slots.release()
    else:
        yield False


def read_in_turn(read: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """Read rows: immediately if reads wait for a disk, otherwise when a compute slot is free."""
    slots = _compute_slots() if reads_are_quick() else None
    if slots is not None:
        with metered("read-ahead"), slots:
            pass  # released before the read: the task does not compute yet
    return timed_read(read)


def _acquire(slots: threading.Semaphore, is_active: Callable[[], bool]) -> bool:
    """Acquire a slot; return False if the run ends before one is free."""
    if slots.acquire(blocking=False):
        return True
    with metered("read-ahead"):
        while is_active():
            if slots.acquire(timeout=_POLL_SECONDS):
                return True
    return False


def _compute_slots() -> threading.Semaphore | None:
    """Return the slots of the worker that runs this task; None if no threads prefetch."""
    worker, ahead = current_worker(), read_ahead()
    if worker is None or ahead == 0:
        return None
    with _lock:
        if worker not in _slots:
            number = computing_threads(worker.state.nthreads, ahead)
            _slots[worker] = threading.Semaphore(number)
        return _slots[worker]
