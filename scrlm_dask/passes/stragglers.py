"""Block tasks that go on after their run has failed.

An exception ends a run at once, but a task in a thread cannot be stopped: it would still write its
labels, into a run directory that is being removed. So a run that failed first closes its topic,
which lets no task begin, and waits for those in hand: not for long if somebody wants to leave, or
if a worker does not answer, since what such a run has done is kept.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from scrlm_dask.passes.clients import current_client

_POLL_SECONDS = 0.02
_PATIENCE, _LITTLE_PATIENCE = 60.0, 5.0  # seconds

_lock = threading.Lock()
_in_hand: Counter[str] = Counter()  # block tasks that this process works on, by topic
_closed: set[str] = set()


class RunIsOverError(Exception):
    """A task of a run that has failed began too late; nobody waits for what it says."""


@contextmanager
def in_hand(topic: str) -> Iterator[Callable[[], bool]]:
    """Count a block task of the run while it works; gives whether the run still wants it."""
    with _lock:
        _in_hand[topic] += 1
    try:
        yield lambda: _is_wanted(topic)
    finally:
        with _lock:
            _in_hand[topic] -= 1
            if _in_hand[topic] == 0:
                del _in_hand[topic]


def wait_for_stragglers(topic: str, *, leaving: bool = False) -> None:
    """Let no more tasks of the run begin, wherever they are, and wait for those in hand."""
    client, seconds = current_client(), _LITTLE_PATIENCE if leaving else _PATIENCE
    if client is None:
        _close(topic)
        # not asyncio.run: a notebook's cell has an event loop already
        for _ in range(int(seconds / _POLL_SECONDS)):
            if not _is_busy(topic):
                return
            time.sleep(_POLL_SECONDS)
    elif client.status == "running":  # a cluster that is gone writes nothing any more
        # in a thread, since a worker that hangs would not let go of this one
        asking = threading.Thread(target=_settle_all, args=(client, topic, seconds), daemon=True)
        asking.start()
        asking.join(seconds + 1.0)


def _settle_all(client: Any, topic: str, seconds: float) -> None:
    with suppress(Exception):
        client.run(_settle, topic, seconds, on_error="ignore")


async def _settle(topic: str, seconds: float) -> None:
    """On a worker, whose event loop must go on meanwhile."""
    _close(topic)
    for _ in range(int(seconds / _POLL_SECONDS)):
        if not _is_busy(topic):
            return
        await asyncio.sleep(_POLL_SECONDS)


def _close(topic: str) -> None:
    with _lock:
        _closed.add(topic)


def _is_wanted(topic: str) -> bool:
    with _lock:
        return topic not in _closed


def _is_busy(topic: str) -> bool:
    with _lock:
        return topic in _in_hand
