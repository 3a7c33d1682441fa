"""Compare CPU seconds of pruned passes (Dask, Zarr) with the bare matrix product.

    python -m benchmarks.pruning --size full

Measured are the loss pass on the isotropic mixture and on real images, labelling with a radius, and
ten k-means iterations on MNIST, together with `superkmeans` if it is installed. Reads are included.
Pass and product are measured in the same worker processes.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from distributed import Client

from scrlm_dask.config import FitConfig, KMeansConfig, LloydConfig
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.paper.datasets import fashion_store, mnist_store
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.kmeans import kmeans
from scrlm_dask.pipeline.stores import open_features

from .common import features_store, measured_phases, phases_called, scratch, workers
from .product import best_product_cpu


@dataclass(frozen=True)
class Size:
    """Size of the mixtures, and whether real images are downloaded."""

    rows: int
    features: int
    candidates: int
    centers: int
    repeats: int
    images: bool


SIZES = {
    "smoke": Size(8192, 64, 256, 100, 1, False),
    "full": Size(327_680, 640, 4096, 1000, 2, True),
}


@click.command()
@click.option("--size", type=click.Choice(list(SIZES)), default="full", show_default=True)
@click.option("--nworkers", default=2, show_default=True)
@click.option("--scratch", "folder", help="Folder for the data; it is kept.")
def main(size: str, nworkers: int, folder: str | None) -> None:
    """Print CPU seconds of pass and product, their ratio, and blocks per subspace, as a table."""
    print("| pass | CPU s | product | ratio | blocks per subspace |\n|---|---|---|---|---|")
    with scratch(folder) as place, workers(nworkers, "4GB") as client:
        for row in measure(client, place, size):
            print(
                f"| {row['what']} | {row['cpu']:.2f} | {row['product']:.2f} | "
                f"{row['cpu'] / row['product']:.3f} | {row['cuts']} |",
                flush=True,
            )


def tools(size: str) -> tuple[str, ...]:
    """Return the programs that are required to download images."""
    return ("npm", "apt-get", "dpkg") if SIZES[size].images else ()


def measure(client: Client, folder: Path, size: str) -> Iterator[dict[str, Any]]:
    """Yield one entry per pass: title, CPU seconds of pass and product, blocks per subspace."""
    chosen = SIZES[size]
    if chosen.images:
        yield from _lloyd(client, mnist_store(folder), chosen)
        shape = 60_000, 784, chosen.candidates
        yield _loss(client, mnist_store(folder), shape, 0.5, "scale", chosen)
        yield _loss(client, fashion_store(folder), shape, 0.75, "scale", chosen)
    store = features_store(folder, chosen.rows, MixtureSpec(chosen.features, 100))
    shape = chosen.rows, chosen.features, chosen.candidates
    for rho in (0.3, 0.5, 0.75):
        yield _loss(client, store, shape, rho, "standardize", chosen)
    yield _labelling(client, folder, chosen)


def _loss(
    client: Client, store: Path, shape: tuple[int, int, int], rho: float, kind: Any, size: Size
) -> dict[str, Any]:
    config = FitConfig(rho=rho, n_candidates=shape[2], preprocess=kind)
    runs = [_phases(client, ("loss",), fit, store, config) for _ in range(size.repeats)]
    title = f"loss, {store.stem}, rho {rho}, n {shape[2]}"
    return _entry(client, title, [run[0] for run in runs], runs[0][1]["loss"], shape, size)


def _labelling(client: Client, folder: Path, size: Size) -> dict[str, Any]:
    """Measure labelling with the centers and the radius of a fit with rho 0.5."""
    store = features_store(folder, size.rows, MixtureSpec(size.features, size.centers))
    config = FitConfig(rho=0.5, n_clusters=size.centers, n_candidates=size.candidates)
    runs = [_phases(client, ("assign",), fit, store, config) for _ in range(size.repeats)]
    n_centers = runs[0][1]["assign"]["pairs"] // size.rows
    shape = size.rows, size.features, n_centers
    title = f"assign, {store.stem}, rho 0.5, k {n_centers}"
    return _entry(client, title, [run[0] for run in runs], runs[0][1]["assign"], shape, size)


def _lloyd(client: Client, store: Path, size: Size) -> list[dict[str, Any]]:
    """Measure ten iterations, including the first read and the projection.

    The first rows are the initial centers.
    """
    k, iterations = size.centers, 10
    init = np.asarray(open_features(store)[:k].compute())
    lloyd = LloydConfig(max_iter=iterations, tol=0.0, inertia_tol=0.0)
    config = KMeansConfig(n_clusters=k, init="given", lloyd=lloyd)
    runs = [
        _phases(client, ("hold", "project", "kmeans-step"), kmeans, store, config, centers=init)
        for _ in range(size.repeats)
    ]
    shape = 60_000, 784, k
    title = f"k-means, MNIST, k {k}, {iterations} iterations"
    pruning = runs[0][1]["kmeans-step"]
    found = [_entry(client, title, [run[0] for run in runs], pruning, shape, size, iterations)]
    if importlib.util.find_spec("superkmeans") is not None:
        pixels = np.asarray(open_features(store).compute())
        other = [_superkmeans(pixels, k, iterations) for _ in range(size.repeats)]
        found.append({**found[0], "what": "superkmeans, same data", "cpu": min(other), "cuts": ""})
    return found


def _superkmeans(x: Any, k: int, iterations: int) -> float:
    """Return the CPU seconds of superkmeans in one thread, without early termination."""
    from superkmeans import SuperKMeans

    fitted = SuperKMeans(
        n_clusters=k,
        dimensionality=x.shape[1],
        iters=iterations,
        n_threads=1,
        hierarchical=False,
        early_termination=False,
        sampling_fraction=1.0,
        max_points_per_cluster=10**9,
        seed=0,
    )
    begin = time.process_time()
    fitted.train(x)
    return time.process_time() - begin


def _phases(
    client: Client, names: tuple[str, ...], run: Callable[..., Any], *args: Any, **kwargs: Any
) -> tuple[float, dict[str, Any]]:
    """Return the CPU seconds of all workers in the named phases, and the record of pruning."""
    phases, done = measured_phases(client, run, *args, **kwargs)
    cpu = sum(phase.cpu for name in names for phase in phases_called(name, phases))
    return cpu, done.record["pruning"]


def _entry(
    client: Client,
    title: str,
    cpu: list[float],
    pruning: dict[str, Any],
    shape: tuple[int, int, int],
    size: Size,
    times: int = 1,
) -> dict[str, Any]:
    """Return the table row of a pass; `times` is the number of products it is compared with."""
    product = best_product_cpu(client, *shape, 1)
    cuts = ", ".join(f"{axes}: {blocks}" for axes, blocks in pruning["blocks"].items())
    return {"what": title, "cpu": min(cpu), "product": times * min(product), "cuts": cuts}


if __name__ == "__main__":
    main()
