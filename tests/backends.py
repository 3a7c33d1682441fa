"""Clusters of different sizes for tests whose result must not depend on the backend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from scrlm_dask.clusters.connect import connect
from scrlm_dask.clusters.options import ClusterOptions

BACKENDS = {
    "one thread": ClusterOptions(nworkers=0, nthreads=1),
    "three threads": ClusterOptions(nworkers=0, nthreads=3),
    "one worker of one thread": ClusterOptions(nworkers=1, nthreads=1, memory_limit="2GB"),
    "two workers of two threads": ClusterOptions(nworkers=2, nthreads=2, memory_limit="2GB"),
    "three workers of one thread": ClusterOptions(nworkers=3, nthreads=1, memory_limit="2GB"),
}

# Parameters of tests that run on every backend; the fast tests start at most two workers.
EVERY_BACKEND = [
    pytest.param(name, marks=pytest.mark.slow if name.startswith("three workers") else ())
    for name in BACKENDS
]


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Run the body on the named backend."""
    with connect(BACKENDS[name]):
        yield
