"""Measure the fixed cost of a small block: runs over many blocks with few rows.

    python -m benchmarks.small_blocks --blocks 20000 --nworkers 2

The runs are a fit, k-means with sample weights in a file, k-means that begins on a random half of
the blocks, and the comparison of all blocks with their digests. Each chunk of the store is one
block. The CPU seconds of a pass are those of this process, which includes Dask's scheduler, and of
the workers, from the end of the previous pass on. The first pass of a run includes opening the
store and reading the weights.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import dask
import numpy as np
import psutil
import zarr

from scrlm_dask import FeatureStore
from scrlm_dask.config import FitConfig, KMeansConfig, LloydConfig
from scrlm_dask.engine.features import as_features
from scrlm_dask.events import Event, PhaseFinished
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.kmeans import kmeans

from .common import Spent, scratch, warm_up, workers
from .report import Table

BLOCK_ROWS, FEATURES = 50, 16
_LLOYD = LloydConfig(max_iter=2, tol=0.0, inertia_tol=0.0, persist="no")
_FIT = FitConfig(rho=0.5, n_clusters=10, n_candidates=200, refine=_LLOYD)
_WEIGHTED = KMeansConfig(10, "random", _LLOYD)
_SAMPLED = KMeansConfig(10, "k-means++", replace(_LLOYD, sample=0.5))


class _Clock:
    """Measure the time since the last call, of this process and its child processes."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), _cpu_seconds()

    def lap(self) -> Spent:
        """Return the time since the last lap."""
        wall, cpu = time.perf_counter(), _cpu_seconds()
        spent = Spent(wall - self._wall, cpu - self._cpu)
        self._wall, self._cpu = wall, cpu
        return spent


def _cpu_seconds() -> float:
    own = psutil.Process()
    times = [process.cpu_times() for process in (own, *own.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def small_block_store(place: Path, blocks: int) -> Path:
    """Return a Zarr array of normally distributed rows, one chunk per block."""
    path = place / f"blocks-{blocks}.zarr"
    if not path.exists():
        shape = (blocks * BLOCK_ROWS, FEATURES)
        array = zarr.create_array(path, shape=shape, chunks=(BLOCK_ROWS, FEATURES), dtype="float32")
        array[:] = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return path


def measure(store: Path, out: Path, blocks: int) -> list[dict[str, Any]]:
    """Open the store and run the cases; return the time of each pass."""
    clock, rows, case = _Clock(), [], "fit"
    weights = out.with_name(f"weights-{blocks}.npy")
    np.save(weights, np.linspace(1.0, 2.0, blocks * BLOCK_ROWS))

    def add(name: str, n_blocks: int) -> None:
        spent = clock.lap()
        per_block = 1000 * spent.cpu / n_blocks
        rows.append(
            {
                "run": case,
                "pass": name,
                "blocks": n_blocks,
                "wall_s": spent.wall,
                "cpu_s": spent.cpu,
                "cpu_ms_per_block": per_block,
            }
        )
        print(rows[-1], flush=True)

    def listener(event: Event) -> None:
        if isinstance(event, PhaseFinished):
            add(event.name, event.blocks or blocks)

    as_features(store, BLOCK_ROWS)
    add("open", blocks)
    fit(store, _FIT, out=out, overwrite=True, block_rows=BLOCK_ROWS, listener=listener)
    case = "weighted k-means"
    kmeans(store, _WEIGHTED, sample_weight=weights, block_rows=BLOCK_ROWS, listener=listener)
    case = "sampled k-means"
    kmeans(store, _SAMPLED, block_rows=BLOCK_ROWS, listener=listener)
    case, copy = "verification", out.with_name(f"copy-{blocks}.zarr")
    if not copy.exists():
        FeatureStore.write(store, copy, chunk_bytes=4 * BLOCK_ROWS * FEATURES)
    clock.lap()
    FeatureStore(copy).verify()
    add("verify", blocks)
    return rows


def _start(nworkers: int) -> AbstractContextManager[Any]:
    if nworkers:
        return workers(nworkers, "4GB")
    return dask.config.set(scheduler="threads", num_workers=2)


@click.command()
@click.option("--blocks", default=20_000, show_default=True)
@click.option("--nworkers", default=0, show_default=True, help="0 uses 2 threads of this process.")
@click.option("--scratch", "folder", help="Folder for the data; it is kept.")
def main(blocks: int, nworkers: int, folder: str | None) -> None:
    """Print wall and CPU seconds of each pass over small blocks."""
    with scratch(folder) as place, _start(nworkers):
        store = small_block_store(place, blocks)
        warm_up()
        rows = measure(store, place / "run", blocks)
    print(Table(f"{blocks} blocks of {BLOCK_ROWS} x {FEATURES}", rows).markdown())


if __name__ == "__main__":
    main()
