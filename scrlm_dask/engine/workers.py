"""Reads of blocks, and the seconds spent on them: in Dask's fine performance metrics, and for the
record of a run.
"""

from __future__ import annotations

import os
import os.path
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import dask
from numpy.typing import NDArray

from scrlm_dask.engine.threads import process_report
from scrlm_dask.errors import ClusterError
from scrlm_dask.settings import WAIT_LONGER, computing_threads, read_ahead, workers_timeout
from scrlm_dask.storage.locations import Location

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


_T = TypeVar("_T")


@dataclass(frozen=True)
class WorkerMemory:
    limit: int | None  # bytes; None if there is no limit
    n_threads: int  # that compute
    n_ahead: int = 0  # beside them, those that read ahead
    own_process: bool = True  # whose limit can be set; else they are threads of this process


def current_client() -> Any | None:
    """The distributed client that Dask would use, if there is one."""
    scheduler = dask.config.get("scheduler", None)
    if "distributed" not in sys.modules or scheduler not in (None, "dask.distributed"):
        return None  # a scheduler set by hand goes before a client
    from distributed import default_client

    try:
        return default_client()
    except ValueError:
        return None


def in_this_process() -> AbstractContextManager[Any]:
    """Work goes to threads of this process, whatever client there is."""
    threads: AbstractContextManager[Any] = dask.config.set(scheduler="threads")
    return threads


def current_worker() -> Any | None:
    """The distributed worker that runs this task, if one does."""
    if "distributed" not in sys.modules:
        return None
    from distributed import get_worker

    try:
        return get_worker()
    except ValueError:
        return None


def process_reports() -> dict[str, dict[str, Any]]:
    """Peak memory, effective threads and seconds of reading of every process, by its name."""
    return run_on_all_workers(_report, dict)


def _report() -> dict[str, Any]:
    return process_report() | {"read_seconds": seconds_read()}


def run_on_all_workers(function: Callable[[], _T], kind: type[_T]) -> dict[str, _T]:
    """What every process that works says to a question, by its name."""
    client = current_client()
    if client is None:
        return {"threads": function()}
    # what a worker that was just lost has to say must not fail the run
    try:
        answers = client.run(function, on_error="ignore")
    except OSError as error:
        raise ClusterError(
            f"the Dask scheduler was lost ({error}); see that it runs, and run the command again"
        ) from error
    return {name: answer for name, answer in answers.items() if isinstance(answer, kind)}


def machine_memory() -> int:
    """Bytes that this machine has, or the container or the limits that this process lives in."""
    from distributed.system import MEMORY_LIMIT

    return int(MEMORY_LIMIT)


def worker_memories() -> list[WorkerMemory]:
    """Memory and threads of every worker; for threads of this process, what the machine has."""
    client = current_client()
    if client is None:
        threads = dask.config.get("num_workers", None) or os.cpu_count() or 1
        return [WorkerMemory(machine_memory(), int(threads), own_process=False)]
    wait_for_worker(client)
    workers = client.scheduler_info(-1)["workers"]
    ahead = run_on_all_workers(read_ahead, int)
    return [
        _worker_memory(worker["memory_limit"], worker["nthreads"], ahead.get(name, 0))
        for name, worker in workers.items()
    ]


def wait_for_worker(client: Any) -> None:
    """See that the scheduler has a worker, or gets one soon.

    An adaptive cluster starts its first one when there is work: a task that does nothing.
    """
    if client.scheduler_info(-1)["workers"]:
        return
    seconds = workers_timeout()
    try:
        client.submit(int, pure=False).result(timeout=seconds)
    except TimeoutError as error:
        raise ClusterError(
            f"the scheduler at {client.scheduler.address} has had no workers for {seconds:g} s; "
            "start some (`dask worker`, or scale() of the Dask cluster), or wait longer with "
            f"{WAIT_LONGER}"
        ) from error


def _worker_memory(limit: int, n_threads: int, ahead: int) -> WorkerMemory:
    computing = computing_threads(n_threads, ahead)
    return WorkerMemory(limit or None, computing, n_threads - computing)


_NAMED = 3  # workers in a message


def check_paths_visible(place: Location) -> None:
    """Refuse workers that lack a path which is here: a disk of one host, or a mount that failed."""
    client = current_client()
    if client is None or place.is_remote:
        return
    # a worker that is lost this moment is no reason to stop
    answers = client.run(os.path.exists, place.url, on_error="ignore")
    blind = [name for name, seen in answers.items() if seen is False]
    if not blind:
        return
    names = ", ".join(blind[:_NAMED]) + (", ..." if len(blind) > _NAMED else "")
    raise ClusterError(
        f"{len(blind)} of {len(answers)} worker(s) ({names}) do not see {place}, which is here; "
        "put it on a file system that all of them mount at this path, or stop these workers"
    )
