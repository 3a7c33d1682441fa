"""Run many fits in one process and check for leaks.

    python -m benchmarks.soak --fits 50

Every fifth fit is interrupted and resumed. A fifth of the fits, and at least ten, are the warm-up.
After the warm-up, the numbers of file descriptors, threads and temporary files must not grow, and
memory must grow by less than 16 MB. The exit code is 1 otherwise.

With `--inside-tasks`, each fit is a task of a new cluster in this process. Its threads must end
with the cluster. Dask keeps objects of closed workers, so the growth of memory is only printed.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import dask
import psutil
from distributed import Client, LocalCluster

from scrlm_dask.config import FitConfig, LloydConfig
from scrlm_dask.events import BlockDone, Event
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.synth import synth

from .common import scratch, workers

CONFIG = FitConfig(n_clusters=6, n_candidates=200, refine=LloydConfig(max_iter=2, persist="no"))
SPEC, ROWS, BLOCK_ROWS = MixtureSpec(16, 4), 4000, 100
_MOST_GROWTH = 16 * 2**20
_STOPPED_EVERY = 5
_WARM_AFTER = 10  # fits; the first fits load code and fill the pools of the allocator


class _StoppedError(Exception):
    pass


class _StopOnce:
    """A listener that interrupts a run while it writes labels."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, BlockDone) and event.name == "assign":
            raise _StoppedError


@dataclass(frozen=True)
class Resources:
    """Resources of this process and its children."""

    memory_bytes: int
    descriptors: int
    threads: int
    temporary_files: int


def count_resources(folder: Path) -> Resources:
    """Return the current resources, with the number of files in the folder."""
    gc.collect()
    _return_free_memory()
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return Resources(
        sum(process.memory_info().rss for process in processes),
        sum(process.num_fds() for process in processes),
        sum(process.num_threads() for process in processes),
        sum(1 for path in folder.rglob("*") if path.is_file()),
    )


def _return_free_memory() -> None:
    """Return free memory to the system, if the C library can.

    The allocator keeps up to 32 MB of freed memory for some time, which is not a leak.
    """
    with suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def _temporary_files(folder: Path) -> Iterator[None]:
    """Create all temporary files of this process in the folder."""
    folder.mkdir()
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


def soak(place: Path, fits: int, inside_tasks: bool = False) -> dict[str, Any]:
    """Run the fits; return the resources after the warm-up and at the end, and their growth."""
    store, seen = place / "features.zarr", []
    synth(store, ROWS, SPEC, chunk_bytes=BLOCK_ROWS * 4 * SPEC.n_features)
    with _temporary_files(place / "temporary"):
        for number in range(fits):
            stopped = number % _STOPPED_EVERY == 0
            run = _fit_inside_task if inside_tasks else one_fit
            run(store, place / "run", stopped)
            seen.append(count_resources(place))
    first, last = asdict(seen[min(fits, max(_WARM_AFTER, fits // 5)) - 1]), asdict(seen[-1])
    growth = {name: last[name] - first[name] for name in first}
    memory = growth["memory_bytes"]
    ok = all(growth[n] <= 0 for n in growth if n != "memory_bytes")
    ok = ok and (inside_tasks or memory < _MOST_GROWTH)
    return {"fits": fits, "first": first, "last": last, "growth": growth, "ok": ok}


def one_fit(store: Path, out: Path, stopped: bool) -> None:
    """Run a fit; if `stopped`, interrupt it once and resume it."""
    options: Any = {"out": out, "block_rows": BLOCK_ROWS}
    if stopped:
        with suppress(_StoppedError):
            fit(store, CONFIG, overwrite=True, listener=_StopOnce(), **options)
    fit(store, CONFIG, overwrite=not stopped, listener=lambda event: None, **options)


def _fit_inside_task(store: Path, out: Path, stopped: bool) -> None:
    """Run a fit in a task of a new cluster in this process."""
    options: Any = {"n_workers": 1, "threads_per_worker": 2, "processes": False}
    address = "127.0.0.1:0"
    with (
        # Dask would pause the worker, because it counts the memory of the whole process
        LocalCluster(**options, memory_limit=0, dashboard_address=address) as cluster,
        Client(cluster) as client,
    ):
        client.submit(one_fit, store, out, stopped, pure=False).result()


@click.command()
@click.option("--fits", default=50, show_default=True)
@click.option("--nworkers", default=0, show_default=True, help="0 uses threads of this process.")
@click.option("--inside-tasks", is_flag=True, help="Run each fit in a task of a new cluster.")
@click.option("--scratch", "folder", help="Folder for the data; it is kept.")
def main(fits: int, nworkers: int, inside_tasks: bool, folder: str | None) -> None:
    """Run many fits and print the growth of resources."""
    with scratch(folder) as place:
        if inside_tasks:
            report = soak(place, fits, inside_tasks)
        elif nworkers:
            with workers(nworkers, "2GB"):
                report = soak(place, fits)
        else:
            with dask.config.set(scheduler="threads", num_workers=2):
                report = soak(place, fits)
    print(json.dumps(report, indent=2))
    sys.exit(0 if report["ok"] else 1)


if __name__ == "__main__":
    main()
