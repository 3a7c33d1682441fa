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

from scrlm_dask.errors import ClusterError, InputError

# Not Numba's: it refuses to compile when its variable changes after its threads have started, and
# may be imported before a worker's environment is set. `pinned_threads` holds it to one.
_ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
# One arena that keeps its memory: the buffers of a block are as large as those of the block before
# it. Given back and asked for again, their page faults cost more than reading the file.
_KEEP_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
}
_LOOPBACK = "127.0.0.1"
_DASHBOARD_PORT = 8787
_MANY_CORES = 8
_CONNECT_TIMEOUT = 20
_WORKERS_TIMEOUT = 60
_LEAST_MEMORY = 300 * 10**6


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
    local = (options.nworkers, options.nthreads, options.memory_limit)
    if local == (None, None, None):  # who asks for workers of his own gets them
        address = address or os.environ.get("DASK_SCHEDULER_ADDRESS") or None
    if options.scheduler_file is not None:
        address = _address_in(options.scheduler_file)
        with _remote(f"{address} (from {options.scheduler_file})", address) as c:
            yield c
    elif address is not None:
        with _remote(address, address) as c:
            yield c
    elif options.nworkers == 0:
        with _threads(options.nthreads) as c:
            yield c
    else:
        with _local(options) as c:
            yield c


@contextmanager
def _remote(where: str, address: str) -> Iterator[Connection]:
    from distributed import Client
    from distributed.comm import resolve_address

    # what Dask logs of a scheduler that is gone, the error says in one sentence
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    try:
        resolve_address(address)  # a malformed one fails here at once, and quietly
        # not the default yet: one that fails to start would stay it
        client = Client(address, timeout=_CONNECT_TIMEOUT, set_as_default=False)
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
        workers = count(len(client.nthreads()), "worker")
        yield Connection(f"{workers} of the scheduler at {where}", client.dashboard_link)


@contextmanager
def _threads(nthreads: int | None) -> Iterator[Connection]:
    import dask

    number = nthreads or available_cores()
    with dask.config.set(scheduler="threads", num_workers=number):
        yield Connection(f"{count(number, 'thread')} of this process", None)


@contextmanager
def _local(options: ClusterOptions) -> Iterator[Connection]:
    from distributed import Client, LocalCluster

    cores = available_cores()
    nthreads = options.nthreads or (1 if cores <= _MANY_CORES else 4)
    nworkers = options.nworkers or max(1, cores // nthreads)
    memory_limit = _checked_limit(options.memory_limit)
    with (
        _environment_before_spawn(),
        LocalCluster(
            n_workers=nworkers,
            threads_per_worker=nthreads,
            memory_limit=memory_limit,
            # whoever reaches a worker's port can run code as this user
            host=_LOOPBACK,
            dashboard_address=f"{_LOOPBACK}:{_free_dashboard_port()}",
            env=dict.fromkeys(_ONE_THREAD, "1"),
            preload=["scrlm_dask.preload"],
            # a task that fails is logged as an error with its traceback; the client raises it, too
            silence_logs=logging.CRITICAL,
        ) as cluster,
        Client(cluster) as client,
    ):
        text = f"{count(nworkers, 'worker')} with {count(nthreads, 'thread')} each"
        yield Connection(f"a local cluster of {text}", client.dashboard_link)


@contextmanager
def _environment_before_spawn() -> Iterator[None]:
    """What workers need in their environment before they start: malloc and BLAS look only once.

    Dask puts it into the environment of this process, which therefore is put back at the end.
    """
    import dask

    wanted = dict.fromkeys(_ONE_THREAD, "1") | _KEEP_MEMORY
    before = {name: os.environ.get(name) for name in wanted}
    try:
        with dask.config.set({"distributed.nanny.pre-spawn-environ": wanted}):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _checked_limit(memory_limit: str | None) -> int | str:
    """Bytes of a worker's limit; one that a worker cannot even start in would hang the run."""
    from dask.utils import parse_bytes

    if memory_limit is None:
        return "auto"
    try:
        n_bytes = int(parse_bytes(memory_limit))
    except ValueError as error:
        raise InputError(
            f"the memory limit {memory_limit!r} is not a size; write it like 4GB"
        ) from error
    if n_bytes < _LEAST_MEMORY:
        raise InputError(
            f"the memory limit {memory_limit} is less than a worker needs before it has read "
            f"anything; give at least {_LEAST_MEMORY // 10**6}MB"
        )
    return n_bytes


def count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


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
