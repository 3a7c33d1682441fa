"""What a scheduler knows of a cluster that makes no progress.

Dask's own dump asks every worker, and waits for ever for one that hangs.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from scrlm_dask.engine.features import Features
from scrlm_dask.engine.workers import current_client
from scrlm_dask.errors import ClusterError

_MOST_KEYS = 20


def cluster_state(client: Any) -> dict[str, Any]:
    """Workers with their tasks, and how many tasks are in which state, by name: plain JSON."""
    state: dict[str, Any] = client.run_on_scheduler(_state)
    return state


def _state(dask_scheduler: Any) -> dict[str, Any]:
    now = time.time()
    tasks = Counter((task.prefix.name, task.state) for task in dask_scheduler.tasks.values())
    workers = {
        address: {
            "name": str(worker.name),
            "status": worker.status.name,
            "seconds_silent": now - worker.last_seen,
            "threads": worker.nthreads,
            "memory_bytes": worker.metrics.get("memory"),
            "memory_limit": worker.memory_limit,
            "processing": [str(task.key) for task in list(worker.processing)[:_MOST_KEYS]],
        }
        for address, worker in dask_scheduler.workers.items()
    }
    counted = [{"name": name, "state": kind, "tasks": n} for (name, kind), n in tasks.items()]
    return {"workers": workers, "tasks": counted, "events": _last_events(dask_scheduler)}


def _last_events(dask_scheduler: Any) -> list[str]:
    """What the scheduler noted last, such as workers that came and went."""
    return [str(event) for event in list(dask_scheduler.get_events("all"))[-_MOST_KEYS:]]


_POLL_SECONDS = 0.02


_PATIENCE, _LITTLE_PATIENCE = 60.0, 5.0  # seconds


_lock = threading.Lock()


_in_hand: Counter[str] = Counter()  # block tasks that this process works on, by topic


_closed: set[str] = set()


class RunIsOverError(Exception):
    """A task of a run that has failed began too late; nobody waits for what it says."""


@contextmanager
def track_task(topic: str) -> Iterator[Callable[[], bool]]:
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


def drain_tasks(topic: str, *, leaving: bool = False) -> None:
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


_NAMED = 4  # blocks in a message


@contextmanager
def explain_killed_workers(
    name: str, features: Features, blocks: Sequence[int], tasks: str | None = None
) -> Iterator[None]:
    """Say which block of a pass it was that too many workers died with.

    `tasks` is what the tasks of its blocks are called, if it has some beside the reads. Dask blames
    all that a lost worker had before it, so a block that waited its turn each time is as much
    suspected as the one that was at work.
    """
    try:
        yield
    except Exception as error:
        key = _key_of_the_killed(error)
        if key is None:
            raise
        found = {_block_of(suspect, features, blocks, tasks) for suspect in (key, *_suspects())}
        suspected = sorted(block for block in found if block is not None)
        if not suspected:
            raise ClusterError(
                f"workers were lost again and again in the pass {name}, at last with the task "
                f"{key}; see their logs, give them more memory, or smaller blocks"
            ) from error
        raise ClusterError(
            f"{_named(suspected, features)} of {features.what} was in the hands of "
            f"every worker that was lost in the pass {name}: it needs more memory than they have, "
            "or its data is poison; look at it with `scrlm inspect --verify`, or give workers "
            "more memory, or smaller blocks"
        ) from error


def _named(blocks: list[int], features: Features) -> str:
    some = ", ".join(_rows_of(block, features) for block in blocks[:_NAMED])
    if len(blocks) == 1:
        return f"block {some}"
    return f"one of the blocks {some}" + (", ..." if len(blocks) > _NAMED else "")


def _rows_of(block: int, features: Features) -> str:
    start = block * features.block_rows
    return f"{block} (rows {start} to {min(start + features.block_rows, features.n_rows) - 1})"


def _key_of_the_killed(error: Exception) -> Any | None:
    """The task that Dask gave up on, if it did."""
    if "distributed" not in sys.modules:
        return None
    from distributed import KilledWorker

    return error.task if isinstance(error, KilledWorker) else None


def _suspects() -> list[Any]:
    """Keys of all tasks that Dask gave up on for lost workers; none if the scheduler is lost."""
    client = current_client()
    try:
        return [] if client is None else list(client.run_on_scheduler(_given_up))
    except Exception:  # whatever it is: there is an error to tell already
        return []


def _given_up(dask_scheduler: Any) -> list[Any]:
    allowed = dask_scheduler.allowed_failures
    return [key for key, state in dask_scheduler.tasks.items() if state.suspicious > allowed]


def _block_of(key: Any, features: Features, blocks: Sequence[int], tasks: str | None) -> int | None:
    """The block that a task of this run works on or reads; None for others, of other runs, too."""
    # they are called (name, position among the blocks, 0)
    if not (isinstance(key, tuple) and len(key) == 3 and isinstance(key[1], int)):
        return None
    if key[0] == tasks:
        return blocks[key[1]]
    read: Features | None = features
    while read is not None:
        if key[0] == read.array.name:
            return key[1] * read.block_rows // features.block_rows
        read = read.made_of
    return None
