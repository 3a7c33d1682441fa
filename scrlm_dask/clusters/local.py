"""Local cluster for the duration of a command, on the loopback interface only."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scrlm_dask.clusters import worker_settings
from scrlm_dask.clusters.options import ClusterOptions, Connection
from scrlm_dask.clusters.security import describe_connection
from scrlm_dask.errors import ClusterError, InputError
from scrlm_dask.settings import dashboard_port, read_ahead
from scrlm_dask.text import one_line, plural

if TYPE_CHECKING:
    from distributed import LocalCluster

# bytes per thread; with less memory, prefetched blocks could exceed a worker's limit
_MEMORY_TO_READ_AHEAD = 1_500 * 10**6
_LOOPBACK = "127.0.0.1"
_MANY_CORES = 8
_MIN_MEMORY = 450 * 10**6


@dataclass(frozen=True)
class LocalWorkers:
    """Size of a local cluster."""

    nworkers: int  # 0: threads of this process
    nthreads: int  # compute threads per worker
    ahead: int  # additional threads per worker that prefetch
    memory_limit: int  # bytes per worker


def local_workers(options: ClusterOptions) -> LocalWorkers | None:
    """Return the workers that `connect` would start on this machine; None if it starts none."""
    if not options.is_local:
        return None
    from dask.system import CPU_COUNT
    from distributed.system import MEMORY_LIMIT

    cores = available_cores()
    if options.nworkers == 0:
        return LocalWorkers(0, options.nthreads or cores, 0, MEMORY_LIMIT)
    nthreads = options.nthreads or (1 if cores <= _MANY_CORES else 4)
    nworkers = options.nworkers or options.max_workers or max(1, cores // nthreads)
    usual_limit = int(MEMORY_LIMIT * min(1.0, nthreads / CPU_COUNT))  # Dask's default
    limit = check_memory_limit(options.memory_limit) or usual_limit
    has_spare_memory = limit >= nthreads * _MEMORY_TO_READ_AHEAD
    return LocalWorkers(nworkers, nthreads, read_ahead(default=1 if has_spare_memory else 0), limit)


@contextmanager
def threads_of_this_process(number: int) -> Iterator[Connection]:
    """Compute in threads of this process, without a cluster."""
    import dask

    with dask.config.set(scheduler="threads", num_workers=number):
        yield Connection(f"{plural(number, 'thread')} of this process", None)


@contextmanager
def local_cluster(workers: LocalWorkers, options: ClusterOptions) -> Iterator[Connection]:
    """Start workers on this machine; with `max_workers` their number adapts to the work."""
    from distributed import Client

    least = None if options.max_workers is None else options.min_workers or 1
    worker_settings.start_quiet_tracker()
    with (
        worker_settings.environment_before_spawn(),
        _start_cluster(workers, least or workers.nworkers) as cluster,
        Client(cluster) as client,
    ):
        number = f"{workers.nworkers}" if least is None else f"{least} to {workers.nworkers}"
        if least is not None:
            cluster.adapt(minimum=least, maximum=workers.nworkers)
        threads = plural(workers.nthreads, "thread")
        words = f"{number} worker{'' if number == '1' else 's'} with {threads} each"
        yield describe_connection(f"a local cluster of {words}", client, workers.nthreads)


def _start_cluster(workers: LocalWorkers, number: int) -> LocalCluster:
    """Start a cluster; if a signal interrupts this, close the cluster when it has started.

    The cluster starts in another thread, because Dask cannot close a cluster whose start was
    interrupted: at the end of the process, it would print a traceback.
    """
    _check_home()
    with ThreadPoolExecutor(1) as starter:
        start = starter.submit(_create_cluster, workers, number)
        try:
            return start.result()
        except BaseException:
            with suppress(Exception):  # the start failed, or the workers have ended
                start.result().close()
            raise


def _create_cluster(workers: LocalWorkers, number: int) -> LocalCluster:
    from distributed import LocalCluster

    try:
        return LocalCluster(
            n_workers=number,
            threads_per_worker=workers.nthreads + workers.ahead,
            memory_limit=workers.memory_limit,
            # any process that can connect to a worker's port can run code as this user
            host=_LOOPBACK,
            dashboard_address=f"{_LOOPBACK}:{free_dashboard_port()}",
            env=worker_settings.ONE_THREAD,
            config=worker_settings.worker_config(workers.ahead),
            preload=[worker_settings.PRELOAD],
            # the command reports failed tasks; workers would also log them with a traceback
            silence_logs=logging.CRITICAL,
        )
    except (OSError, RuntimeError) as error:
        raise ClusterError(
            f"cannot start workers on this machine ({one_line(_first_cause(error))}); check that "
            "/dev/shm and the folder of temporary files (TMPDIR) are writable and not full, or "
            "compute in threads of this process with --nworkers 0 (nworkers=0)"
        ) from error


def _check_home() -> None:
    """Raise if the user has no home directory: the dashboard of the cluster cannot be imported."""
    try:
        Path.home()
    except RuntimeError as error:
        raise ClusterError(
            f"cannot start workers on this machine: HOME is not set, and user {os.getuid()} has no "
            "account; set HOME to any folder, or compute in threads of this process with "
            "--nworkers 0 (nworkers=0)"
        ) from error


def _first_cause(error: BaseException) -> BaseException:
    """Return the first OSError that led to an error of Dask, or the error itself."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError):
            return cause
        cause = cause.__cause__ or cause.__context__
    return error


def check_memory_limit(memory_limit: str | None) -> int | None:
    """Return the memory limit of a worker in bytes; raise if it is too small."""
    from dask.utils import parse_bytes

    if memory_limit is None:
        return None
    try:
        n_bytes = int(parse_bytes(memory_limit))
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"the memory limit {memory_limit!r} is not a valid size; use a value such as 4GB"
        ) from error
    if n_bytes < _MIN_MEMORY:
        raise InputError(
            f"the memory limit {memory_limit} is less than a worker needs to start; use at least "
            f"{_MIN_MEMORY // 10**6}MB"
        )
    return n_bytes


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_dashboard_port() -> int:
    """Return the default port, or 0 (any free port) if another process, such as a run, uses it."""
    port = dashboard_port()
    with socket.socket() as probe:
        try:
            probe.bind((_LOOPBACK, port))
        except OSError:
            return 0
    return port
