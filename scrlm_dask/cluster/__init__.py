"""Getting a Dask cluster: one that runs already, or one for the length of a command."""

from scrlm_dask.cluster.connecting import connect
from scrlm_dask.cluster.local import LocalWorkers, available_cores, local_workers
from scrlm_dask.cluster.options import ClusterOptions, Connection

__all__ = [
    "ClusterOptions",
    "Connection",
    "LocalWorkers",
    "available_cores",
    "connect",
    "local_workers",
]
