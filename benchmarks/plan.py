"""Compare the predictions of `scrlm plan` with a fit on newly started workers.

    python -m benchmarks.plan --rows 200000 --clusters 100

The exit code is 1 if the predicted total time differs from the measured time by more than 30 %, or
if a worker or the client used more memory than predicted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click
from distributed import get_client

from scrlm_dask.clusters.connect import connect
from scrlm_dask.clusters.local import available_cores
from scrlm_dask.clusters.options import ClusterOptions
from scrlm_dask.config import FitConfig, LloydConfig
from scrlm_dask.engine.threads import peak_memory
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.fit import fit

from .common import cpu_seconds, features_store, scratch

_TOLERANCE = 0.3  # relative error of the total time


@click.command()
@click.option("--rows", default=200_000, show_default=True)
@click.option("--features", default=640, show_default=True)
@click.option("--clusters", default=100, show_default=True)
@click.option("--kmeans-iter", default=3, show_default=True)
@click.option("--block-rows", type=int, help="Rows per block (default: from the store's chunks).")
@click.option("--margins/--no-margins", default=True, show_default=True)
@click.option("--polish", is_flag=True)
@click.option("--nworkers", default=2, show_default=True)
@click.option("--nthreads", default=1, show_default=True)
@click.option("--memory-limit", default="2GB", show_default=True)
@click.option("--scratch", "folder", help="Folder for the data; it is kept.")
def main(
    rows: int,
    features: int,
    clusters: int,
    kmeans_iter: int,
    block_rows: int | None,
    margins: bool,
    polish: bool,
    nworkers: int,
    nthreads: int,
    memory_limit: str,
    folder: str | None,
) -> None:
    """Predict time and memory of a fit, run the fit, and print prediction and measurement."""
    lloyd = LloydConfig(max_iter=kmeans_iter, tol=0.0, inertia_tol=0.0, persist="no")
    config = FitConfig(rho=0.5, n_clusters=clusters, polish=polish, refine=lloyd, margins=margins)
    cluster = ClusterOptions(nworkers=nworkers, nthreads=nthreads, memory_limit=memory_limit)
    with scratch(folder) as place:
        with connect(cluster):
            store = features_store(place, rows, MixtureSpec(features, clusters))
        plan = predicted(store, config, cluster, block_rows)
        with connect(cluster):
            before = cpu_seconds(get_client())
            record = _run(store, config, place / "run", block_rows)
            cpu = cpu_seconds(get_client()) - before
    report = compared(plan, record)
    # Far below 1 if other processes use the machine; the plan is then not at fault.
    report["busy"] = cpu / record["seconds"] / min(nworkers * nthreads, available_cores())
    print(json.dumps(report, indent=2))
    sys.exit(0 if report["ok"] else 1)


def _quiet(event: object) -> None:
    """Ignore all events of the fit."""


def _run(store: Path, config: FitConfig, out: Path, block_rows: int | None) -> dict[str, Any]:
    done = fit(store, config, out=out, overwrite=True, block_rows=block_rows, listener=_quiet)
    return done.record


def predicted(
    store: Path, config: FitConfig, cluster: ClusterOptions, block_rows: int | None
) -> dict[str, Any]:
    """Return the output of `scrlm plan`.

    It runs in a separate process, so that it does not raise the peak memory of the client.
    """
    options: dict[str, Any] = {
        "rho": config.rho,
        "clusters": config.n_clusters,
        "nworkers": cluster.nworkers,
        "nthreads": cluster.nthreads,
        "memory-limit": cluster.memory_limit,
    }
    if block_rows is not None:
        options["block-rows"] = block_rows
    if config.refine.max_iter:
        options |= {"kmeans-iter": config.refine.max_iter, "persist": config.refine.persist}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    words += ["--margins" if config.margins else "--no-margins"]
    words += ["--polish"] if config.polish else []
    command = [str(Path(sys.executable).parent / "scrlm"), "plan", str(store), "--json", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan


def compared(plan: dict[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    """Compare seconds per phase (for the actual number of iterations) and memory."""
    times = Counter(phase["name"] for phase in record["phases"])
    planned = {phase["name"]: times[phase["name"]] * phase["seconds"] for phase in plan["phases"]}
    total = plan["start_seconds"] + sum(planned.values())
    measured = Counter[str]()
    for phase in record["phases"]:
        measured[phase["name"]] += phase["seconds"]
    peaks = [worker["peak_memory_bytes"] for worker in record["workers"].values()]
    ratio = total / record["seconds"]
    ok = abs(ratio - 1.0) <= _TOLERANCE
    ok &= max(peaks) <= plan["worker_bytes"] and peak_memory() <= plan["client_bytes"]
    return {
        "phases": {
            name: {"predicted": planned.get(name, 0.0), "measured": seconds}
            for name, seconds in measured.items()
        },
        "start": plan["start_seconds"],  # included in the measured time of the first phases
        "seconds": {"predicted": total, "measured": record["seconds"], "ratio": ratio},
        "worker_bytes": {"predicted": plan["worker_bytes"], "measured": peaks},
        "client_bytes": {"predicted": plan["client_bytes"], "measured": peak_memory()},
        "calibration_seconds": plan["calibration_seconds"],
        "ok": ok,
    }


if __name__ == "__main__":
    main()
