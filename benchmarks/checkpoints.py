"""What it costs to keep the work of a run: seconds of saving against those of the run.

    python -m benchmarks.checkpoints --rows 200000

A fit that keeps its work and one that does not, in turns, in CPU seconds of this process and of its
threads. Exits with 1 if the best of the first takes over 2 % more than the best of the second.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import dask

from scrlm_dask.config import FitConfig, LloydConfig
from scrlm_dask.engine.checkpointing import CheckpointScope
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.fit import fit

from .common import features_store, scratch

_MOST_SHARE = 0.02


@contextmanager
def keeping_nothing() -> Iterator[None]:
    """Passes run as they do for features in memory: nothing of them is saved."""
    groups = CheckpointScope.groups
    CheckpointScope.groups = lambda *args, **kwargs: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        CheckpointScope.groups = groups  # type: ignore[method-assign]


def measured(store: Path, out: Path, config: FitConfig) -> dict[str, float]:
    begin, cpu = time.perf_counter(), time.process_time()
    fit(store, config, out=out, overwrite=True)
    return {"seconds": time.perf_counter() - begin, "cpu_seconds": time.process_time() - cpu}


def compare(store: Path, place: Path, config: FitConfig, turns: int) -> dict[str, Any]:
    measured(store, place / "first", config)  # compiles, and fills the disk's cache
    kept, plain = [], []
    for turn in range(turns):
        with keeping_nothing():
            plain.append(measured(store, place / f"plain-{turn}", config))
        kept.append(measured(store, place / f"kept-{turn}", config))
    best = {
        name: (min(run[name] for run in kept), min(run[name] for run in plain))
        for name in ("seconds", "cpu_seconds")
    }
    share = best["cpu_seconds"][0] / best["cpu_seconds"][1] - 1.0
    return {"kept": kept, "plain": plain, "cpu_share": share, "ok": share < _MOST_SHARE}


@click.command()
@click.option("--rows", default=200_000, show_default=True)
@click.option("--features", default=640, show_default=True)
@click.option("--clusters", default=100, show_default=True)
@click.option("--turns", default=3, show_default=True)
@click.option("--scratch", "folder", help="Keep the data here.")
def main(rows: int, features: int, clusters: int, turns: int, folder: str | None) -> None:
    """Fit with and without keeping the work, and print both."""
    config = FitConfig(n_clusters=clusters, refine=LloydConfig(max_iter=3, persist="no"))
    with scratch(folder) as place, dask.config.set(scheduler="threads", num_workers=2):
        store = features_store(place, rows, MixtureSpec(features, clusters), 16 * 2**20)
        report = compare(store, place, config, turns)
    print(json.dumps(report, indent=2))
    sys.exit(0 if report["ok"] else 1)


if __name__ == "__main__":
    main()
