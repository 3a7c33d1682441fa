"""Compare k-means of this package with other libraries, each in its own process.

    python -m benchmarks.kmeans_baselines --rows 200000 --clusters 1000

All methods get the same rows of the paper's mixture and the same number of iterations. CPU seconds
are those of the process and its workers. Other libraries keep the features in memory; `scrlm_dask`
reads them from disk. The table names libraries that are not installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from scrlm_dask.config import KMeansConfig
from scrlm_dask.engine.threads import cpu_seconds as process_cpu
from scrlm_dask.engine.threads import peak_memory
from scrlm_dask.kernels.evaluation.metrics import contingency, scores
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.paper import baselines
from scrlm_dask.paper.baselines import find_missing_requirement
from scrlm_dask.pipeline.kmeans import kmeans
from scrlm_dask.storage.label_store import open_labels

from .common import (
    cpu_seconds,
    features_store,
    plain_lloyd,
    scratch,
    spilled_bytes,
    workers,
)

_WARM_UP_ROWS = 1024


@click.command()
@click.option("--rows", default=200_000, show_default=True)
@click.option("--features", default=640, show_default=True)
@click.option("--clusters", default=1000, show_default=True)
@click.option("--outliers", default=0.2, show_default=True)
@click.option("--iterations", default=10, show_default=True)
@click.option("--timeout", default=1800, show_default=True, help="Seconds per method.")
@click.option("--method", "methods", multiple=True, help="Run only this method; may be repeated.")
@click.option("--scratch", "folder", help="Folder for the data; it is kept.")
@click.option("--one", hidden=True, help="Measure only this method in this process.")
def main(
    rows: int,
    features: int,
    clusters: int,
    outliers: float,
    iterations: int,
    timeout: int,
    methods: tuple[str, ...],
    folder: str | None,
    one: str | None,
) -> None:
    """Print a table: CPU and wall seconds, peak memory, inertia and accuracy."""
    task = Task(rows, features, clusters, outliers, iterations)
    if one is not None:
        assert folder is not None
        print(json.dumps(measure(one, Path(folder), task)))
        return
    print("| method | CPU s | wall s | peak MB | inertia | accuracy |\n|---|---|---|---|---|---|")
    with scratch(folder) as place:
        for method, report in compare(place, task, methods or tuple(METHODS), timeout):
            print(_row(method, report), flush=True)


@dataclass(frozen=True)
class Task:
    """Size of the mixture, number of clusters and iterations; the same for all methods."""

    rows: int
    features: int
    clusters: int
    outliers: float
    iterations: int

    @property
    def spec(self) -> MixtureSpec:
        return MixtureSpec(self.features, self.clusters, self.outliers)


def compare(
    place: Path, task: Task, methods: Sequence[str], timeout: int
) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Yield each method with its measurements, or with the reason why there are none."""
    features_store(place, task.rows, task.spec)
    for method in methods:
        yield method, _in_a_process(method, place, task, timeout)


def measure(method: str, place: Path, task: Task) -> dict[str, Any]:
    """Return time, memory, inertia and accuracy of a method.

    For other libraries, the time to read the data is not included.
    """
    import zarr

    group = zarr.open_group(features_store(place, task.rows, task.spec), mode="r")
    if method.startswith("scrlm_dask"):
        report, (centers, labels) = _ours(method, place, task)
        x = np.asarray(group["features"][:])
    else:
        x = np.asarray(group["features"][:])
        METHODS[method](x[:_WARM_UP_ROWS], 2, 1)  # imports and compiles, like `warm_up` of workers
        cpu, begin = process_cpu(), time.perf_counter()
        centers, labels = METHODS[method](x, task.clusters, task.iterations)
        report = {
            "cpu": process_cpu() - cpu,
            "wall": time.perf_counter() - begin,
            "peak": peak_memory(),
        }
    accuracy = inlier_accuracy(np.asarray(group["labels"][:]), labels)
    return {**report, "inertia": _inertia(x, centers), "accuracy": accuracy}


def inlier_accuracy(truth: NDArray[Any], labels: NDArray[Any]) -> float:
    """Return the accuracy over rows that are not outliers, because k-means finds no outliers."""
    inliers = truth >= 0
    table = contingency(truth[inliers], np.asarray(labels, np.int64)[inliers])
    return scores(table).accuracy


def _ours(method: str, place: Path, task: Task) -> tuple[dict[str, Any], baselines.Clustered]:
    init: Any = method.split()[1]
    config = KMeansConfig(task.clusters, init, plain_lloyd(task.iterations))
    store, out = features_store(place, task.rows, task.spec), place / "run"
    with workers(2, "2GB") as client:
        cpu, begin = process_cpu() + cpu_seconds(client), time.perf_counter()
        result = kmeans(store, config, out=out, overwrite=True)
        assert spilled_bytes(client) == 0
        report = {
            "cpu": process_cpu() + cpu_seconds(client) - cpu,
            "wall": time.perf_counter() - begin,
            "peak": max(w["peak_memory_bytes"] for w in result.record["workers"].values()),
        }
    return report, baselines.Clustered(result.model.centers, run_labels(out))


def run_labels(run: Path) -> NDArray[Any]:
    """Return all labels of a run."""
    import zarr

    labels = zarr.open_array(open_labels(run / "labels.zarr", "the labels").location.url, mode="r")
    return np.asarray(labels[:])


METHODS: dict[str, Any] = {
    "scrlm_dask scrlm": None,
    "scrlm_dask random": None,
    "scrlm_dask k-means++": None,
    "scrlm_dask k-means||": None,
    "scikit-learn k-means++": partial(baselines.sklearn_kmeans, seed=0, init="k-means++", tol=0.0),
    "scikit-learn random": partial(baselines.sklearn_kmeans, seed=0, init="random", tol=0.0),
    "faiss": partial(baselines.faiss_kmeans, seed=1),
    "faiss superkmeans": partial(baselines.faiss_superkmeans, seed=1),
    "dask-ml random": partial(baselines.dask_ml_kmeans, seed=0, init="random", tol=0.0),
    "superkmeans": partial(baselines.superkmeans, seed=0),
}
_OPTIONAL = {  # methods of optional packages, and their names in `scrlm_dask.paper.baselines`
    "faiss": "faiss",
    "faiss superkmeans": "faiss-superkmeans",
    "dask-ml random": "dask-ml",
    "superkmeans": "superkmeans",
}


def _in_a_process(method: str, place: Path, task: Task, timeout: int) -> dict[str, Any] | str:
    missing = find_missing_requirement(_OPTIONAL[method]) if method in _OPTIONAL else None
    if missing is not None:
        return missing
    words = [word for name, value in asdict(task).items() for word in (f"--{name}", str(value))]
    words += ["--scratch", str(place.absolute())]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.kmeans_baselines", "--one", method, *words],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=timeout,
            cwd=Path(__file__).parents[1],  # the folder that contains `benchmarks`
        )
    except subprocess.TimeoutExpired:
        return f"not finished within {timeout} s"
    except subprocess.CalledProcessError as error:
        return f"failed with exit code {error.returncode}"
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def _row(method: str, report: dict[str, Any] | str) -> str:
    if isinstance(report, str):
        return f"| {method} | {report} | | | | |"
    return (
        f"| {method} | {report['cpu']:.1f} | {report['wall']:.1f} | {report['peak'] / 1e6:.0f} | "
        f"{report['inertia']:.6g} | {report['accuracy']:.2%} |"
    )


def _inertia(x: NDArray[Any], centers: NDArray[Any]) -> float:
    """Return the sum of squared distances to the nearest centers, in float64 for all methods."""
    from sklearn.metrics import pairwise_distances_argmin

    nearest = pairwise_distances_argmin(x, centers.astype(np.float32))
    total = 0.0
    for start in range(0, len(x), 10_000):
        here = slice(start, start + 10_000)
        total += float(np.square(x[here].astype(np.float64) - centers[nearest[here]]).sum())
    return total


if __name__ == "__main__":
    main()
