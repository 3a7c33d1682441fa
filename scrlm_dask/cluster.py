"""Getting a Dask cluster: one that runs already, or a local one for the length of a command."""

from __future__ import annotations

import json
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
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
_WORKERS_TIMEOUT = 60


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
    """Make a cluster current for the block: the scheduler's file or address that was given, else
    DASK_SCHEDULER_ADDRESS unless workers were asked for, else a local one on loopback.
    """
    address = options.scheduler
    if options.nworkers is None:  # who asks for workers of his own gets them
        address = address or os.environ.get("DASK_SCHEDULER_ADDRESS") or None
    if options.scheduler_file is not None:
        with _remote(
            f"the file {options.scheduler_file}", address=_address_in(options.scheduler_file)
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
        # not the default yet: one that fails to start would stay it
        client = Client(timeout=_CONNECT_TIMEOUT, set_as_default=False, **how)
    except (OSError, ValueError, TypeError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at {where} ({error}); check the address, or leave it out "
            "for a local cluster"
        ) from error
    with client, client.as_current():
        try:
            client.wait_for_workers(1, timeout=_WORKERS_TIMEOUT)
        except TimeoutError as error:
            raise ClusterError(
                f"the scheduler at {where} has had no workers for {_WORKERS_TIMEOUT} s; "
                "start some with `dask worker`"
            ) from error
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


def _address_in(scheduler_file: str) -> str:
    """The address in a scheduler's file; Dask itself would wait for the file for ever."""
    try:
        return str(json.loads(Path(scheduler_file).read_text())["address"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            f"no scheduler's address in the file {scheduler_file} ({error!r}); start one with "
            "`dask scheduler --scheduler-file`"
        ) from error
