"""The bare matrix product in the worker processes, as a reference for the passes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from distributed import Client

from scrlm_dask.engine.threads import pinned_threads

from .common import Spent


def product_spent(client: Client, rows: int, features: int, points: int, height: int) -> Spent:
    """Compute the product with the rows divided among the workers, as in a pass.

    Return the wall seconds of the slowest worker and the CPU seconds of all workers. Workers
    compute at the same time, because cores that share caches and memory slow each other down.
    """
    addresses = list(client.nthreads())
    share = -(-rows // len(addresses))
    futures = [
        client.submit(_product, share, features, points, height, workers=[a], pure=False)
        for a in addresses
    ]
    shares: list[Spent] = client.gather(futures)
    return Spent(max(share.wall for share in shares), sum(share.cpu for share in shares))


def products(
    client: Client, rows: int, features: int, points: int, repeats: int
) -> Iterator[Spent]:
    """Yield the times of the product: with one call per block of 64 MB, and with one per tile."""
    block_rows = 64 * 2**20 // (4 * features)
    for height in (block_rows, 1024):
        for _ in range(repeats):
            yield product_spent(client, rows, features, points, height)


def best_product_cpu(
    client: Client, rows: int, features: int, points: int, repeats: int
) -> list[float]:
    """Return the CPU seconds of all measurements of the product."""
    return [spent.cpu for spent in products(client, rows, features, points, repeats)]


def _product(rows: int, features: int, points: int, height: int) -> Spent:
    rng = np.random.default_rng(0)
    height = min(height, rows)
    x = rng.standard_normal((height, features), dtype=np.float32)
    c = rng.standard_normal((points, features), dtype=np.float32)
    out = np.empty((height, points), np.float32)
    with pinned_threads():
        np.matmul(x, c.T, out=out)
        wall, cpu = time.perf_counter(), time.process_time()
        for start in range(0, rows, height):
            here = min(height, rows - start)
            np.matmul(x[:here], c.T, out=out[:here])
        return Spent(time.perf_counter() - wall, time.process_time() - cpu)
