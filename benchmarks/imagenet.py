"""Measure a complete fit of the size of ImageNet: 1 281 167 x 640, 1 000 clusters, 20 % outliers.

    python -m benchmarks.imagenet --scratch DIR

The fit runs SCRLM and ten iterations of k-means on a synthetic store and two workers of 3 GB each.
scikit-learn's k-means++ runs on a part of the rows; its time is extrapolated linearly to all rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import click
import numpy as np
import zarr

from scrlm_dask.config import FitConfig
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.evaluate import Evaluation, evaluate
from scrlm_dask.pipeline.fit import fit

from .common import (
    Measured,
    Spent,
    features_store,
    measured_phases,
    plain_lloyd,
    scratch,
    spilled_bytes,
    timed,
    workers,
)
from .kmeans_baselines import Task, compare, inlier_accuracy, run_labels
from .report import Table, cell
from .shapes import SIZES, Whole

_BASELINE = "scikit-learn k-means++"
_TIMEOUT = 7200
_NOTE = (
    "`accuracy` includes outliers, which are correct if they are labelled -1. k-means finds no "
    "outliers, so `accuracy in clusters` includes only rows that belong to a cluster."
)


@click.command()
@click.option("--rows", default=SIZES["imagenet"].whole.rows, show_default=True)
@click.option("--features", default=SIZES["imagenet"].whole.features, show_default=True)
@click.option("--clusters", default=SIZES["imagenet"].whole.clusters, show_default=True)
@click.option("--part", default=SIZES["imagenet"].whole.part, show_default=True)
@click.option("--scratch", "folder", help="Folder for the data; it is kept.")
def main(rows: int, features: int, clusters: int, part: int, folder: str | None) -> None:
    """Print phases, CPU and wall seconds, peak memory and accuracy."""
    with scratch(folder) as place:
        for table in measure(place, Whole(rows, features, clusters, part)):
            print(table.markdown(), end="\n\n", flush=True)


def measure(place: Path, whole: Whole) -> Iterator[Table]:
    """Yield a table of the phases of the fit, and a comparison with the baseline."""
    shape = f"{cell(whole.rows)} x {whole.features}, {cell(whole.clusters)} clusters"
    run = place / "run-whole"
    phases: list[Measured] = []
    config = FitConfig(rho=0.5, n_clusters=whole.clusters, refine=plain_lloyd(whole.refine))
    spec = MixtureSpec(whole.features, whole.clusters, whole.outliers)
    # Written before workers start: writing would raise their peak memory, which never decreases.
    store = features_store(place, whole.rows, spec)
    with workers(2, "3GB") as client:

        def work() -> None:
            found, _ = measured_phases(client, fit, store, config, out=run, overwrite=True)
            phases.extend(found)

        spent, spilled = timed(client, work), spilled_bytes(client)
        evaluation = evaluate(run)
    yield Table(f"Phases of a fit, {shape}", phase_rows(phases), f"Spilled: {spilled} bytes.")
    ours = _ours(whole.rows, spent, phases, evaluation)
    truth = np.asarray(zarr.open_group(store, mode="r")["labels"][:])
    ours["accuracy_in_clusters"] = inlier_accuracy(truth, run_labels(run))
    yield Table(f"A fit and {_BASELINE}, {shape}", [ours, *_baseline(place, whole)], _NOTE)


def phase_rows(phases: list[Measured]) -> list[dict[str, Any]]:
    """Return one table row per group of successive phases with the same name."""
    rows = []
    for name, group in groupby(phases, lambda measured: measured.phase.name):
        same = list(group)
        rows.append(
            {
                "phase": name,
                "times": len(same),
                "wall_s": sum(one.phase.seconds for one in same),
                "cpu_s": sum(one.cpu for one in same),
                "thread_seconds_reading": sum(one.phase.read_seconds for one in same),
                "peak_worker_MB": max(one.phase.peak_worker_bytes for one in same) / 1e6,
            }
        )
    return rows


def _ours(
    rows: int, spent: Spent, phases: list[Measured], evaluation: Evaluation
) -> dict[str, Any]:
    found = evaluation.scores
    return {
        "method": "scrlm_dask fit, refined",
        "rows": rows,
        "cpu_s": spent.cpu,
        "wall_s": spent.wall,
        "peak_MB": max(one.phase.peak_worker_bytes for one in phases) / 1e6,
        "clusters": found.n_clusters,
        "accuracy": found.accuracy,
        "outlier_precision": found.outlier_precision,
        "outlier_recall": found.outlier_recall,
    }


def _baseline(place: Path, whole: Whole) -> Iterator[dict[str, Any]]:
    """Yield the baseline on a part of the rows, and its linear extrapolation to all rows."""
    task = Task(whole.part, whole.features, whole.clusters, whole.outliers, whole.refine)
    ((_, found),) = compare(place, task, [_BASELINE], _TIMEOUT)
    known = {"cpu": None, "wall": None, "peak": None, "accuracy": None}
    known |= found if isinstance(found, dict) else {}
    unknown = dict.fromkeys(("clusters", "accuracy", "outlier_precision", "outlier_recall"))
    part = {
        "method": _BASELINE if isinstance(found, dict) else f"{_BASELINE}: {found}",
        "rows": whole.part,
        "cpu_s": known["cpu"],
        "wall_s": known["wall"],
        "peak_MB": known["peak"] and known["peak"] / 1e6,
        **unknown,
        "accuracy_in_clusters": known["accuracy"],
    }
    yield part
    if isinstance(found, dict):
        times = whole.rows / whole.part
        yield part | {
            "method": f"{_BASELINE}, extrapolated",
            "rows": whole.rows,
            "cpu_s": times * found["cpu"],
            "wall_s": times * found["wall"],
            "peak_MB": None,
            "accuracy_in_clusters": None,
        }


if __name__ == "__main__":
    main()
