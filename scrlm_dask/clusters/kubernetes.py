"""Workers in Kubernetes, by the Dask operator; the configuration is a DaskCluster manifest."""

from __future__ import annotations

from contextlib import ExitStack
from copy import deepcopy
from typing import Any

from scrlm_dask.clusters.options import ClusterOptions
from scrlm_dask.clusters.worker_settings import environment
from scrlm_dask.errors import InputError
from scrlm_dask.optional import import_optional
from scrlm_dask.settings import read_ahead


def start(options: ClusterOptions, config: dict[str, Any], undo: ExitStack) -> Any:
    # the packages above it pass on KubeCluster, but not CreateMode
    operator = import_optional(
        "dask_kubernetes.operator.kubecluster.kubecluster", "a cluster in Kubernetes", "kubernetes"
    )
    spec = manifest(options, config)
    cluster = operator.KubeCluster(
        custom_cluster_spec=spec,
        namespace=spec["metadata"].get("namespace"),
        # one that is there already may be somebody else's, and ours ends with us
        create_mode=operator.CreateMode.CREATE_ONLY,
        shutdown_on_close=True,
        quiet=True,
    )
    return undo.enter_context(cluster)


def manifest(options: ClusterOptions, config: dict[str, Any]) -> dict[str, Any]:
    """The file's manifest with as many workers as were asked for, and what workers need."""
    if config.get("kind") != "DaskCluster":
        raise InputError(
            "a Kubernetes cluster needs a DaskCluster manifest as --cluster-config, such as "
            "deploy/kubernetes/cluster.yaml"
        )
    if options.nthreads is not None or options.memory_limit is not None:
        raise InputError(
            "threads and memory of Kubernetes' workers stand in the manifest; change them there"
        )
    if options.require_tls or options.has_tls:
        raise InputError(
            "TLS of a cluster in Kubernetes is not ours to set; leave out the --tls options, and "
            "keep others away by the NetworkPolicy in deploy/kubernetes"
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
            f"the DaskCluster manifest of --cluster-config lacks {error}; see "
            "deploy/kubernetes/cluster.yaml"
        ) from error
    return spec


def _add_environment(container: dict[str, Any]) -> None:
    """What workers need; what the manifest says wins."""
    own = container.setdefault("env", [])
    names = {variable["name"] for variable in own}
    wanted = environment(read_ahead())
    own += [{"name": n, "value": v} for n, v in wanted.items() if n not in names]
