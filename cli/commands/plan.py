from __future__ import annotations

from typing import Any

import click

from ..console import Console
from ..fitting import fit_options, local_memories
from ..options import cluster_options, output_options, session
from ..tables import plan_summary


@click.command()
@click.argument("features", type=click.Path())
@fit_options
@cluster_options
@output_options
def plan(
    console: Console,
    cluster: Any,
    storage: Any,
    features: str,
    asked: dict[str, Any],
    block_rows: int | None,
) -> None:
    """Say what `scrlm fit` would take with these options: FLOPs, bytes, memory and time.

    Kernels and reads are measured here for about 2 seconds, on rows of FEATURES. A fit that does
    not fit the workers' memory is refused, with the settings that would make it fit.
    """
    from dataclasses import asdict

    from scrlm_dask.cluster import available_cores
    from scrlm_dask.config import FitConfig
    from scrlm_dask.passes.clients import worker_memories
    from scrlm_dask.pipeline import check_features, plan_fit

    config = FitConfig(**asked)
    workers, cores = local_memories(cluster), available_cores()
    if workers is None:
        check_features(features, config, block_rows, storage)
        cores = None  # theirs, which are as many as they have threads
        with session(console, cluster):
            workers = worker_memories()
    found = plan_fit(
        features,
        config,
        workers=workers,
        n_cores=cores,
        block_rows=block_rows,
        storage_options=storage,
    )
    content = asdict(found)
    console.result(content, plan_summary(content))
    for note in found.notes:
        console.say(note)
