"""Block tasks that go on after their run has failed.

An exception ends a run at once, but a task in a thread cannot be stopped: it would still write its
labels, into a run directory that is being removed. So a run that failed first closes its topic,
which lets no task begin, and waits for those in hand.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from scrlm_dask.passes.clients import current_client

_POLL_SECONDS = 0.02
_MOST_POLLS = 3000  # a minute

_lock = threading.Lock()
_in_hand: Counter[str] = Counter()  # block tasks that this process works on, by topic
_closed: set[str] = set()


@contextmanager
def in_hand(topic: str) -> Iterator[bool]:
    """Count a block task of the run while it works; says whether the run still wants it."""
    with _lock:
        wanted = topic not in _closed
        _in_hand[topic] += 1
    try:
        yield wanted
    finally:
        with _lock:
            _in_hand[topic] -= 1
            if _in_hand[topic] == 0:
                del _in_hand[topic]


def wait_for_stragglers(topic: str) -> None:
    """Let no more tasks of the run begin, wherever they are, and wait for those in hand."""
    client = current_client()
    if client is None:
        _close(topic)
        # not asyncio.run: a notebook's cell has an event loop already
        for _ in range(_MOST_POLLS):
            if not _is_busy(topic):
                return
            time.sleep(_POLL_SECONDS)
    elif client.status == "running":  # a cluster that is gone writes nothing any more
        with suppress(Exception):
            client.run(_settle, topic, on_error="ignore")


async def _settle(topic: str) -> None:
    """On a worker, whose event loop must go on meanwhile."""
    _close(topic)
    for _ in range(_MOST_POLLS):
        if not _is_busy(topic):
            return
        await asyncio.sleep(_POLL_SECONDS)


def _close(topic: str) -> None:
    with _lock:
        _closed.add(topic)


def _is_busy(topic: str) -> bool:
    with _lock:
        return topic in _in_hand
