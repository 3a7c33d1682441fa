"""CPU seconds of the loss pass, through Dask and from Zarr, against the bare matrix product.

    python -m benchmarks.loss_cpu --rows 131072 --candidates 4096

Both are measured in the same worker processes of one run. The product has its operands and its
result in memory and is called in the cheaper of two ways: as one call a block, and tile by tile.
"""

from __future__ import annotations

import time
from typing import Any

import click
import numpy as np
from distributed import Client

from scrlm_dask.config import FitConfig
from scrlm_dask.events import PhaseFinished, PhaseStarted
from scrlm_dask.kernels.synthesis import MixtureSpec
from scrlm_dask.pipeline import fit
from scrlm_dask.resources import pinned_threads

from .common import cpu_seconds, features_store, scratch, workers


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
        block_rows = 64 * 2**20 // (4 * features)
        product = [
            product_cpu(client, rows, features, candidates, height)
            for height in (block_rows, 1024)
            for _ in range(repeats)
        ]
    print(f"loss pass       {min(loss):8.2f} CPU s   (all: {', '.join(f'{s:.2f}' for s in loss)})")
    print(
        f"bare product    {min(product):8.2f} CPU s   "
        f"(all: {', '.join(f'{s:.2f}' for s in product)})"
    )
    print(f"ratio           {min(loss) / min(product):8.3f}")


def loss_cpu(client: Client, store: Any, config: FitConfig) -> float:
    """CPU seconds of all workers from the start to the end of the loss pass."""
    marks: dict[str, float] = {}

    def listener(event: Any) -> None:
        if isinstance(event, PhaseStarted | PhaseFinished) and event.name == "loss":
            marks[type(event).__name__] = cpu_seconds(client)

    fit(store, config, listener=listener)
    return marks["PhaseFinished"] - marks["PhaseStarted"]


def product_cpu(client: Client, rows: int, features: int, candidates: int, height: int) -> float:
    """CPU seconds of the product alone, the rows shared among the workers as in the pass.

    All at once: cores that share caches and memory are slower together than one alone.
    """
    addresses = list(client.nthreads())
    share = -(-rows // len(addresses))
    futures = [
        client.submit(_product, share, features, candidates, height, workers=[a], pure=False)
        for a in addresses
    ]
    return float(sum(client.gather(futures)))


def _product(rows: int, features: int, candidates: int, height: int) -> float:
    rng = np.random.default_rng(0)
    height = min(height, rows)
    x = rng.standard_normal((height, features), dtype=np.float32)
    c = rng.standard_normal((candidates, features), dtype=np.float32)
    out = np.empty((height, candidates), np.float32)
    with pinned_threads():
        np.matmul(x, c.T, out=out)
        begin = time.process_time()
        for start in range(0, rows, height):
            here = min(height, rows - start)
            np.matmul(x[:here], c.T, out=out[:here])
        return time.process_time() - begin


if __name__ == "__main__":
    main()
