"""Start a cluster in Kubernetes with the Dask operator, from a DaskCluster manifest."""

from __future__ import annotations

from contextlib import ExitStack
from copy import deepcopy
from typing import Any

from scrlm_dask.clusters.options import ClusterOptions
from scrlm_dask.clusters.worker_settings import worker_environment
from scrlm_dask.errors import InputError
from scrlm_dask.optional import import_optional
from scrlm_dask.settings import read_ahead


def start_kubernetes(options: ClusterOptions, config: dict[str, Any], undo: ExitStack) -> Any:
    """Create the DaskCluster resource and connect to it; `undo` deletes it."""
    # the parent packages export KubeCluster, but not CreateMode
    operator = import_optional(
        "dask_kubernetes.operator.kubecluster.kubecluster", "a Kubernetes cluster", "kubernetes"
    )
    spec = manifest(options, config)
    cluster = operator.KubeCluster(
        custom_cluster_spec=spec,
        namespace=spec["metadata"].get("namespace"),
        # never reuse a cluster: it may belong to another user, and is deleted at the end
        create_mode=operator.CreateMode.CREATE_ONLY,
        shutdown_on_close=True,
        quiet=True,
    )
    return undo.enter_context(cluster)


def manifest(options: ClusterOptions, config: dict[str, Any]) -> dict[str, Any]:
    """Return the manifest with the requested number of workers and the worker environment."""
    if config.get("kind") != "DaskCluster":
        raise InputError(
            "a Kubernetes cluster requires a DaskCluster manifest as --cluster-config, such as "
            "deploy/kubernetes/cluster.yaml"
        )
    if options.nthreads is not None or options.memory_limit is not None:
        raise InputError(
            "--nthreads and --memory-limit are not supported with Kubernetes; set threads and "
            "memory of the workers in the manifest"
        )
    if options.require_tls or options.has_tls:
        raise InputError(
            "--require-tls and the --tls options are not supported with Kubernetes; leave them out "
            "and restrict access with the NetworkPolicy in deploy/kubernetes"
        )
    spec = deepcopy(config)
    number = options.nworkers or options.min_workers
    try:
        worker = spec["spec"]["worker"]
        worker["replicas"] = number or worker["replicas"]
        for container in worker["spec"]["containers"]:
            _add_environment(container)
    except (KeyError, TypeError) as error:
        raise InputError(
            f"the DaskCluster manifest of --cluster-config lacks {error}; compare it with "
            "deploy/kubernetes/cluster.yaml"
        ) from error
    return spec


def _add_environment(container: dict[str, Any]) -> None:
    """Add the worker environment; variables in the manifest take precedence."""
    own = container.setdefault("env", [])
    names = {variable["name"] for variable in own}
    environment = worker_environment(read_ahead())
    own += [{"name": n, "value": v} for n, v in environment.items() if n not in names]
