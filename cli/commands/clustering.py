"""Commands that cluster or label rows: fit, kmeans, predict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from scrlm_dask.choices import CHOSEN_INITS

from ..options import fitting, shared
from ..options.watchdog import StallWatchdog, watchdog_options
from ..tables.summaries import facts, fit_summary
from ..terminal.console import Console

if TYPE_CHECKING:
    from scrlm_dask.config import KMeansConfig
    from scrlm_dask.runs.lifecycle import FitResult


@click.command()
@click.argument("features", type=click.Path(), required=False)
@fitting.fit_options
@click.option("--out", metavar="RUN", help="Run directory to write.")
@click.option("--overwrite", is_flag=True, help="Replace an existing run.")
@fitting.resume_option
@watchdog_options
@shared.cluster_options
@shared.output_options
@shared.performance_option
def fit(
    console: Console,
    cluster: Any,
    storage: Any,
    features: str | None,
    block_rows: int | None,
    out: str | None,
    overwrite: bool,
    resume: str | None,
    allow_origins: tuple[str, ...],
    **values: Any,
) -> None:
    """Find clusters and outliers in the features store FEATURES.

    Writes model.zarr (centers, weights, sigmas), labels.zarr (label, distance and margin of every
    row; label -1 is an outlier) and run.json (parameters, phases and times) to RUN.

    To resume an interrupted fit, run the same command again or `scrlm fit --resume RUN`.
    """
    from scrlm_dask.config import FitConfig, stored_config
    from scrlm_dask.pipeline.fit import prepare_fit
    from scrlm_dask.runs.lifecycle import FitResult

    fitting.check_usage(resume, features, out)
    if resume is None:
        config = fitting.fit_config(values)
    else:
        before = fitting.read_run(resume, "scrlm", storage)
        if isinstance(before, FitResult):
            show_fit(console, before, resume)
            return
        out, block_rows = resume, before.asked.block_rows
        features = fitting.recorded_input(before.features.path, resume, storage, allow_origins)
        config = stored_config(before.asked.config, FitConfig)
    job = prepare_fit(
        str(features),
        config,
        out=str(out),
        overwrite=overwrite,
        block_rows=block_rows,
        storage_options=storage,
        workers=fitting.local_memories(cluster) or (),
    )
    _run_job(job, console, cluster, values, str(out))


def _run_job(job: Any, console: Console, cluster: Any, values: dict[str, Any], out: str) -> None:
    """Open the cluster session, run the job in it and print its result."""
    watchdog = StallWatchdog(values["stall_timeout"], values["wait_workers"])
    with watchdog.settings(), shared.session(console, cluster), watchdog.watching(console, out):
        result = job.run(watchdog)
    show_fit(console, result, out)


def show_fit(console: Console, result: FitResult, out: str) -> None:
    """Print the result of `fit` or `kmeans`, and the files that were written."""
    content = summary(result, out)
    console.result(content, fit_summary(content, result))
    console.say(f"written to {out}: model.zarr, labels.zarr, run.json")


def summary(result: FitResult, out: str) -> dict[str, Any]:
    """Return the numbers of a fit for --json and the tables."""
    model, record, stored = result.model, result.typed_record, result.record
    return {
        "run": out,
        "method": record.method,
        "rows": model.n_rows,
        "features": model.n_features,
        "clusters": model.n_clusters,
        "outliers": model.n_outliers,
        "outlier_share": record.outlier_share,
        "outlier_weight": model.outlier_weight,
        "rho": record.config.get("rho"),
        "radius": record.radius,
        "candidates": model.n_candidates,
        "inertia": model.inertia,
        "seconds": record.seconds,
        "phases": stored["phases"],
        **{name: stored[name] for name in ("init", "scan", "kmeans", "plan") if name in stored},
    }


@click.command()
@click.argument("features", type=click.Path(), required=False)
@click.option("--out", metavar="RUN", help="Run directory to write.")
@click.option(
    "--clusters",
    "n_clusters",
    type=int,
    help="Number of clusters (default: number of centers in --init PATH).",
)
@click.option(
    "--init",
    default=CHOSEN_INITS[0],
    show_default=True,
    metavar="INIT",
    help=(
        f"Initial centers: {', '.join(CHOSEN_INITS)}, or the path of a run, a model or a .npy "
        "array."
    ),
)
@click.option(
    "--max-iter",
    type=int,
    default=100,
    show_default=True,
    help="Maximum number of iterations over all rows.",
)
@click.option(
    "--spherical", is_flag=True, help="Scale rows and centers to unit length, for cosine distance."
)
@click.option(
    "--sample-weight", metavar="FILE", help="Weights of the rows: a .npy file or a Zarr array."
)
@fitting.preprocess_option("Transformation of the rows.", default="none")
@fitting.lloyd_options
@shared.seed_option
@shared.block_rows_option
@shared.margins_option
@fitting.prune_option
@click.option("--overwrite", is_flag=True, help="Replace an existing run.")
@fitting.resume_option
@watchdog_options
@shared.storage_options
@shared.cluster_options
@shared.output_options
@shared.performance_option
def kmeans(
    console: Console,
    cluster: Any,
    storage: Any,
    features: str | None,
    out: str | None,
    sample_weight: str | None,
    block_rows: int | None,
    overwrite: bool,
    resume: str | None,
    allow_origins: tuple[str, ...],
    **values: Any,
) -> None:
    """Cluster the features store FEATURES by k-means.

    Each iteration reads the features once. Writes the same files as `scrlm fit` to RUN; every row
    has the label of its nearest center.

    To resume an interrupted run, run the same command again or `scrlm kmeans --resume RUN`.
    """
    from scrlm_dask.config import KMeansConfig, stored_config
    from scrlm_dask.pipeline.kmeans import prepare_kmeans
    from scrlm_dask.runs.lifecycle import FitResult

    fitting.check_usage(resume, features, out)
    if resume is None:
        config, centers = _kmeans_config(values, storage)
    else:
        before = fitting.read_run(resume, "k-means", storage)
        if isinstance(before, FitResult):
            show_fit(console, before, resume)
            return
        out, block_rows = resume, before.asked.block_rows
        config, inputs = stored_config(before.asked.config, KMeansConfig), before.asked.inputs
        recorded = (before.features.path, inputs.get("centers"), inputs.get("sample_weight"))
        features, centers, sample_weight = (
            fitting.recorded_input(path, resume, storage, allow_origins) for path in recorded
        )
    job = prepare_kmeans(
        str(features),
        config,
        centers=centers,
        sample_weight=sample_weight,
        out=str(out),
        overwrite=overwrite,
        block_rows=block_rows,
        storage_options=storage,
        workers=fitting.local_memories(cluster) or (),
    )
    _run_job(job, console, cluster, values, str(out))


def _kmeans_config(values: dict[str, Any], storage: Any) -> tuple[KMeansConfig, str | None]:
    """Return the config, and the path of the initial centers if --init is a path."""
    from scrlm_dask.config import KMeansConfig, LloydConfig

    config, init = shared.take_fields(KMeansConfig, values), values["init"]
    if values["spherical"]:
        if config["preprocess"] not in ("none", "l2"):
            raise click.UsageError(
                f"--spherical requires --preprocess l2 or none, got {config['preprocess']}; remove "
                "--preprocess"
            )
        config["preprocess"] = "l2"
    if init not in CHOSEN_INITS:
        config["init"] = "given"
        config.setdefault("n_clusters", len(_read_centers(init, storage)))
    if "n_clusters" not in config:
        raise click.UsageError(
            f"Missing option '--clusters'; it is required with --init {init} and optional only if "
            "--init is the path of a run, a model or a .npy array"
        )
    lloyd = LloydConfig(**shared.take_fields(LloydConfig, values))
    return KMeansConfig(lloyd=lloyd, **config), None if init in CHOSEN_INITS else init


def _read_centers(path: str, storage: Any) -> Any:
    """Read centers from a path.

    If the path does not exist, the error also lists the methods of --init: a misspelled method
    looks like a path.
    """
    from scrlm_dask.errors import MissingError
    from scrlm_dask.pipeline.kmeans import read_centers

    try:
        return read_centers(path, storage_options=storage)
    except MissingError as error:
        raise MissingError(f"{error}, or use one of {', '.join(CHOSEN_INITS)}") from error


@click.command()
@click.argument("run", type=click.Path())
@click.argument("features", type=click.Path())
@click.option("--out", metavar="OUT", required=True, help="Labels store to write.")
@shared.block_rows_option
@shared.margins_option
@click.option("--overwrite", is_flag=True, help="Replace an existing labels store.")
@shared.storage_options
@shared.cluster_options
@shared.output_options
@shared.performance_option
def predict(
    console: Console,
    cluster: Any,
    storage: Any,
    run: str,
    features: str,
    out: str,
    block_rows: int | None,
    margins: bool,
    overwrite: bool,
) -> None:
    """Label the rows of FEATURES with the model of RUN.

    Writes label (-1 is an outlier), distance and margin of every row to OUT.
    """
    from scrlm_dask.pipeline.predict import prepare_predict

    job = prepare_predict(
        *(run, features, out),
        overwrite=overwrite,
        margins=margins,
        block_rows=block_rows,
        storage_options=storage,
    )
    with shared.session(console, cluster):
        labelled = job.run(console)
    content = {
        "labels": out,
        "rows": labelled.n_rows,
        "clusters": len(labelled.counts),
        "outliers": labelled.n_outliers,
        "outlier_share": labelled.n_outliers / labelled.n_rows,
    }
    console.result(content, facts("Labels", content))
