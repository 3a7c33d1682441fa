"""The client and worker of this process, information from all workers, and timed reads."""

from __future__ import annotations

import os
import os.path
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import dask
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.engine.threads import process_report
from scrlm_dask.errors import ClusterError
from scrlm_dask.settings import WAIT_LONGER, computing_threads, read_ahead, workers_timeout
from scrlm_dask.storage.locations import Location

# Reads from disks and networks are slower than this per thread. Faster reads come from the
# operating system's cache and use a core.
_QUICK_BYTES_PER_SECOND = 400e6
_MIN_RATED_BYTES = 2**20  # the time of a smaller read is mostly overhead
_MAX_WORKERS = 3  # workers that a message names

_lock = threading.Lock()
_read_seconds = 0.0  # of all threads of this process, since it started
_last_rate = 0.0  # bytes per second of the latest read
# One pool per worker: the runs inside its tasks together use as many threads as the worker has.
_pools: WeakKeyDictionary[Any, ThreadPoolExecutor] = WeakKeyDictionary()
_CLIENT_OF_WORKER = "Client-worker-"  # the ids of clients that `distributed.get_client` creates
_without_client: ContextVar[bool] = ContextVar("without_client", default=False)


class _PoolThread(threading.local):
    """Mark of threads of the pool of a worker, with the memory limit of the worker."""

    is_set: bool = False
    memory_limit: int | None = None


_pool_thread = _PoolThread()

_T = TypeVar("_T")


@dataclass(frozen=True)
class WorkerMemory:
    """Memory limit and threads of a worker.

    Attributes
    ----------
    limit : int or None
        Memory limit in bytes; None if there is no limit.
    n_threads : int
        Compute threads.
    n_ahead : int
        Additional threads that prefetch.
    own_process : bool
        False: threads of this process, which have no limit of their own.
    """

    limit: int | None
    n_threads: int
    n_ahead: int = 0
    own_process: bool = True


def current_client() -> Any | None:
    """Return the distributed client for the tasks of a run, or None: threads of this process.

    A run inside a task of a worker has no client. It occupies a thread of the worker while it
    waits, so runs inside all threads of a cluster would wait for each other without end. The same
    applies to a run that is started by a block of such a run, in a thread of the worker's pool, and
    to all threads of a worker process, whose client is one that Dask has created for its tasks.
    """
    if "distributed" not in sys.modules or _without_client.get() or _scheduler_is_set():
        return None
    if current_worker() is not None or _pool_thread.is_set:
        return None
    from distributed import default_client

    try:
        client = default_client()
    except ValueError:
        return None
    return None if client.id.startswith(_CLIENT_OF_WORKER) else client


def current_worker() -> Any | None:
    """Return the distributed worker that runs this task, or None."""
    if "distributed" not in sys.modules:
        return None
    from distributed import get_worker

    try:
        return get_worker()
    except ValueError:
        return None


def compute(*values: Any) -> tuple[Any, ...]:
    """Compute Dask collections, as `dask.compute` does, on the cluster or in this process."""
    computed: tuple[Any, ...] = dask.compute(*values, scheduler=_scheduler())
    return computed


def persist(*values: Any) -> tuple[Any, ...]:
    """Start to compute Dask collections, as `dask.persist` does; see `compute`."""
    persisted: tuple[Any, ...] = dask.persist(*values, scheduler=_scheduler())
    return persisted


def gather(*persisted: Delayed) -> tuple[Any, ...]:
    """Return the results of values that `persist` has started to compute."""
    client = current_client()
    if client is None:
        return compute(*persisted)
    from distributed import futures_of

    results: tuple[Any, ...] = client.gather(tuple(futures_of(list(persisted))))
    return results


@contextmanager
def in_this_process() -> Iterator[None]:
    """Run tasks of a `with` block in threads of this process, even if there is a client.

    This applies to the calling thread only. Dask's configuration would apply to all threads of the
    process: a run in another thread would lose its client while it waits for results.
    """
    token = _without_client.set(True)
    try:
        yield
    finally:
        _without_client.reset(token)


def wait_for_worker(client: Any) -> None:
    """Wait until the scheduler has a worker.

    An empty task is submitted, because an adaptive cluster starts workers only when there is work.
    """
    if scheduler_workers(client):
        return
    seconds = workers_timeout()
    try:
        client.submit(int, pure=False).result(timeout=seconds)
    except TimeoutError as error:
        raise ClusterError(
            f"the scheduler at {client.scheduler.address} has had no workers for {seconds:g} s; "
            "start workers (`dask worker`, or scale() of the Dask cluster), or wait longer with "
            f"{WAIT_LONGER}"
        ) from error


@contextmanager
def _reaching_scheduler(client: Any) -> Iterator[None]:
    """Raise ClusterError if the scheduler is lost, without waiting for a timeout."""
    try:
        if client.status != "running":
            raise OSError(f"the client is {client.status}")
        yield
    except OSError as error:
        raise ClusterError(
            f"lost the connection to the Dask scheduler ({error}); check that it is running, and "
            "run the command again"
        ) from error


def scheduler_workers(client: Any) -> dict[str, Any]:
    """Return the scheduler's information about each worker, by address.

    `client.scheduler_info` is not used: it may have no workers, because the client refreshes it
    without them every two seconds.
    """
    with _reaching_scheduler(client):
        workers: dict[str, Any] = client.sync(client.scheduler.identity, n_workers=-1)["workers"]
    return workers


def run_on_all_workers(function: Callable[[], _T], kind: type[_T]) -> dict[str, _T]:
    """Call a function in every worker process; return the results of type `kind`, by worker."""
    client = current_client()
    if client is None:
        return {"threads": function()}
    with _reaching_scheduler(client):
        # a worker that is lost at this moment does not stop the run
        answers = client.run(function, on_error="ignore")
    return {name: answer for name, answer in answers.items() if isinstance(answer, kind)}


def process_reports() -> dict[str, dict[str, Any]]:
    """Return peak memory, threads and read seconds of every worker process, by worker."""
    return run_on_all_workers(_process_report, dict)


def worker_memories() -> list[WorkerMemory]:
    """Return memory and threads of every worker, or of this machine without a cluster."""
    client, worker = current_client(), current_worker()
    if client is None:
        limit = machine_memory()
        threads = dask.config.get("num_workers", None) or os.cpu_count() or 1
        if worker is not None:  # a run inside a task
            limit = min(worker.memory_manager.memory_limit or limit, limit)
            threads = threads if _scheduler_is_set() else worker.state.nthreads
        elif _pool_thread.is_set:  # a run that a block of such a run starts
            limit = min(_pool_thread.memory_limit or limit, limit)
            threads = threads if _scheduler_is_set() else 1
        return [WorkerMemory(limit, int(threads), own_process=False)]
    wait_for_worker(client)
    workers = scheduler_workers(client)
    ahead = run_on_all_workers(read_ahead, int)
    return [
        _worker_memory(worker["memory_limit"], worker["nthreads"], ahead.get(name, 0))
        for name, worker in workers.items()
    ]


def machine_memory() -> int:
    """Return the memory in bytes of this machine, or the limit of its container or process."""
    from distributed.system import MEMORY_LIMIT

    return int(MEMORY_LIMIT)


def check_paths_visible(*places: Location) -> None:
    """Raise if a worker cannot see a local path: it is not shared, or a mount has failed."""
    client, local = current_client(), [place.url for place in places if not place.is_remote]
    if client is None or not local:
        return
    # a worker that is lost at this moment does not stop the run
    answers = client.run(_find_hidden, local, on_error="ignore")
    hidden = {name: path for name, path in answers.items() if isinstance(path, str)}
    blind = list(hidden)
    if not blind:
        return
    place = hidden[blind[0]]
    names = ", ".join(blind[:_MAX_WORKERS]) + (", ..." if len(blind) > _MAX_WORKERS else "")
    raise ClusterError(
        f"{len(blind)} of {len(answers)} worker(s) ({names}) cannot see {place}, which exists on "
        "this machine; use a file system that all workers mount at the same path, or stop these "
        "workers"
    )


def _find_hidden(paths: list[str]) -> str | None:
    """Return the first path that this process cannot see."""
    return next((path for path in paths if not os.path.exists(path)), None)  # noqa: PTH110


def timed_read(read: Callable[[], NDArray[Any]]) -> NDArray[Any]:
    """Read rows and add the elapsed time to `read_seconds`."""
    global _read_seconds, _last_rate
    begin, n_bytes = time.perf_counter(), 0
    try:
        with metered("read"):
            rows = read()
        n_bytes = rows.nbytes
        return rows
    finally:
        seconds = time.perf_counter() - begin
        with _lock:
            _read_seconds += seconds
            if n_bytes >= _MIN_RATED_BYTES:
                _last_rate = n_bytes / seconds


def read_seconds() -> float:
    """Return the seconds that the threads of this process have spent on reads, in total."""
    with _lock:
        return _read_seconds


def reads_are_quick() -> bool:
    """Return whether the latest read came from the system's cache, judging by its rate."""
    with _lock:
        return _last_rate > _QUICK_BYTES_PER_SECOND


def metered(activity: str) -> AbstractContextManager[Any]:
    """Record the time of a `with` block as an activity in Dask's metrics of the current task."""
    if "distributed" not in sys.modules:
        return nullcontext()
    from distributed.metrics import context_meter

    meter: AbstractContextManager[Any] = context_meter.meter(activity)
    return meter


def _scheduler_is_set() -> bool:
    """Return whether Dask's configuration names a scheduler other than the distributed one.

    It takes precedence over a client.
    """
    return dask.config.get("scheduler", None) not in (None, "dask.distributed")


def _scheduler() -> ThreadPoolExecutor | str | None:
    """Return Dask's `scheduler` for tasks of this thread: a pool, its name, or Dask's default."""
    worker, is_set = current_worker(), _scheduler_is_set()
    if _pool_thread.is_set and not is_set:
        return "synchronous"  # a thread of the pool must not wait for the pool
    if worker is None or is_set:
        as_configured = is_set and not _without_client.get()
        return None if as_configured or current_client() is not None else "threads"
    with _lock:
        if worker not in _pools:
            _remove_closed_pools()
            limit = worker.memory_manager.memory_limit
            _pools[worker] = ThreadPoolExecutor(
                worker.state.nthreads, "scrlm-blocks", _join_pool, (limit,)
            )
        return _pools[worker]


def _join_pool(memory_limit: int | None) -> None:
    _pool_thread.is_set, _pool_thread.memory_limit = True, memory_limit


def _remove_closed_pools() -> None:
    """Release the threads of closed workers, whose objects Dask may keep until the process ends."""
    for worker in [worker for worker in _pools if worker.status.name == "closed"]:
        _pools.pop(worker).shutdown(wait=False)


def _process_report() -> dict[str, Any]:
    return process_report() | {"read_seconds": read_seconds()}


def _worker_memory(limit: int, n_threads: int, ahead: int) -> WorkerMemory:
    computing = computing_threads(n_threads, ahead)
    return WorkerMemory(limit or None, computing, n_threads - computing)
