"""Failed runs: drain tasks, name blocks that kill workers, dump the scheduler state."""

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

_MAX_KEYS = 20  # tasks per worker, and events, in a dump
_MAX_BLOCKS = 4  # blocks that a message names
_POLL_SECONDS = 0.02
_DRAIN_SECONDS, _SHORT_DRAIN_SECONDS = 60.0, 5.0

_lock = threading.Lock()
_running: Counter[str] = Counter()  # block tasks of this process, by topic
_ended: set[str] = set()  # topics of ended runs


class RunIsOverError(Exception):
    """Error of a task that starts after its run has failed."""


@contextmanager
def track_task(topic: str) -> Iterator[Callable[[], bool]]:
    """Count a block task as running; yield a function that returns whether its run is active."""
    with _lock:
        _running[topic] += 1
    try:
        yield lambda: _is_active(topic)
    finally:
        with _lock:
            _running[topic] -= 1
            if _running[topic] == 0:
                del _running[topic]


def drain_tasks(topic: str, *, leaving: bool = False) -> None:
    """Stop the run on all workers: its waiting tasks do not start, and its running tasks finish.

    The wait for running tasks is limited. With `leaving`, after an interrupt or a lost cluster,
    the limit is shorter.
    """
    client, seconds = current_client(), _SHORT_DRAIN_SECONDS if leaving else _DRAIN_SECONDS
    if client is None:
        # not asyncio.run: a notebook cell already has an event loop
        for pause in _pauses_until_idle(topic, seconds):
            time.sleep(pause)
    elif client.status == "running":  # tasks of a closed cluster do not write
        # in another thread, because a worker that hangs would block this thread
        draining = threading.Thread(target=_drain_all, args=(client, topic, seconds), daemon=True)
        draining.start()
        draining.join(seconds + 1.0)


@contextmanager
def explain_killed_workers(
    name: str, features: Features, blocks: Sequence[int], tasks: str | None = None
) -> Iterator[None]:
    """Replace Dask's `KilledWorker` by an error that names the suspected blocks of the pass.

    `tasks` is the name of the block tasks, if the pass has tasks other than reads. Dask suspects
    every task that was assigned to a lost worker, both running and waiting tasks.
    """
    try:
        yield
    except Exception as error:
        key = _killed_task(error)
        if key is None:
            raise
        found = [_blocks_of(task, features, blocks, tasks) for task in (key, *_suspects())]
        suspected = sorted({(some[0], some[-1]) for some in found if some})
        if not suspected:
            raise ClusterError(
                f"workers were lost repeatedly in the pass {name} (last task: {key}); check the "
                "logs of the workers, give them more memory, or use smaller blocks"
            ) from error
        raise ClusterError(
            f"{_name_blocks(suspected, features)} of {features.label} was assigned to every worker "
            f"that was lost in the pass {name}: it needs more memory than a worker has, or its "
            "data crashes the worker; check it with `scrlm inspect --verify`, give the workers "
            "more memory, or use smaller blocks"
        ) from error


def cluster_state(client: Any) -> dict[str, Any]:
    """Return the workers with their tasks, and task counts by name and state, as JSON values.

    Only the scheduler is queried. Dask's own dump queries every worker and never returns if one of
    them hangs.
    """
    state: dict[str, Any] = client.run_on_scheduler(_scheduler_state)
    return state


def _drain_all(client: Any, topic: str, seconds: float) -> None:
    with suppress(Exception):
        client.run(_drain_worker, topic, seconds, on_error="ignore")


async def _drain_worker(topic: str, seconds: float) -> None:
    """Drain this worker without blocking its event loop."""
    for pause in _pauses_until_idle(topic, seconds):
        await asyncio.sleep(pause)


def _pauses_until_idle(topic: str, seconds: float) -> Iterator[float]:
    """Stop the run in this process; yield pauses in seconds until its tasks have finished.

    The sum of the pauses is at most `seconds`.
    """
    with _lock:
        _ended.add(topic)
    for _ in range(int(seconds / _POLL_SECONDS)):
        if not _is_busy(topic):
            return
        yield _POLL_SECONDS


def _is_active(topic: str) -> bool:
    with _lock:
        return topic not in _ended


def _is_busy(topic: str) -> bool:
    with _lock:
        return topic in _running


def _name_blocks(ranges: list[tuple[int, int]], features: Features) -> str:
    """Return ranges of blocks, each with its first and last block, as text."""
    some = ", ".join(_name_range(first, last, features) for first, last in ranges[:_MAX_BLOCKS])
    if len(ranges) == 1 and ranges[0][0] == ranges[0][1]:
        return f"block {some}"
    return f"one of the blocks {some}" + (", ..." if len(ranges) > _MAX_BLOCKS else "")


def _name_range(first: int, last: int, features: Features) -> str:
    start, end = first * features.block_rows, (last + 1) * features.block_rows
    numbers = str(first) if first == last else f"{first} to {last}"
    return f"{numbers} (rows {start} to {min(end, features.n_rows) - 1})"


def _killed_task(error: Exception) -> Any | None:
    """Return the key of the task that Dask gave up on, or None for other errors."""
    if "distributed" not in sys.modules:
        return None
    from distributed import KilledWorker

    return error.task if isinstance(error, KilledWorker) else None


def _suspects() -> list[Any]:
    """Return the keys of all tasks that Dask gave up on; empty if the scheduler is lost."""
    client = current_client()
    try:
        return [] if client is None else list(client.run_on_scheduler(_suspicious_tasks))
    except Exception:  # another error is already being reported
        return []


def _suspicious_tasks(dask_scheduler: Any) -> list[Any]:
    allowed = dask_scheduler.allowed_failures
    return [key for key, state in dask_scheduler.tasks.items() if state.suspicious > allowed]


def _blocks_of(
    key: Any, features: Features, blocks: Sequence[int], tasks: str | None
) -> Sequence[int]:
    """Return the ascending blocks that a task of this pass computes or reads; else no blocks."""
    # the keys are (name, position among the chunks, 0)
    if not (isinstance(key, tuple) and len(key) == 3 and isinstance(key[1], int)):
        return ()
    position = key[1]
    if key[0] == tasks:
        return features.tasks_of(blocks)[position]
    read: Features | None = features
    while read is not None:
        if key[0] == read.array.name:
            rows = read.blocks_per_chunk * read.block_rows
            last_row = min((position + 1) * rows, features.n_rows) - 1
            return range(
                position * rows // features.block_rows, last_row // features.block_rows + 1
            )
        read = read.made_of
    return ()


def _scheduler_state(dask_scheduler: Any) -> dict[str, Any]:
    now = time.time()
    tasks = Counter((task.prefix.name, task.state) for task in dask_scheduler.tasks.values())
    workers = {
        address: {
            "name": str(worker.name),
            "status": worker.status.name,
            "seconds_silent": max(0.0, now - worker.last_seen),  # the clock may be set back
            "threads": worker.nthreads,
            "memory_bytes": worker.metrics.get("memory"),
            "memory_limit": worker.memory_limit,
            "processing": [str(task.key) for task in list(worker.processing)[:_MAX_KEYS]],
        }
        for address, worker in dask_scheduler.workers.items()
    }
    counted = [{"name": name, "state": kind, "tasks": n} for (name, kind), n in tasks.items()]
    events = [str(event) for event in list(dask_scheduler.get_events("all"))[-_MAX_KEYS:]]
    return {"workers": workers, "tasks": counted, "events": events}
