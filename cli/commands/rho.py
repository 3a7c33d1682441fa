from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..console import Console
from ..options import cluster_options, output_options, session, storage_options
from ..scales import clusters_option, depth_option, neighbors_option, preprocess_option
from ..scanning import scan_facts, scan_table

if TYPE_CHECKING:
    from rich.console import Group


@click.command()
@click.argument("features", type=click.Path())
@clusters_option
@click.option("--plot", metavar="FILE", help="Draw the scan, e.g. to rho.png.")
@click.option(
    "--candidates", type=int, help="Rows of the sample tried as centers; default: as theory asks."
)
@neighbors_option
@depth_option
@preprocess_option("Map applied to rows first, as a fit would.")
@click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same bits.")
@click.option("--block-rows", type=int, help="Rows handled at a time; default: the store's chunks.")
@storage_options
@cluster_options
@output_options
def rho(
    console: Console,
    cluster: Any,
    storage: Any,
    features: str,
    clusters: int | None,
    plot: str | None,
    candidates: int | None,
    min_neighbors: int,
    loss_depth: float,
    preprocess: Any,
    seed: int,
    block_rows: int | None,
) -> None:
    """Say which bandwidth the Zarr store FEATURES speaks for, and how clearly.

    A sample of rows, from at least 16 random blocks, is clustered with a ladder of values of rho.
    `scrlm fit` does the same when it is given no --rho. It works in threads of this process, unless
    any option asks for workers (--nworkers, --nthreads, --memory-limit, ...), a scheduler or a
    cluster.
    """
    from scrlm_dask.config import FitConfig
    from scrlm_dask.pipeline import check_features, scan_rho
    from scrlm_dask.plots import check_plot

    if plot:
        check_plot(plot)
    asked: dict[str, Any] = {
        "n_clusters": clusters,
        "F": loss_depth,
        "preprocess": preprocess,
        "n_candidates": "auto" if candidates is None else candidates,
        "min_neighbors": min_neighbors,
        "seed": seed,
    }
    check_features(features, FitConfig(rho="auto", **asked), block_rows, storage)
    with session(console, cluster.for_little_work()):
        found = scan_rho(
            features,
            **asked,
            block_rows=block_rows,
            storage_options=storage,
            listener=console,
        )
    if plot:
        found.plot(plot)
    console.result(found.record, _tables(found.record))


def _tables(record: dict[str, Any]) -> Group:
    from rich.console import Group

    return Group(scan_table(record), scan_facts(record))
