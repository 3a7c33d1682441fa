"""Ways to run the same work, for contract tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from scrlm_dask.clusters.connect import connect
from scrlm_dask.clusters.options import ClusterOptions

BACKENDS = {
    "one thread": ClusterOptions(nworkers=0, nthreads=1),
    "three threads": ClusterOptions(nworkers=0, nthreads=3),
    "one worker": ClusterOptions(nworkers=1, nthreads=1, memory_limit="2GB"),
    "two workers of two threads": ClusterOptions(nworkers=2, nthreads=2, memory_limit="2GB"),
}


@contextmanager
def backend(name: str) -> Iterator[None]:
    with connect(BACKENDS[name]):
        yield
