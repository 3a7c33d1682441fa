"""k-means of this package beside the ones that people use, each in a process of its own.

    python -m benchmarks.kmeans_peers --rows 200000 --clusters 1000

All get the same rows of the paper's mixture and the same number of iterations. CPU seconds are
those of the process and its workers; peers hold the features in memory, `scrlm_dask` reads them
from disk. Peers that are not installed are left out with a word.
"""

from __future__ import annotations

import importlib.util
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels.metrics import contingency, scores
from scrlm_dask.kernels.synthesis import MixtureSpec

from .common import features_store, scratch, spilled_bytes, workers

Result = tuple[NDArray[Any], NDArray[Any]]  # centers and labels


@click.command()
@click.option("--rows", default=200_000, show_default=True)
@click.option("--features", default=640, show_default=True)
@click.option("--clusters", default=1000, show_default=True)
@click.option("--outliers", default=0.2, show_default=True)
@click.option("--iterations", default=10, show_default=True)
@click.option("--timeout", default=1800, show_default=True, help="Seconds for each method.")
@click.option("--method", "methods", multiple=True, help="Only these; may be repeated.")
@click.option("--scratch", "folder", help="Keep the data here.")
@click.option("--one", hidden=True, help="Measure this method, in this process.")
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
    spec = MixtureSpec(features, clusters, outliers)
    if one is not None:
        assert folder is not None
        print(json.dumps(measure(one, Path(folder), rows, spec, iterations)))
        return
    print("| method | CPU s | wall s | peak MB | inertia | accuracy |\n|---|---|---|---|---|---|")
    with scratch(folder) as place:
        with workers(2, "2GB"):
            features_store(place, rows, spec)
        for method in methods or METHODS:
            print(_row(method, _in_a_process(method, place, timeout)), flush=True)


def measure(
    method: str, place: Path, rows: int, spec: MixtureSpec, iterations: int
) -> dict[str, Any]:
    """CPU and wall seconds of the method alone, without reading the data for its peers."""
    import zarr

    group = zarr.open_group(features_store(place, rows, spec), mode="r")
    if method.startswith("scrlm_dask"):
        report, (centers, labels) = _ours(method, place, rows, spec, iterations)
        x = np.asarray(group["features"][:])
    else:
        x = np.asarray(group["features"][:])
        cpu, begin = _cpu(), time.perf_counter()
        centers, labels = METHODS[method](x, spec.n_clusters, iterations)
        report = {
            "cpu": _cpu() - cpu,
            "wall": time.perf_counter() - begin,
            "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }
    inliers = np.asarray(group["labels"][:]) >= 0
    truth = np.asarray(group["labels"][:])[inliers]
    # accuracy over the rows of clusters: none of these methods knows outliers
    table = contingency(truth, np.asarray(labels, np.int64)[inliers])
    return {**report, "inertia": _inertia(x, centers), "accuracy": scores(table).accuracy}


def _ours(
    method: str, place: Path, rows: int, spec: MixtureSpec, iterations: int
) -> tuple[dict[str, Any], Result]:
    from scrlm_dask.config import KMeansConfig, LloydConfig
    from scrlm_dask.pipeline import kmeans
    from scrlm_dask.storage.labels import open_labels

    from .common import cpu_seconds

    init: Any = method.split()[1]
    lloyd = LloydConfig(max_iter=iterations, tol=0.0, inertia_tol=0.0, persist="no")
    config = KMeansConfig(n_clusters=spec.n_clusters, init=init, lloyd=lloyd)
    store, out = features_store(place, rows, spec), place / "run"
    with workers(2, "2GB") as client:
        cpu, begin = _cpu() + cpu_seconds(client), time.perf_counter()
        result = kmeans(store, config, out=out, overwrite=True)
        assert spilled_bytes(client) == 0
        report = {
            "cpu": _cpu() + cpu_seconds(client) - cpu,
            "wall": time.perf_counter() - begin,
            "peak": max(w["peak_memory_bytes"] for w in result.record["workers"].values()),
        }
    import zarr

    labels = zarr.open_array(open_labels(out / "labels.zarr", "the labels").url, mode="r")
    return report, (result.model.centers, np.asarray(labels[:]))


def _sklearn(init: str) -> Callable[..., Result]:
    def run(x: NDArray[Any], k: int, iterations: int) -> Result:
        from sklearn.cluster import KMeans

        fitted = KMeans(
            k, init=init, n_init=1, max_iter=iterations, tol=0.0, algorithm="lloyd", random_state=0
        ).fit(x)
        return fitted.cluster_centers_, fitted.labels_

    return run


def _faiss(x: NDArray[Any], k: int, iterations: int) -> Result:
    import faiss

    fitted = faiss.Kmeans(x.shape[1], k, niter=iterations, seed=1, max_points_per_centroid=10**9)
    fitted.train(x)
    return fitted.centroids, fitted.index.search(x, 1)[1][:, 0]


def _dask_ml(x: NDArray[Any], k: int, iterations: int) -> Result:
    import dask.array as da
    from dask_ml.cluster import KMeans

    rows = 64 * 2**20 // x[0].nbytes
    fitted = KMeans(k, init="random", max_iter=iterations, tol=0.0, random_state=0)
    fitted.fit(da.from_array(x, chunks=(rows, -1)))
    return fitted.cluster_centers_, np.asarray(fitted.labels_)


def _superkmeans(x: NDArray[Any], k: int, iterations: int) -> Result:
    from superkmeans import SuperKMeans

    fitted = SuperKMeans(
        n_clusters=k,
        dimensionality=x.shape[1],
        iters=iterations,
        hierarchical=False,
        early_termination=False,
        sampling_fraction=1.0,
        max_points_per_cluster=10**9,
        seed=0,
    )
    centers = fitted.train(x)
    return np.asarray(centers), np.asarray(fitted.assign(x, centers))


METHODS: dict[str, Any] = {
    "scrlm_dask scrlm": None,
    "scrlm_dask random": None,
    "scrlm_dask k-means++": None,
    "scrlm_dask k-means||": None,
    "scikit-learn k-means++": _sklearn("k-means++"),
    "scikit-learn random": _sklearn("random"),
    "faiss": _faiss,
    "dask-ml random": _dask_ml,
    "superkmeans": _superkmeans,
}
_MODULES = {"faiss": "faiss", "dask-ml random": "dask_ml", "superkmeans": "superkmeans"}


def _in_a_process(method: str, place: Path, timeout: int) -> dict[str, Any] | str:
    if method in _MODULES and importlib.util.find_spec(_MODULES[method]) is None:
        return "not installed"
    given = click.get_current_context().params
    names = ("rows", "features", "clusters", "outliers", "iterations")
    words = [word for name in names for word in (f"--{name}", str(given[name]))]
    words += ["--scratch", str(place)]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.kmeans_peers", "--one", method, *words],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return f"not done in {timeout} s"
    except subprocess.CalledProcessError as error:
        return f"failed with code {error.returncode}"
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
    """The same measure for all: squared distances in float64 to the given centers."""
    from sklearn.metrics import pairwise_distances_argmin

    nearest = pairwise_distances_argmin(x, centers.astype(np.float32))
    total = 0.0
    for start in range(0, len(x), 10_000):
        here = slice(start, start + 10_000)
        total += float(np.square(x[here].astype(np.float64) - centers[nearest[here]]).sum())
    return total


def _cpu() -> float:
    """CPU seconds of this process and of its children that have ended."""
    usages = (resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


if __name__ == "__main__":
    main()
