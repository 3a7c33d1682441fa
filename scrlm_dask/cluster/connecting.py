"""One way to get a cluster, for commands and for Python."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from scrlm_dask.cluster.local import local_cluster, local_workers, threads_of_this_process
from scrlm_dask.cluster.managed import managed_cluster
from scrlm_dask.cluster.options import ClusterOptions, Connection, check
from scrlm_dask.cluster.remote import address_in, remote_cluster
from scrlm_dask.cluster.security import certificates
from scrlm_dask.events import Listener, warn


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
    with certificates(options), _chosen(options, listener) as connection:
        yield connection


@contextmanager
def _chosen(options: ClusterOptions, listener: Listener) -> Iterator[Connection]:
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
