"""Compare CPU seconds of a k-means iteration (Dask, Zarr) with the bare matrix product.

    python -m benchmarks.kmeans_cpu --rows 131072 --clusters 1000

Iterations and products run in the same worker processes. Iterations read the features from disk.
"""

from __future__ import annotations

from typing import Any

import click
import numpy as np
from distributed import Client

from scrlm_dask.config import KMeansConfig
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.kmeans import kmeans
from scrlm_dask.pipeline.stores import open_features

from .common import (
    Measured,
    features_store,
    measured_phases,
    phases_called,
    plain_lloyd,
    print_ratio,
    scratch,
    workers,
)
from .product import best_product_cpu


@click.command()
@click.option("--rows", default=131_072, show_default=True)
@click.option("--features", default=640, show_default=True)
@click.option("--clusters", default=1000, show_default=True)
@click.option("--iterations", default=5, show_default=True)
@click.option("--nworkers", default=2, show_default=True)
@click.option("--scratch", "folder", help="Folder for the data; it is kept.")
def main(
    rows: int, features: int, clusters: int, iterations: int, nworkers: int, folder: str | None
) -> None:
    """Print CPU seconds of iterations and products, and the ratio of the best ones."""
    with scratch(folder) as place, workers(nworkers, "4GB") as client:
        store = features_store(place, rows, MixtureSpec(features, clusters))
        steps = iteration_cpu(client, store, clusters, iterations)
        product = best_product_cpu(client, rows, features, clusters, 3)
    print_ratio("iteration", steps, product)


def iteration_cpu(client: Client, store: Any, clusters: int, iterations: int) -> list[float]:
    """Return the CPU seconds of all workers in each iteration, reads included."""
    return [step.cpu for step in kmeans_steps(client, store, clusters, iterations)]


def kmeans_steps(
    client: Client, store: Any, clusters: int, iterations: int, **reading: Any
) -> list[Measured]:
    """Run k-means from disk with the first rows as initial centers; return its iterations."""
    init = np.asarray(open_features(store)[:clusters].compute())
    config = KMeansConfig(n_clusters=clusters, init="given", lloyd=plain_lloyd(iterations))
    phases, _ = measured_phases(client, kmeans, store, config, centers=init, **reading)
    return phases_called("kmeans-step", phases)


if __name__ == "__main__":
    main()
