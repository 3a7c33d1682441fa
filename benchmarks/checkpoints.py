"""Measure the cost of checkpoints.

    python -m benchmarks.checkpoints --rows 200000

Fits with and without checkpoints alternate. CPU seconds are those of this process with all of its
threads. The exit code is 1 if the best fit with checkpoints takes over 2 % more CPU seconds than
the best fit without.
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
def without_checkpoints() -> Iterator[None]:
    """Disable the checkpoints of passes, as a fit does for features in memory."""
    groups = CheckpointScope.groups
    CheckpointScope.groups = lambda *args, **kwargs: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        CheckpointScope.groups = groups  # type: ignore[method-assign]


def measure_fit(store: Path, out: Path, config: FitConfig) -> dict[str, float]:
    """Return wall and CPU seconds of a fit."""
    begin, cpu = time.perf_counter(), time.process_time()
    fit(store, config, out=out, overwrite=True)
    return {"seconds": time.perf_counter() - begin, "cpu_seconds": time.process_time() - cpu}


def compare(store: Path, place: Path, config: FitConfig, turns: int) -> dict[str, Any]:
    """Return the times of fits with and without checkpoints, and the relative cost."""
    measure_fit(store, place / "first", config)  # compiles kernels and fills the disk cache
    kept, plain = [], []
    for turn in range(turns):
        with without_checkpoints():
            plain.append(measure_fit(store, place / f"plain-{turn}", config))
        kept.append(measure_fit(store, place / f"kept-{turn}", config))
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
@click.option("--scratch", "folder", help="Folder for the data; it is kept.")
def main(rows: int, features: int, clusters: int, turns: int, folder: str | None) -> None:
    """Fit with and without checkpoints and print the times."""
    config = FitConfig(n_clusters=clusters, refine=LloydConfig(max_iter=3, persist="no"))
    with scratch(folder) as place, dask.config.set(scheduler="threads", num_workers=2):
        store = features_store(place, rows, MixtureSpec(features, clusters), 16 * 2**20)
        report = compare(store, place, config, turns)
    print(json.dumps(report, indent=2))
    sys.exit(0 if report["ok"] else 1)


if __name__ == "__main__":
    main()
