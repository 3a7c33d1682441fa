"""CPU seconds of the loss pass, through Dask and from Zarr, against the bare matrix product.

    python -m benchmarks.loss_cpu --rows 131072 --candidates 4096

Both are measured in the same worker processes of one run. The product has its operands and its
result in memory and is called in the cheaper of two ways: as one call a block, and tile by tile.
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
@click.option("--scratch", "folder", help="Keep the data here.")
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
    """Print CPU seconds and their ratio, best of some repeats."""
    with scratch(folder) as place, workers(nworkers, "4GB") as client:
        store = features_store(place, rows, MixtureSpec(features, clusters))
        config = FitConfig(rho=rho, n_candidates=candidates)
        loss = [loss_cpu(client, store, config) for _ in range(repeats)]
        product = best_product_cpu(client, rows, features, candidates, repeats)
    print_ratio("loss pass", loss, product)


def loss_cpu(client: Client, store: Any, config: FitConfig) -> float:
    """CPU seconds of all workers from the start to the end of the loss pass."""
    return loss_pass(client, store, config).cpu


def loss_pass(client: Client, store: Any, config: FitConfig, **reading: Any) -> Measured:
    """The loss pass of a fit."""
    phases, _ = measured_phases(client, fit, store, config, **reading)
    return phases_called("loss", phases)[0]


if __name__ == "__main__":
    main()
