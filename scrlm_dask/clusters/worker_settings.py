"""Environment and configuration of workers: one thread per task, and memory that is reused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any

from scrlm_dask.settings import READ_AHEAD_SETTING

PRELOAD = "scrlm_dask.preload"
# Numba's variable is not set: Numba may be imported before a worker's environment is set, and does
# not compile if the variable changes after its threads have started. `pinned_threads` limits it.
ONE_THREAD = dict.fromkeys(
    (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "BLIS_NUM_THREADS",
        "VECLIB_MAXIMUM_THREADS",
    ),
    "1",
)
# Use one arena and never trim it: the next block needs buffers of the same size, and page faults
# of new memory cost more time than reading the file.
_KEEP_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
}
BEFORE_START = ONE_THREAD | _KEEP_MEMORY  # malloc and BLAS read these variables only at their start
# Dask pauses a worker that is close to its memory limit until the worker releases memory. With the
# settings above a worker never releases memory, so it would pause without end. Instead, the memory
# is planned before the run.
_PAUSE = "distributed.worker.memory.pause"
_SPAWN = "distributed.nanny.pre-spawn-environ"
# Dask's defaults of 10 and 20 ms use 5 % of a core; tasks here take about a second.
_LONG_INTERVALS = {
    "distributed.worker.profile.interval": "100ms",
    "distributed.admin.tick.interval": "200ms",
}
# Python's resource tracker removes the semaphores of a killed process and warns about them, even if
# the user stopped the process.
_TRACKER_WARNINGS = "ignore:resource_tracker"


def worker_config(ahead: int) -> dict[str, Any]:
    """Return the Dask configuration of a worker with `ahead` threads that prefetch."""
    return {READ_AHEAD_SETTING: ahead, _PAUSE: False, **_LONG_INTERVALS}


def spawn_settings(ahead: int) -> dict[str, Any]:
    """Return configuration and environment for workers that inherit the Dask configuration."""
    return {_SPAWN: BEFORE_START, **worker_config(ahead)}


def worker_environment(ahead: int) -> dict[str, str]:
    """Return configuration and environment of workers as environment variables.

    Workers of a batch system or of Kubernetes do not inherit the Dask configuration.
    """
    as_variables = {
        f"DASK_{name.replace('.', '__').replace('-', '_').upper()}": str(value)
        for name, value in worker_config(ahead).items()
    }
    return BEFORE_START | as_variables


@contextmanager
def environment_before_spawn() -> Iterator[None]:
    """Let local workers inherit the variables in `BEFORE_START`.

    Dask sets these variables in this process when it starts a worker. Their former values are
    restored at the end of the `with` block.
    """
    import dask

    before = {name: os.environ.get(name) for name in BEFORE_START}
    try:
        with dask.config.set({_SPAWN: BEFORE_START}):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def start_quiet_tracker() -> None:
    """Start Python's resource tracker without its warnings, before Dask starts it."""
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (before, _TRACKER_WARNINGS)))
    try:
        resource_tracker.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = before
