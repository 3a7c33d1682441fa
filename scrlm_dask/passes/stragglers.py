"""Block tasks that go on after their run has failed.

An exception ends a run at once, but a task in a thread cannot be stopped: it would still write its
labels, into a run directory that is being removed. So a run that failed first closes its topic,
which lets no task begin, and waits for those in hand.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from scrlm_dask.passes.clients import current_client

_POLL_SECONDS = 0.02
_MOST_SECONDS = 60.0

_lock = threading.Lock()
_in_hand: Counter[str] = Counter()  # block tasks that this process works on, by topic
_closed: set[str] = set()


class RunEndedError(RuntimeError):
    """Raised in tasks that begin when their run is over; nobody is there to see it."""


@contextmanager
def in_hand(topic: str) -> Iterator[None]:
    """Count a block task of the run while it works."""
    with _lock:
        if topic in _closed:
            raise RunEndedError(f"the run {topic} is over")
        _in_hand[topic] += 1
    try:
        yield
    finally:
        with _lock:
            _in_hand[topic] -= 1
            if _in_hand[topic] == 0:
                del _in_hand[topic]


def wait_for_stragglers(topic: str) -> None:
    """Let no more tasks of the run begin, wherever they are, and wait for those in hand."""
    client = current_client()
    if client is None:
        asyncio.run(_settle(topic))
        return
    if client.status == "running":  # a cluster that is gone writes nothing any more
        with suppress(Exception):
            client.run(_settle, topic, on_error="ignore")


async def _settle(topic: str) -> None:
    with _lock:
        _closed.add(topic)
    for _ in range(round(_MOST_SECONDS / _POLL_SECONDS)):
        with _lock:
            if topic not in _in_hand:
                return
        await asyncio.sleep(_POLL_SECONDS)
