"""Connect to a running cluster, or start one for the duration of a command."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from scrlm_dask.choices import KUBERNETES, SSH
from scrlm_dask.clusters.job_queue import rejections, start_job_queue
from scrlm_dask.clusters.kubernetes import start_kubernetes
from scrlm_dask.clusters.local import local_cluster, local_workers, threads_of_this_process
from scrlm_dask.clusters.options import ClusterOptions, Connection, check_options, read_config
from scrlm_dask.clusters.remote import check_workers, remote_cluster
from scrlm_dask.clusters.security import certificates, check_encrypted, describe_connection
from scrlm_dask.clusters.ssh import start_ssh
from scrlm_dask.errors import ClusterError, ScrlmError
from scrlm_dask.events import Listener, Note, warn
from scrlm_dask.settings import WAIT_LONGER, workers_timeout
from scrlm_dask.text import one_line, plural

_QUEUE_TIMEOUT = "1h"  # jobs may wait in the queue for a long time
_NOTE_SECONDS = 20.0  # after this time, a note reports that the command waits
_POLL_SECONDS = 0.5


@contextmanager
def managed_cluster(options: ClusterOptions, listener: Listener) -> Iterator[Connection]:
    """Start a cluster with a batch system, ssh or Kubernetes, and connect to it."""
    from distributed import Client

    kind, config = str(options.cluster), read_config(options)
    with ExitStack() as undo:
        cluster = start_cluster(options, config, undo)
        check_encrypted(cluster.scheduler_address, options, listener)
        with Client(cluster, set_as_default=False) as client, client.as_current():
            _wait_for_worker(cluster, client, kind, listener)
            _scale(cluster, options)
            check_workers(client)
            workers = plural(len(client.nthreads()), "worker")
            yield describe_connection(
                f"{workers} of the {kind} cluster at {client.scheduler.address}", client
            )


def start_cluster(options: ClusterOptions, config: dict[str, Any], undo: ExitStack) -> Any:
    """Start a cluster, to be stopped by `undo`; convert errors of its library to ClusterError."""
    kind = str(options.cluster)
    start = {SSH: start_ssh, KUBERNETES: start_kubernetes}.get(kind, start_job_queue)
    # the errors below are reported once; Dask would also log them with a traceback
    for name in ("distributed.deploy", "distributed.client", "dask_jobqueue"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        return start(options, config, undo)
    except ScrlmError:
        raise
    # each library raises its own exception types
    except Exception as error:
        raise ClusterError(
            f"cannot start the {kind} cluster ({one_line(error)}); check "
            f"{options.cluster_config or '--cluster-config'}"
        ) from error


def _scale(cluster: Any, options: ClusterOptions) -> None:
    """Let Dask replace lost workers and, with `max_workers`, adapt their number to the work.

    Call this only after the first worker has started: before, Dask would submit every failed job
    again.
    """
    if options.max_workers is not None:
        cluster.adapt(minimum=options.min_workers or 1, maximum=options.max_workers)
    elif options.cluster not in (SSH, KUBERNETES):
        number = options.nworkers or 1
        cluster.adapt(minimum=number, maximum=number)


def _wait_for_worker(cluster: Any, client: Any, kind: str, listener: Listener) -> None:
    seconds = workers_timeout(_QUEUE_TIMEOUT)
    begin, noted = time.monotonic(), False
    while not client.nthreads():
        for reason in rejections(cluster):
            raise ClusterError(f"{kind} rejected a job: {reason}; check --cluster-config")
        waited = time.monotonic() - begin
        if waited > seconds:
            raise ClusterError(
                f"{kind} has not started a worker within {seconds:.0f} s; check its queue and the "
                f"job logs, or wait longer with {WAIT_LONGER}"
            )
        if waited > _NOTE_SECONDS and not noted:
            listener(Note(f"waiting for workers of {kind}, at most {seconds / 60:.0f} min"))
            noted = True
        time.sleep(_POLL_SECONDS)


@contextmanager
def connect(
    options: ClusterOptions | None = None, *, listener: Listener = warn, **given: Any
) -> Iterator[Connection]:
    """Run the code in the `with` block on a cluster; at the end, stop a cluster started for it.

    Without options, the scheduler at `DASK_SCHEDULER_ADDRESS` is used if that variable is set,
    otherwise a local cluster is started on the loopback interface.

    Parameters
    ----------
    options : ClusterOptions or None
        Options as an object; None: only `given`.
    listener : callable
        Receives the events of the run (`scrlm_dask.events`); by default, warnings are emitted.
    **given
        Fields of `ClusterOptions`: `scheduler`, `scheduler_file`, `nworkers`, `nthreads`,
        `memory_limit`, `cluster`, `cluster_config`, `min_workers`, `max_workers`, `tls_ca_file`,
        `tls_cert`, `tls_key`, `require_tls`.

    Yields
    ------
    scrlm_dask.results.Connection
        Description of the cluster, and the address of its dashboard.

    Raises
    ------
    InputError
        If options contradict each other.
    ClusterError
        If the scheduler cannot be reached, or if no worker starts in time.

    Examples
    --------
    >>> import scrlm_dask
    >>> with scrlm_dask.connect(nworkers=0, nthreads=2) as connection:  # threads, no processes
    ...     scrlm_dask.evaluate("run").scores.accuracy
    1.0

    A Slurm cluster, or a scheduler that runs already:

    >>> scrlm_dask.connect(cluster="slurm", cluster_config="slurm.yaml")  # doctest: +SKIP
    >>> scrlm_dask.connect(scheduler="tls://host:8786", require_tls=True)  # doctest: +SKIP
    """
    options = replace(options or ClusterOptions(), **given)
    check_options(options)
    workers = local_workers(options)
    if options.is_managed:
        cluster = managed_cluster(options, listener)
    elif workers is None:
        cluster = remote_cluster(options, listener)
    elif workers.nworkers == 0:
        cluster = threads_of_this_process(workers.nthreads)
    else:
        cluster = local_cluster(workers, options)
    with certificates(options) if options.has_tls else nullcontext(), cluster as connection:
        yield connection
