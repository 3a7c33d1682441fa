"""A cluster of this machine, for the length of a command, on its loopback interface alone."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from scrlm_dask.clusters.describe import count, describe_connection
from scrlm_dask.clusters.options import ClusterOptions, Connection
from scrlm_dask.clusters.worker_settings import (
    ONE_THREAD,
    PRELOAD,
    environment_before_spawn,
    settings,
    start_quiet_tracker,
)
from scrlm_dask.errors import InputError
from scrlm_dask.settings import read_ahead

_MEMORY_TO_READ_AHEAD = 1_500 * 10**6  # of a thread: below, blocks in waiting could fill a worker
_LOOPBACK = "127.0.0.1"
# Dask's setting, in a file or as DASK_SCRLM__DASHBOARD_PORT, for those who start many runs at once:
# two that find the usual port free in the same moment both want it, and 0 is whatever is free
_PORT_SETTING, _DASHBOARD_PORT = "scrlm.dashboard-port", 8787
_MANY_CORES = 8
_LEAST_MEMORY = 450 * 10**6


@dataclass(frozen=True)
class LocalWorkers:
    """What a local cluster is made of."""

    nworkers: int  # 0: the threads of this process
    nthreads: int  # of each, that compute
    ahead: int  # of each, that read ahead
    memory_limit: int  # of each, in bytes


def local_workers(options: ClusterOptions) -> LocalWorkers | None:
    """The workers that `connect` would start; None where it goes to a scheduler that runs."""
    if not options.is_local:
        return None
    if options.nworkers == 0:
        return LocalWorkers(0, options.nthreads or available_cores(), 0, _usual_limit(None))
    cores = available_cores()
    nthreads = options.nthreads or (1 if cores <= _MANY_CORES else 4)
    wanted = options.nworkers or options.max_workers
    nworkers = wanted or max(1, cores // nthreads)
    limit = check_memory_limit(options.memory_limit) or _usual_limit(nthreads)
    roomy = limit >= nthreads * _MEMORY_TO_READ_AHEAD
    return LocalWorkers(nworkers, nthreads, read_ahead(default=1 if roomy else 0), limit)


@contextmanager
def threads_of_this_process(number: int) -> Iterator[Connection]:
    import dask

    with dask.config.set(scheduler="threads", num_workers=number):
        yield Connection(f"{count(number, 'thread')} of this process", None)


@contextmanager
def local_cluster(workers: LocalWorkers, least: int | None) -> Iterator[Connection]:
    """Workers on this machine; with `least`, so many, and more while there is work for them."""
    from distributed import Client, LocalCluster

    start_quiet_tracker()
    with (
        environment_before_spawn(),
        LocalCluster(
            n_workers=least or workers.nworkers,
            threads_per_worker=workers.nthreads + workers.ahead,
            memory_limit=workers.memory_limit,
            # whoever reaches a worker's port can run code as this user
            host=_LOOPBACK,
            dashboard_address=f"{_LOOPBACK}:{free_dashboard_port()}",
            env=ONE_THREAD,
            config=settings(workers.ahead),
            preload=[PRELOAD],
            # a task that fails is logged as an error with its traceback; the client raises it, too
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):
        number = f"{workers.nworkers}" if least is None else f"{least} to {workers.nworkers}"
        if least is not None:
            cluster.adapt(minimum=least, maximum=workers.nworkers)
        threads = count(workers.nthreads, "thread")
        words = f"{number} worker{'' if number == '1' else 's'} with {threads} each"
        yield describe_connection(f"a local cluster of {words}", client, workers.nthreads)


def _usual_limit(nthreads: int | None) -> int:
    """Dask's own choice for a worker of so many threads: one that reads ahead brings no memory.

    Without a number all that the machine has.
    """
    from dask.system import CPU_COUNT
    from distributed.system import MEMORY_LIMIT

    share = 1.0 if nthreads is None else min(1.0, nthreads / CPU_COUNT)
    return int(MEMORY_LIMIT * share)


def check_memory_limit(memory_limit: str | None) -> int | None:
    """Bytes of a worker's limit; one that a worker cannot even start in would hang the run."""
    from dask.utils import parse_bytes

    if memory_limit is None:
        return None
    try:
        n_bytes = int(parse_bytes(memory_limit))
    except (ValueError, OverflowError) as error:
        raise InputError(
            f"the memory limit {memory_limit!r} is not a size; write it like 4GB"
        ) from error
    if n_bytes < _LEAST_MEMORY:
        raise InputError(
            f"the memory limit {memory_limit} is less than a worker needs before it has read "
            f"anything; give at least {_LEAST_MEMORY // 10**6}MB"
        )
    return n_bytes


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_dashboard_port() -> int:
    """Dask's usual port if it is free, else any: a second run on a machine is nothing special."""
    import dask

    wanted = dask.config.get(_PORT_SETTING, _DASHBOARD_PORT)
    if not isinstance(wanted, int) or not 0 <= wanted < 2**16:
        raise InputError(
            f"Dask's setting {_PORT_SETTING} is {wanted!r}; give a port such as {_DASHBOARD_PORT}, "
            "or 0 for any that is free"
        )
    with socket.socket() as probe:
        try:
            probe.bind((_LOOPBACK, wanted))
        except OSError:
            return 0
    return wanted
