"""Start a scheduler and workers over ssh; the first host runs the scheduler."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from scrlm_dask.clusters.local import check_memory_limit
from scrlm_dask.clusters.options import ClusterOptions
from scrlm_dask.clusters.worker_settings import PRELOAD, spawn_settings
from scrlm_dask.errors import InputError
from scrlm_dask.optional import import_optional
from scrlm_dask.settings import read_ahead

_SSH_TIMEOUT = 20  # seconds to connect to a host


def start_ssh(options: ClusterOptions, config: dict[str, Any], undo: ExitStack) -> Any:
    """Start the cluster on the hosts in the configuration; `undo` stops it."""
    import dask
    from distributed import Security, SSHCluster

    import_optional("asyncssh", "an ssh cluster", "ssh")
    security = {"security": Security()} if options.has_tls else {}
    # the hosts inherit the configuration, so certificates must have the same paths there
    with dask.config.set(spawn_settings(read_ahead())):
        return undo.enter_context(SSHCluster(**arguments(options, config), **security))


def arguments(options: ClusterOptions, config: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `SSHCluster`.

    They combine the configuration file (`config`), the command line and the worker settings.
    """
    hosts = config.get("hosts")
    if not isinstance(hosts, list) or len(hosts) < 2:
        raise InputError(
            "an ssh cluster requires hosts: [SCHEDULER, WORKER, ...] in --cluster-config; the same "
            "host may be listed twice"
        )
    if options.require_tls and not options.has_tls:
        raise InputError(
            "--require-tls with an ssh cluster requires --tls-ca-file and --tls-cert, at the same "
            "paths on all hosts"
        )
    worker = dict(config.get("worker_options") or {})
    limit = check_memory_limit(options.memory_limit)
    worker |= {} if limit is None else {"memory_limit": limit}
    nthreads = options.nthreads or worker.get("nthreads")
    worker |= {} if nthreads is None else {"nthreads": int(nthreads) + read_ahead()}
    worker["preload"] = [*worker.get("preload", []), PRELOAD]
    scheduler = {"port": 0, **(config.get("scheduler_options") or {})}
    if options.has_tls:
        scheduler["protocol"] = worker["protocol"] = "tls"
    connect = config.get("connect_options") or {}
    timeout = {"connect_timeout": _SSH_TIMEOUT}
    return {
        **config,
        "connect_options": [timeout | each for each in connect]
        if isinstance(connect, list)
        else timeout | connect,
        "worker_options": worker,
        "scheduler_options": scheduler,
    }
