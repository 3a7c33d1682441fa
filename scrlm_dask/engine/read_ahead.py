"""Limit concurrent compute tasks per worker, so that spare threads can prefetch blocks.

A block's task comes here when its block is read. It waits with its block while all compute slots
are taken, so each spare thread prefetches one block. A task never waits for another task while it
holds a slot, so this cannot deadlock. Merges need no slot: they are short, and free memory.

Prefetching pays while reads wait for a disk. Reading a block from the system's cache takes a core,
which the compute tasks would lose; such a read waits for its turn.
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
# by worker: those of a cluster inside one process share this module
_slots: WeakKeyDictionary[Any, threading.Semaphore] = WeakKeyDictionary()


def _always() -> bool:
    return True


@contextmanager
def compute_slot(is_active: Callable[[], bool] = _always) -> Iterator[bool]:
    """Wait until this task may compute; yield whether its run is still active then."""
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
    """Read a block: at once if reads wait for a disk, else when a compute slot is free."""
    slots = _compute_slots() if reads_are_quick() else None
    if slots is not None:
        with metered("read-ahead"), slots:
            pass  # released before the read: this task may not compute yet
    return timed_read(read)


def _acquire(slots: threading.Semaphore, is_active: Callable[[], bool]) -> bool:
    """Take a slot; return False if the run ends before one is free."""
    if slots.acquire(blocking=False):
        return True
    with metered("read-ahead"):
        while is_active():
            if slots.acquire(timeout=_POLL_SECONDS):
                return True
    return False


def _compute_slots() -> threading.Semaphore | None:
    """Return the slots of the worker that runs this task; None without read-ahead threads."""
    worker, ahead = current_worker(), read_ahead()
    if worker is None or ahead == 0:
        return None
    with _lock:
        if worker not in _slots:
            number = computing_threads(worker.state.nthreads, ahead)
            _slots[worker] = threading.Semaphore(number)
        return _slots[worker]
