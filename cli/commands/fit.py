from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..console import Console
from ..fitting import fit_options, local_memories
from ..lasting import Lasting, lasting_options
from ..options import cluster_options, output_options, session
from ..performance import performance_option
from ..resuming import check_usage, read_run, resume_option
from ..tables import fit_summary

if TYPE_CHECKING:
    from scrlm_dask.pipeline import Fit


@click.command()
@click.argument("features", type=click.Path(), required=False)
@fit_options
@click.option("--out", metavar="RUN", help="Run directory to write.")
@click.option("--overwrite", is_flag=True, help="Replace a run that exists.")
@resume_option
@lasting_options
@cluster_options
@output_options
@performance_option
def fit(
    console: Console,
    cluster: Any,
    storage: Any,
    lasting: Lasting,
    features: str | None,
    asked: dict[str, Any],
    block_rows: int | None,
    out: str | None,
    overwrite: bool,
    resume: str | None,
) -> None:
    """Find clusters and outliers in the Zarr store FEATURES.

    RUN gets model.zarr (centers, weights, sigmas), labels.zarr (a label, distance and margin for
    every row; -1 is an outlier) and run.json (what was done and how long it took). A fit that was
    stopped goes on when the same command is given again, or `scrlm fit --resume RUN`.
    """
    from scrlm_dask.config import FitConfig
    from scrlm_dask.pipeline import Fit, check_fit
    from scrlm_dask.pipeline import fit as run_fit

    check_usage(resume, features, out)
    if resume is not None:
        before = read_run(resume, "scrlm", storage)
        if isinstance(before, Fit):
            show_fit(console, before, resume)
            return
        out, features, asked, block_rows = resume, before.features, before.config, before.block_rows
    config, place = FitConfig(**asked), str(out)
    workers = local_memories(cluster) or ()
    check_fit(str(features), config, place, overwrite, block_rows, storage, workers)
    with lasting.settings(), session(console, cluster), lasting.watching(console, place):
        result = run_fit(
            str(features),
            config,
            out=place,
            overwrite=overwrite,
            block_rows=block_rows,
            storage_options=storage,
            listener=lasting,
        )
    show_fit(console, result, place)


def show_fit(console: Console, result: Fit, out: str) -> None:
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
        **{name: record[name] for name in ("init", "scan", "kmeans", "plan") if name in record},
    }
