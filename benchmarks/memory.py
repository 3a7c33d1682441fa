"""Measure the peak memory of workers and client for features that do not fit in their memory.

    python -m benchmarks.memory --gigabytes 4 --memory-limit 1GB

The exit code is 1 if a worker exceeded its limit or spilled, or if the client used over 500 MB.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import click
from distributed import Client

from scrlm_dask.config import FitConfig
from scrlm_dask.engine.threads import peak_memory
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.fit import fit

from .common import features_store, scratch, spilled_bytes, workers

CLIENT_LIMIT = 500e6


@click.command()
@click.option("--gigabytes", default=4.0, show_default=True)
@click.option("--features", default=640, show_default=True)
@click.option("--clusters", default=100, show_default=True)
@click.option("--nworkers", default=2, show_default=True)
@click.option("--memory-limit", default="1GB", show_default=True)
@click.option("--scratch", "folder", help="Folder for the data; it is kept.")
def main(
    gigabytes: float,
    features: int,
    clusters: int,
    nworkers: int,
    memory_limit: str,
    folder: str | None,
) -> None:
    """Run an out-of-core fit and print the peak memory."""
    rows = int(gigabytes * 1e9 / (4 * features))
    with scratch(folder) as place, workers(nworkers, memory_limit) as client:
        store = features_store(place, rows, MixtureSpec(features, clusters))
        result = fit(
            store, FitConfig(rho=0.5, n_clusters=clusters), out=place / "run", overwrite=True
        )
        report = measure(client, result.record)
    print(json.dumps(report, indent=2))
    sys.exit(0 if report["ok"] else 1)


def measure(client: Client, record: dict[str, Any]) -> dict[str, Any]:
    limits = {a: w["memory_limit"] for a, w in client.scheduler_info(-1)["workers"].items()}
    peaks = {a: w["peak_memory_bytes"] for a, w in record["workers"].items()}
    spilled = spilled_bytes(client)
    ok = (
        peaks.keys() == limits.keys()  # a restarted worker would have another address
        and all(peaks[a] < limits[a] for a in peaks)
        and spilled == 0
        and peak_memory() < CLIENT_LIMIT
    )
    return {
        "rows": record["features"]["rows"],
        "bytes": record["features"]["rows"] * record["features"]["features"] * 4,
        "seconds": record["seconds"],
        "clusters": record["clusters"],
        "worker_limits": limits,
        "worker_peaks": peaks,
        "spilled_bytes": spilled,
        "client_peak": peak_memory(),
        "ok": ok,
    }


if __name__ == "__main__":
    main()
