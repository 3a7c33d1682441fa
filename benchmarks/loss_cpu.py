"""Compare CPU seconds of the loss pass (Dask, Zarr) with the bare matrix product.

    python -m benchmarks.loss_cpu --rows 131072 --candidates 4096

Pass and product run in the same worker processes. Operands and result of the product are in memory.
The product is computed with one call per block, and with one call per tile; the faster way counts.
"""

from __future__ import annotations

from typing import Any

import click
from distributed import Client

from scrlm_dask.config import FitConfig
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.fit import fit

from .common import (
    Measured,
    features_store,
    measured_phases,
    phases_called,
    print_ratio,
    scratch,
    workers,
)
from .product import best_product_cpu


@click.command()
@click.option("--rows", default=131_072, show_default=True)
@click.option("--features", default=640, show_default=True)
@click.option("--clusters", default=100, show_default=True)
@click.option("--candidates", default=4096, show_default=True)
@click.option("--rho", default=0.5, show_default=True)
@click.option("--nworkers", default=2, show_default=True)
@click.option("--repeats", default=3, show_default=True)
@click.option("--scratch", "folder", help="Folder for the data; it is kept.")
def main(
    rows: int,
    features: int,
    clusters: int,
    candidates: int,
    rho: float,
    nworkers: int,
    repeats: int,
    folder: str | None,
) -> None:
    """Print CPU seconds of pass and product, and the ratio of the best repeats."""
    with scratch(folder) as place, workers(nworkers, "4GB") as client:
        store = features_store(place, rows, MixtureSpec(features, clusters))
        config = FitConfig(rho=rho, n_candidates=candidates)
        loss = [loss_cpu(client, store, config) for _ in range(repeats)]
        product = best_product_cpu(client, rows, features, candidates, repeats)
    print_ratio("loss pass", loss, product)


def loss_cpu(client: Client, store: Any, config: FitConfig) -> float:
    """Return the CPU seconds of all workers in the loss pass."""
    return loss_pass(client, store, config).cpu


def loss_pass(client: Client, store: Any, config: FitConfig, **reading: Any) -> Measured:
    """Run a fit; return its loss pass."""
    phases, _ = measured_phases(client, fit, store, config, **reading)
    return phases_called("loss", phases)[0]


if __name__ == "__main__":
    main()
