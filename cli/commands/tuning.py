"""Commands before a fit: rho, plan."""

from __future__ import annotations

from typing import Any

import click

from ..options import fitting, shared
from ..tables.summaries import plan_summary, scan_facts, scan_table
from ..terminal.console import Console


@click.command()
@click.argument("features", type=click.Path())
@fitting.clusters_option
@click.option("--plot", metavar="FILE", help="Draw the scan, e.g. to rho.png.")
@click.option(
    "--candidates",
    "n_candidates",
    type=int,
    help="Rows of the sample tried as centers; default: as theory asks.",
)
@fitting.neighbors_option
@fitting.depth_option
@fitting.preprocess_option("Map applied to rows first, as a fit would.")
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
    """Say which bandwidth the Zarr store FEATURES speaks for, and how clearly.

    A sample of rows, from at least 16 random blocks, is clustered with a ladder of values of rho.
    `scrlm fit` does the same when it is given no --rho. It works in threads of this process, unless
    any option asks for workers (--nworkers, --nthreads, --memory-limit, ...), a scheduler or a
    cluster.
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
    """Say what `scrlm fit` would take with these options: FLOPs, bytes, memory and time.

    Kernels and reads are measured here for about 2 seconds, on rows of FEATURES. A fit that does
    not fit the workers' memory is refused, with the settings that would make it fit.
    """
    from dataclasses import asdict

    from scrlm_dask.clusters.local import available_cores
    from scrlm_dask.engine.workers import worker_memories
    from scrlm_dask.pipeline.plan import prepare_plan

    config = fitting.fit_config(values)
    job = prepare_plan(features, config, block_rows=block_rows, storage_options=storage)
    workers, cores = fitting.local_memories(cluster), available_cores()
    if workers is None:
        cores = None  # a scheduler's workers have as many as they have threads
        with shared.session(console, cluster):
            workers = worker_memories()
    result = job.run(workers, cores)
    content = asdict(result)
    console.result(content, plan_summary(content))
    for note in result.notes:
        console.say(note)
