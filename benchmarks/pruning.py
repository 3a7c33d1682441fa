"""CPU seconds of pruned passes, through Dask and from Zarr, against the bare matrix product.

    python -m benchmarks.pruning --size full

The loss pass on the isotropic mixture and on real images, labelling with a radius, and ten k-means
iterations on MNIST beside `superkmeans`, where that is installed. Reads are included; each row is
measured in the same worker processes as the product that it is compared with.
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
    """How large the mixtures are, and whether real images are fetched."""

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
@click.option("--scratch", "folder", help="Keep the data here.")
def main(size: str, nworkers: int, folder: str | None) -> None:
    """Print a table: what was done, CPU seconds, those of the product, their ratio, the cuts."""
    print("| pass | CPU s | product | ratio | cuts |\n|---|---|---|---|---|")
    with scratch(folder) as place, workers(nworkers, "4GB") as client:
        for row in measure(client, place, size):
            print(
                f"| {row['what']} | {row['cpu']:.2f} | {row['product']:.2f} | "
                f"{row['cpu'] / row['product']:.3f} | {row['cuts']} |",
                flush=True,
            )


def tools(size: str) -> tuple[str, ...]:
    """Commands that must be there."""
    return ("npm", "apt-get", "dpkg") if SIZES[size].images else ()


def measure(client: Client, folder: Path, size: str) -> Iterator[dict[str, Any]]:
    """One entry a pass: what, cpu, product, cuts."""
    wanted = SIZES[size]
    if wanted.images:
        yield from _lloyd(client, mnist_store(folder), wanted)
        shape = 60_000, 784, wanted.candidates
        yield _loss(client, mnist_store(folder), shape, 0.5, "scale", wanted)
        yield _loss(client, fashion_store(folder), shape, 0.75, "scale", wanted)
    store = features_store(folder, wanted.rows, MixtureSpec(wanted.features, 100))
    shape = wanted.rows, wanted.features, wanted.candidates
    for rho in (0.3, 0.5, 0.75):
        yield _loss(client, store, shape, rho, "standardize", wanted)
    yield _labelling(client, folder, wanted)


def _loss(
    client: Client, store: Path, shape: tuple[int, int, int], rho: float, kind: Any, size: Size
) -> dict[str, Any]:
    config = FitConfig(rho=rho, n_candidates=shape[2], preprocess=kind)
    runs = [_phases(client, ("loss",), fit, store, config) for _ in range(size.repeats)]
    what = f"loss, {store.stem}, rho {rho}, n {shape[2]}"
    return _entry(client, what, [run[0] for run in runs], runs[0][1]["loss"], shape, size)


def _labelling(client: Client, folder: Path, size: Size) -> dict[str, Any]:
    """With the radius of rho 0.5, by the centers that are found among the candidates."""
    store = features_store(folder, size.rows, MixtureSpec(size.features, size.centers))
    config = FitConfig(rho=0.5, n_clusters=size.centers, n_candidates=size.candidates)
    runs = [_phases(client, ("assign",), fit, store, config) for _ in range(size.repeats)]
    n_centers = runs[0][1]["assign"]["pairs"] // size.rows
    shape = size.rows, size.features, n_centers
    what = f"assign, {store.stem}, rho 0.5, k {n_centers}"
    return _entry(client, what, [run[0] for run in runs], runs[0][1]["assign"], shape, size)


def _lloyd(client: Client, store: Path, size: Size) -> list[dict[str, Any]]:
    """Ten iterations from the first rows, with the read and the projection that they need once."""
    k, iterations = size.centers, 10
    init = np.asarray(open_features(store)[:k].compute())
    lloyd = LloydConfig(max_iter=iterations, tol=0.0, inertia_tol=0.0)
    config = KMeansConfig(n_clusters=k, init="given", lloyd=lloyd)
    runs = [
        _phases(client, ("hold", "project", "kmeans-step"), kmeans, store, config, centers=init)
        for _ in range(size.repeats)
    ]
    shape = 60_000, 784, k
    what = f"k-means, MNIST, k {k}, {iterations} iterations"
    cuts = runs[0][1]["kmeans-step"]
    found = [_entry(client, what, [run[0] for run in runs], cuts, shape, size, iterations)]
    if importlib.util.find_spec("superkmeans") is not None:
        pixels = np.asarray(open_features(store).compute())
        peer = [_superkmeans(pixels, k, iterations) for _ in range(size.repeats)]
        found.append({**found[0], "what": "superkmeans, the same", "cpu": min(peer), "cuts": ""})
    return found


def _superkmeans(x: Any, k: int, iterations: int) -> float:
    """One thread, as a worker has, and no early end: CPU seconds of its training."""
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
    """CPU seconds of all workers in the phases of these names, and what was pruned."""
    phases, done = measured_phases(client, run, *args, **kwargs)
    cpu = sum(phase.cpu for name in names for phase in phases_called(name, phases))
    return cpu, done.record["pruning"]


def _entry(
    client: Client,
    what: str,
    cpu: list[float],
    pruning: dict[str, Any],
    shape: tuple[int, int, int],
    size: Size,
    times: int = 1,
) -> dict[str, Any]:
    """Beside the product of the shape, so many times."""
    product = best_product_cpu(client, *shape, 1)
    cuts = ", ".join(f"{cut}: {blocks}" for cut, blocks in pruning["blocks"].items())
    return {"what": what, "cpu": min(cpu), "product": times * min(product), "cuts": cuts}


if __name__ == "__main__":
    main()
