"""Many fits in one process: memory, file descriptors, threads and temporary files do not grow.

    python -m benchmarks.soak --fits 50

Every fifth fit is stopped on its way and resumed. What is there after a fifth of the fits, and at
least ten, must be all that is there after the last one, but for 16 MB of memory. Exits with 1 if it
is not.
"""

from __future__ import annotations

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
_WARM_AFTER = 10  # fits: until then code is loaded, and the allocator finds its size


class _StoppedError(Exception):
    pass


class _StopOnce:
    """Stops a run in the middle of its labels."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, BlockDone) and event.name == "assign":
            raise _StoppedError


@dataclass(frozen=True)
class Held:
    """What this process holds, with its children."""

    memory_bytes: int
    descriptors: int
    threads: int
    temporary_files: int


def held(folder: Path) -> Held:
    gc.collect()
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return Held(
        sum(process.memory_info().rss for process in family),
        sum(process.num_fds() for process in family),
        sum(process.num_threads() for process in family),
        sum(1 for path in folder.rglob("*") if path.is_file()),
    )


@contextmanager
def _temporary_files(folder: Path) -> Iterator[None]:
    """Whatever asks for a temporary file in this process gets it here."""
    folder.mkdir()
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


def soak(place: Path, fits: int) -> dict[str, Any]:
    """What is held after each fit, and by how much it grew once the process was warm."""
    store, seen = place / "features.zarr", []
    synth(store, ROWS, SPEC, chunk_bytes=BLOCK_ROWS * 4 * SPEC.n_features)
    with _temporary_files(place / "temporary"):
        for number in range(fits):
            one_fit(store, place / "run", stopped=number % _STOPPED_EVERY == 0)
            seen.append(held(place))
    first, last = asdict(seen[min(fits, max(_WARM_AFTER, fits // 5)) - 1]), asdict(seen[-1])
    growth = {name: last[name] - first[name] for name in first}
    memory = growth["memory_bytes"]
    ok = memory < _MOST_GROWTH and all(growth[n] <= 0 for n in growth if n != "memory_bytes")
    return {"fits": fits, "first": first, "last": last, "growth": growth, "ok": ok}


def one_fit(store: Path, out: Path, stopped: bool) -> None:
    options: Any = {"out": out, "block_rows": BLOCK_ROWS}
    if stopped:
        with suppress(_StoppedError):
            fit(store, CONFIG, overwrite=True, listener=_StopOnce(), **options)
    fit(store, CONFIG, overwrite=not stopped, listener=lambda event: None, **options)


@click.command()
@click.option("--fits", default=50, show_default=True)
@click.option("--nworkers", default=0, show_default=True, help="0: threads of this process.")
@click.option("--scratch", "folder", help="Keep the data here.")
def main(fits: int, nworkers: int, folder: str | None) -> None:
    """Fit again and again and print what is held."""
    with scratch(folder) as place:
        if nworkers:
            with workers(nworkers, "2GB"):
                report = soak(place, fits)
        else:
            with dask.config.set(scheduler="threads", num_workers=2):
                report = soak(place, fits)
    print(json.dumps(report, indent=2))
    sys.exit(0 if report["ok"] else 1)


if __name__ == "__main__":
    main()
