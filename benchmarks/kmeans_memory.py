"""Compare the peak memory of workers and client in k-means for two sizes of features.

    python -m benchmarks.kmeans_memory --gigabytes 0.4 --times 10

The exit code is 1 if the larger size took over 15 % more memory than the smaller, if a worker
exceeded the planned memory, or if a worker spilled.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import click

from scrlm_dask.config import KMeansConfig
from scrlm_dask.engine.threads import peak_memory
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.kmeans import kmeans

from .common import features_store, plain_lloyd, scratch, spilled_bytes, workers

_GROWTH = 1.15  # tolerance, because allocators and the order of tasks vary


@click.command()
@click.option("--gigabytes", default=0.4, show_default=True, help="Size of the smaller store.")
@click.option(
    "--times", default=10, show_default=True, help="Ratio of the larger size to the smaller."
)
@click.option("--features", default=640, show_default=True)
@click.option("--clusters", default=1000, show_default=True)
@click.option("--nworkers", default=2, show_default=True)
@click.option("--memory-limit", default="1GB", show_default=True)
@click.option("--scratch", "folder", help="Folder for the data; it is kept.")
@click.option("--one", is_flag=True, hidden=True, help="Measure only this size in this process.")
def main(
    gigabytes: float,
    times: int,
    features: int,
    clusters: int,
    nworkers: int,
    memory_limit: str,
    folder: str | None,
    one: bool,
) -> None:
    """Run out-of-core k-means on two sizes and print the peak memory."""
    if one:
        rows = int(gigabytes * 1e9 / (4 * features))
        print(json.dumps(measure(rows, features, clusters, nworkers, memory_limit, folder)))
        return
    with scratch(folder) as place:
        # A separate process for each size, because the peak memory of a process never decreases.
        reports = [_in_a_process(size, str(place)) for size in (gigabytes, gigabytes * times)]
    small, large = reports
    ok = all(report["spilled_bytes"] == 0 for report in reports)
    ok &= max(large["worker_peaks"]) <= _GROWTH * max(small["worker_peaks"])
    ok &= large["client_peak"] <= _GROWTH * small["client_peak"]
    ok &= all(max(report["worker_peaks"]) <= report["planned"] for report in reports)
    print(json.dumps({"small": small, "large": large, "ok": ok}, indent=2))
    sys.exit(0 if ok else 1)


def measure(
    rows: int, features: int, clusters: int, nworkers: int, memory_limit: str, folder: str | None
) -> dict[str, Any]:
    config = KMeansConfig(n_clusters=clusters, init="random", lloyd=plain_lloyd(3))
    with scratch(folder) as place, workers(nworkers, memory_limit) as client:
        store = features_store(place, rows, MixtureSpec(features, clusters))
        result = kmeans(store, config, out=place / f"run-{rows}", overwrite=True)
        return {
            "rows": rows,
            "bytes": 4 * rows * features,
            "seconds": result.record["seconds"],
            "planned": result.record["plan"]["worker_bytes"],
            "worker_peaks": [w["peak_memory_bytes"] for w in result.record["workers"].values()],
            "spilled_bytes": spilled_bytes(client),
            "client_peak": peak_memory(),
        }


def _in_a_process(gigabytes: float, place: str) -> dict[str, Any]:
    context = click.get_current_context()
    options = {**context.params, "gigabytes": gigabytes, "scratch": place}
    names = ("gigabytes", "features", "clusters", "nworkers", "memory_limit", "scratch")
    words = [w for n in names for w in (f"--{n.replace('_', '-')}", str(options[n]))]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kmeans_memory", "--one", *words],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


if __name__ == "__main__":
    main()
