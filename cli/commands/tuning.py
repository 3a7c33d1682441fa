"""Commands that prepare a fit: rho, plan."""

from __future__ import annotations

from typing import Any

import click

from ..options import fitting, shared
from ..tables.summaries import plan_summary, scan_facts, scan_table
from ..terminal.console import Console


@click.command()
@click.argument("features", type=click.Path())
@fitting.clusters_option
@click.option("--plot", metavar="FILE", help="Plot the scan to this file, e.g. rho.png.")
@click.option(
    "--candidates",
    "n_candidates",
    type=int,
    help="Number of sampled rows tried as centers (default: the number that the theory requires).",
)
@fitting.neighbors_option
@fitting.depth_option
@fitting.fit_preprocess_option
@shared.seed_option
@shared.block_rows_option
@shared.storage_options
@shared.cluster_options
@shared.output_options
def rho(
    console: Console,
    cluster: Any,
    storage: Any,
    features: str,
    plot: str | None,
    block_rows: int | None,
    **values: Any,
) -> None:
    """Choose rho, number of clusters and preprocessing for FEATURES; report how reliable they are.

    Clusters a sample of rows, from at least 16 random blocks, with a range of trial bandwidths. If
    the data shows no clear scale, numbers of clusters are compared instead. `scrlm fit` without
    --rho does the same.

    Runs in threads of this process unless an option selects workers (--nworkers, --nthreads,
    --memory-limit, ...), an existing scheduler or a cluster.
    """
    from rich.console import Group

    from scrlm_dask.pipeline.rho import prepare_scan
    from scrlm_dask.reporting.plots import check_plot
    from scrlm_dask.runs.record import ScanRecord

    if plot:
        check_plot(plot)
    config = fitting.fit_config(values)
    job = prepare_scan(features, config, block_rows=block_rows, storage_options=storage)
    with shared.session(console, cluster.for_little_work()):
        scan = job.run(console)
    if plot:
        scan.plot(plot)
    record = ScanRecord.from_json(scan.record)
    console.result(scan.record, Group(scan_table(record), scan_facts(record)))


@click.command()
@click.argument("features", type=click.Path())
@fitting.fit_options
@shared.cluster_options
@shared.output_options
def plan(
    console: Console,
    cluster: Any,
    storage: Any,
    features: str,
    block_rows: int | None,
    **values: Any,
) -> None:
    """Predict FLOPs, bytes read, memory and time of `scrlm fit`.

    Takes the options of `scrlm fit`. Measures kernels and reads for about 2 seconds on rows of
    FEATURES. Rejects a fit that exceeds the workers' memory, and suggests settings that fit.
    """
    from dataclasses import asdict

    from scrlm_dask.clusters.local import available_cores
    from scrlm_dask.engine.workers import worker_memories
    from scrlm_dask.pipeline.plan import prepare_plan

    config = fitting.fit_config(values)
    job = prepare_plan(features, config, block_rows=block_rows, storage_options=storage)
    workers, cores = fitting.local_memories(cluster), available_cores()
    if workers is None:
        cores = None  # unknown on other machines: the plan assumes one core per thread
        with shared.session(console, cluster):
            workers = worker_memories()
    result = job.run(workers, cores)
    content = asdict(result)
    console.result(content, plan_summary(content))
    for note in result.notes:
        console.say(note)
