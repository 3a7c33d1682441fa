from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..console import Console
from ..lloyd import lloyd_options
from ..options import cluster_options, output_options, session, storage_options
from ..tables import fit_summary

if TYPE_CHECKING:
    from scrlm_dask.pipeline import Fit

KINDS = ("standardize", "center", "scale", "none", "l2")


@click.command()
@click.argument("features", type=click.Path())
@click.option("--out", metavar="RUN", required=True, help="Run directory to write.")
@click.option(
    "--rho",
    type=float,
    default=0.5,
    show_default=True,
    help="Bandwidth, in units of the preprocessed features; see the README.",
)
@click.option("--clusters", type=int, help="At most so many; without it, as many as are there.")
@click.option("--candidates", type=int, help="Rows tried as centers; default: what theory asks.")
@click.option("--loss-rows", type=int, help="Judge candidates on a random subset of rows.")
@click.option(
    "--min-neighbors",
    type=int,
    default=1,
    show_default=True,
    help="Other rows a center needs inside its radius.",
)
@click.option(
    "--F", "loss_depth", type=float, default=2.5, show_default=True, help="Depth of the loss."
)
@click.option(
    "--preprocess",
    type=click.Choice(KINDS),
    default=KINDS[0],
    show_default=True,
    help="Map applied to rows first; l2 is for cosine distance.",
)
@click.option("--polish", is_flag=True, help="Move centers to the mean of the rows inside R.")
@click.option(
    "--kmeans-iter",
    type=int,
    default=0,
    show_default=True,
    help="Refine the centers by so many iterations of k-means.",
)
@click.option(
    "--robust/--no-robust",
    default=True,
    show_default=True,
    help="Outliers take no part in k-means; or, as in the paper, all rows do and all are labelled.",
)
@lloyd_options
@click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same bits.")
@click.option("--block-rows", type=int, help="Rows handled at a time; default: the store's chunks.")
@click.option("--overwrite", is_flag=True, help="Replace a run that exists.")
@storage_options
@cluster_options
@output_options
def fit(
    console: Console,
    cluster: Any,
    storage: Any,
    lloyd: dict[str, Any],
    features: str,
    out: str,
    rho: float,
    clusters: int | None,
    candidates: int | None,
    loss_rows: int | None,
    min_neighbors: int,
    loss_depth: float,
    preprocess: Any,
    polish: bool,
    kmeans_iter: int,
    robust: bool,
    seed: int,
    block_rows: int | None,
    overwrite: bool,
) -> None:
    """Find clusters and outliers in the Zarr store FEATURES.

    RUN gets model.zarr (centers, weights, sigmas), labels.zarr (a label, distance and margin for
    every row; -1 is an outlier) and run.json (what was done and how long it took).
    """
    from scrlm_dask.config import FitConfig, LloydConfig
    from scrlm_dask.pipeline import check_fit
    from scrlm_dask.pipeline import fit as run_fit

    config = FitConfig(
        rho=rho,
        F=loss_depth,
        n_clusters=clusters,
        n_candidates="auto" if candidates is None else candidates,
        loss_rows="all" if loss_rows is None else loss_rows,
        min_neighbors=min_neighbors,
        preprocess=preprocess,
        seed=seed,
        polish=polish,
        refine=LloydConfig(max_iter=kmeans_iter, **lloyd),
        robust=robust,
    )
    check_fit(features, config, out, overwrite, block_rows, storage)
    with session(console, cluster):
        result = run_fit(
            features,
            config,
            out=out,
            overwrite=overwrite,
            block_rows=block_rows,
            storage_options=storage,
            listener=console,
        )
    content = summary(result, out)
    console.result(content, fit_summary(content, result.model))
    console.say(f"written to {out}: model.zarr, labels.zarr, run.json")


def summary(result: Fit, out: str) -> dict[str, Any]:
    """The fit in numbers, for --json and for the tables."""
    model, record = result.model, result.record
    return {
        "run": out,
        "method": record["method"],
        "rows": model.n_rows,
        "features": model.n_features,
        "clusters": model.n_clusters,
        "outliers": model.n_outliers,
        "outlier_share": record["outlier_share"],
        "outlier_weight": model.outlier_weight,
        "rho": record["config"].get("rho"),
        "radius": record["radius"],
        "candidates": model.n_candidates,
        "inertia": model.inertia,
        "seconds": record["seconds"],
        "phases": record["phases"],
        **{name: record[name] for name in ("init", "kmeans", "plan") if name in record},
    }
