"""Which scheduler the work goes to: the current Dask client's, or the threads of this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

import dask

from scrlm_dask.ahead import computing_threads, read_ahead
from scrlm_dask.errors import ClusterError
from scrlm_dask.passes.reads import seconds_read
from scrlm_dask.resources import process_report
from scrlm_dask.waiting import WAIT_LONGER, workers_timeout

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
    return everywhere(_report, dict)


def _report() -> dict[str, Any]:
    return process_report() | {"read_seconds": seconds_read()}


def everywhere(function: Callable[[], _T], kind: type[_T]) -> dict[str, _T]:
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
    await_a_worker(client)
    workers = client.scheduler_info(-1)["workers"]
    ahead = everywhere(read_ahead, int)
    return [
        _worker_memory(worker["memory_limit"], worker["nthreads"], ahead.get(name, 0))
        for name, worker in workers.items()
    ]


def await_a_worker(client: Any) -> None:
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
