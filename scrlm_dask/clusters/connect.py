"""A cluster that a batch system, ssh or Kubernetes starts for the length of a command."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from scrlm_dask.clusters import job_queue, kubernetes, ssh
from scrlm_dask.clusters.describe import count, describe_connection
from scrlm_dask.clusters.local import local_cluster, local_workers, threads_of_this_process
from scrlm_dask.clusters.options import (
    KUBERNETES,
    SSH,
    ClusterOptions,
    Connection,
    check,
    read_config,
)
from scrlm_dask.clusters.remote import address_in, check_workers, remote_cluster
from scrlm_dask.clusters.security import certificates, check_encrypted
from scrlm_dask.errors import ClusterError, ScrlmError
from scrlm_dask.events import Listener, Note, warn
from scrlm_dask.settings import WAIT_LONGER, workers_timeout

_QUEUE_TIMEOUT = "1h"  # jobs may wait for their turn


_SAY_AFTER = 20.0  # seconds, that nobody thinks it hangs


_STEP = 0.5


@contextmanager
def managed_cluster(options: ClusterOptions, listener: Listener) -> Iterator[Connection]:
    from distributed import Client

    kind, config = str(options.cluster), read_config(options)
    with ExitStack() as undo:
        cluster = start_cluster(options, config, undo)
        check_encrypted(cluster.scheduler_address, options, listener)
        with Client(cluster, set_as_default=False) as client, client.as_current():
            _first_worker(cluster, client, kind, listener)
            _scale(cluster, options)
            check_workers(client)
            workers = count(len(client.nthreads()), "worker")
            yield describe_connection(
                f"{workers} of a cluster by {kind} at {client.scheduler.address}", client
            )


def start_cluster(options: ClusterOptions, config: dict[str, Any], undo: ExitStack) -> Any:
    """The cluster, which `undo` takes down; what its library raises, in words."""
    kind = str(options.cluster)
    start = {SSH: ssh.start, KUBERNETES: kubernetes.start}.get(kind, job_queue.start)
    # what goes wrong is raised; what Dask logs besides are tracebacks
    for name in ("distributed.deploy", "distributed.client", "dask_jobqueue"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        return start(options, config, undo)
    except ScrlmError:
        raise
    # each library has errors of its own, which are no longer ours to tell apart
    except Exception as error:
        raise ClusterError(
            f"a cluster by {kind} could not be started ({type(error).__name__}: {error}); check "
            f"{options.cluster_config or '--cluster-config'}"
        ) from error


def _scale(cluster: Any, options: ClusterOptions) -> None:
    """From the first worker on lost ones are replaced; before, each failure would make another."""
    if options.max_workers is not None:
        cluster.adapt(minimum=options.min_workers or 1, maximum=options.max_workers)
    elif options.cluster not in (SSH, KUBERNETES):
        number = options.nworkers or 1
        cluster.adapt(minimum=number, maximum=number)


def _first_worker(cluster: Any, client: Any, kind: str, listener: Listener) -> None:
    seconds = workers_timeout(_QUEUE_TIMEOUT)
    begin, told = time.monotonic(), False
    while not client.nthreads():
        for refused in job_queue.refusals(cluster):
            raise ClusterError(f"{kind} takes no job of ours: {refused}; check --cluster-config")
        waited = time.monotonic() - begin
        if waited > seconds:
            raise ClusterError(
                f"{kind} has started no worker for {seconds:.0f} s; look at its queue and at the "
                f"logs of the jobs, or wait longer with {WAIT_LONGER}"
            )
        if waited > _SAY_AFTER and not told:
            listener(Note(f"waiting for workers from {kind}, for {seconds / 60:.0f} min at most"))
            told = True
        time.sleep(_STEP)


@contextmanager
def connect(
    options: ClusterOptions | None = None, *, listener: Listener = warn, **given: Any
) -> Iterator[Connection]:
    """Make a cluster current for the block, and take down at its end what was started for it.

    `connect(scheduler="tls://host:8786", tls_ca_file=...)`, `connect(scheduler_file=...)`,
    `connect(cluster="slurm", cluster_config="slurm.yaml", nworkers=8)`: the fields of
    `ClusterOptions`. Without a word, DASK_SCHEDULER_ADDRESS, unless workers are asked for, else a
    local cluster on loopback.
    """
    options = replace(options or ClusterOptions(), **given)
    check(options)
    with certificates(options), _open_cluster(options, listener) as connection:
        yield connection


@contextmanager
def _open_cluster(options: ClusterOptions, listener: Listener) -> Iterator[Connection]:
    workers, file = local_workers(options), options.scheduler_file
    if options.is_managed:
        chosen = managed_cluster(options, listener)
    elif workers is None:
        address = address_in(file) if file else str(options.address)
        where = f"{address} (from {file})" if file else address
        chosen = remote_cluster(address, where, options, listener)
    elif workers.nworkers == 0:
        chosen = threads_of_this_process(workers.nthreads)
    else:
        least = None if options.max_workers is None else options.min_workers or 1
        chosen = local_cluster(workers, least)
    with chosen as connection:
        yield connection
