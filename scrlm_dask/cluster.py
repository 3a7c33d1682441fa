"""Getting a Dask cluster: one that runs already, or a local one for the length of a command."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from scrlm_dask.errors import ClusterError, InputError

_ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
)
_LOOPBACK = "127.0.0.1"
_DASHBOARD_PORT = 8787
_MANY_CORES = 8
_CONNECT_TIMEOUT = 20


@dataclass(frozen=True)
class ClusterOptions:
    """Where to run. Dask's own names; what is not given is found out."""

    scheduler: str | None = None
    scheduler_file: str | None = None
    nworkers: int | None = None  # 0: no cluster, the threads of this process
    nthreads: int | None = None
    memory_limit: str | None = None


@dataclass(frozen=True)
class Connection:
    """What was connected to, in words."""

    description: str
    dashboard: str | None


@contextmanager
def connect(options: ClusterOptions) -> Iterator[Connection]:
    """Make a cluster current for the block: --scheduler, --scheduler-file,
    DASK_SCHEDULER_ADDRESS, else a local one on the loopback interface.
    """
    address = options.scheduler or os.environ.get("DASK_SCHEDULER_ADDRESS")
    if options.scheduler_file is not None:
        with _remote(
            f"the file {options.scheduler_file}", scheduler_file=options.scheduler_file
        ) as c:
            yield c
    elif address is not None:
        with _remote(address, address=address) as c:
            yield c
    elif options.nworkers == 0:
        with _threads(options.nthreads) as c:
            yield c
    else:
        with _local(options) as c:
            yield c


@contextmanager
def _remote(where: str, **how: Any) -> Iterator[Connection]:
    from distributed import Client

    try:
        client = Client(timeout=_CONNECT_TIMEOUT, **how)
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at {where} ({error}); check the address, or leave it out "
            "for a local cluster"
        ) from error
    with client:
        n_workers = len(client.scheduler_info(n_workers=-1)["workers"])
        yield Connection(f"{n_workers} workers of the scheduler at {where}", client.dashboard_link)


@contextmanager
def _threads(nthreads: int | None) -> Iterator[Connection]:
    import dask

    number = nthreads or available_cores()
    with dask.config.set(scheduler="threads", num_workers=number):
        yield Connection(f"{number} threads of this process", None)


@contextmanager
def _local(options: ClusterOptions) -> Iterator[Connection]:
    from distributed import Client, LocalCluster

    cores = available_cores()
    nthreads = options.nthreads or (1 if cores <= _MANY_CORES else 4)
    nworkers = options.nworkers or max(1, cores // nthreads)
    try:
        cluster = LocalCluster(
            n_workers=nworkers,
            threads_per_worker=nthreads,
            memory_limit=options.memory_limit or "auto",
            # whoever reaches a worker's port can run code as this user
            host=_LOOPBACK,
            dashboard_address=f"{_LOOPBACK}:{_free_dashboard_port()}",
            env=dict.fromkeys(_ONE_THREAD, "1"),
            silence_logs=logging.ERROR,
        )
    except ValueError as error:
        raise InputError(
            f"a local cluster of {nworkers} workers with memory limit {options.memory_limit!r} "
            f"cannot be started ({error}); sizes are written like 4GB"
        ) from error
    with cluster, Client(cluster) as client:
        text = f"a local cluster of {nworkers} workers with {nthreads} thread(s) each"
        yield Connection(text, client.dashboard_link)


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free_dashboard_port() -> int:
    """Dask's usual port if it is free, else any: a second run on a machine is nothing special."""
    with socket.socket() as probe:
        try:
            probe.bind((_LOOPBACK, _DASHBOARD_PORT))
        except OSError:
            return 0
    return _DASHBOARD_PORT
