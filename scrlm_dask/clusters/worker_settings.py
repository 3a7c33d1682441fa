"""What every worker needs that we have a say in: one thread a task, and memory that stays."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any

from scrlm_dask.settings import READ_AHEAD_SETTING

PRELOAD = "scrlm_dask.preload"
# Not Numba's: it refuses to compile when its variable changes after its threads have started, and
# may be imported before a worker's environment is set. `pinned_threads` holds it to one.
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
# One arena that keeps its memory: the buffers of a block are as large as those of the block before
# it. Given back and asked for again, their page faults cost more than reading the file.
_KEEP_MEMORY = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
}
BEFORE_START = ONE_THREAD | _KEEP_MEMORY  # malloc and BLAS look only once
# Dask pauses a worker whose process is nearly full until it gives memory back, which it never does
# with the settings above: it would wait for ever. What a run needs is planned before it begins.
_PAUSE = "distributed.worker.memory.pause"
_SPAWN = "distributed.nanny.pre-spawn-environ"
# What Dask asks a worker's event loop every 10 and 20 ms, whether it answers and what its threads
# do, takes a twentieth of a core; tasks here last for a second, so that this often is enough.
_RESTFUL = {
    "distributed.worker.profile.interval": "100ms",
    "distributed.admin.tick.interval": "200ms",
}


# Python's own process that removes semaphores behind one that was killed, as it should, and then
# warns of them on the terminal of whoever stopped it on purpose
_TRACKER_WARNINGS = "ignore:resource_tracker"


def settings(ahead: int) -> dict[str, Any]:
    """Dask's configuration of a worker, `ahead` of whose threads read ahead."""
    return {READ_AHEAD_SETTING: ahead, _PAUSE: False, **_RESTFUL}


def spawn_settings(ahead: int) -> dict[str, Any]:
    """The same with the environment, for workers that inherit our configuration."""
    return {_SPAWN: BEFORE_START, **settings(ahead)}


def environment(ahead: int) -> dict[str, str]:
    """The same as variables alone, for workers that are started by others."""
    as_variables = {
        f"DASK_{name.replace('.', '__').replace('-', '_').upper()}": str(value)
        for name, value in settings(ahead).items()
    }
    return BEFORE_START | as_variables


@contextmanager
def environment_before_spawn() -> Iterator[None]:
    """What our own workers need before they start.

    Dask puts it into the environment of this process, which therefore is put back at the end.
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
    """Start the process that tidies up after this one; without it Dask would, and let it warn."""
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (before, _TRACKER_WARNINGS)))
    try:
        resource_tracker.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = before
