"""Options of fit and kmeans, some of which other commands share."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from scrlm_dask.choices import EXTRACTIONS, PERSIST_KINDS, PREPROCESS_KINDS

from . import shared
from .parsing import parse_auto, parse_axes, parse_seconds

if TYPE_CHECKING:
    from scrlm_dask.config import FitConfig
    from scrlm_dask.runs.lifecycle import Fit
    from scrlm_dask.runs.record import RunRecord


def preprocess_option(text: str, default: str = "standardize") -> Any:
    """Return --preprocess, with the help text of a command."""
    return click.option(
        "--preprocess",
        type=click.Choice(PREPROCESS_KINDS),
        default=default,
        show_default=True,
        help=text,
    )


# options are named after the fields of FitConfig, KMeansConfig and LloydConfig
clusters_option = click.option(
    "--clusters",
    "n_clusters",
    type=int,
    help="At most so many; without it, as many as are there.",
)
neighbors_option = click.option(
    "--min-neighbors",
    type=int,
    default=1,
    show_default=True,
    help="Other rows a center needs inside its radius.",
)
depth_option = click.option(
    "--F", "F", type=float, default=2.5, show_default=True, help="Depth of the loss."
)
prune_option = click.option(
    "--prune",
    metavar="auto|AXES",
    default="auto",
    show_default=True,
    callback=partial(parse_auto, parse_axes, "a number of axes"),
    help="Axes by which pairs that are far apart are ruled out, exactly; 0 for none. "
    "By default each block finds out what is cheapest.",
)
resume_option = click.option(
    "--resume",
    metavar="RUN",
    help="Go on with a run that was stopped, with the options that it was given.",
)
lloyd_options = shared.option_group(
    click.option(
        "--tol",
        type=float,
        default=1e-4,
        show_default=True,
        help="k-means stops when centers move less than this share of the rows' distance to them.",
    ),
    click.option(
        "--inertia-tol",
        type=float,
        default=1e-5,
        show_default=True,
        help="k-means stops when the inertia falls by less than this share of itself.",
    ),
    click.option(
        "--max-time",
        "max_seconds",
        metavar="DURATION",
        callback=parse_seconds,
        help="No new iteration of k-means after e.g. 55m.",
    ),
    click.option(
        "--kmeans-sample",
        "sample",
        type=float,
        help="k-means iterates first on this share of the blocks, doubled until it is all of them.",
    ),
    click.option(
        "--persist",
        type=click.Choice(PERSIST_KINDS),
        default="auto",
        show_default=True,
        help="Hold features in the workers' memory between the passes of k-means.",
    ),
)
fit_options = shared.option_group(
    click.option(
        "--rho",
        metavar="auto|FLOAT",
        default="auto",
        show_default=True,
        callback=partial(parse_auto, float, "a number"),
        help="Bandwidth, in units of the preprocessed features; by default chosen on a sample.",
    ),
    clusters_option,
    click.option(
        "--candidates",
        "n_candidates",
        type=int,
        help="Rows tried as centers; default: what theory asks.",
    ),
    click.option("--loss-rows", type=int, help="Judge candidates on a random subset of rows."),
    neighbors_option,
    depth_option,
    preprocess_option("Map applied to rows first; l2 is for cosine distance."),
    click.option("--polish", is_flag=True, help="Move centers to the mean of the rows inside R."),
    click.option(
        "--kmeans-iter",
        "max_iter",
        type=int,
        default=0,
        show_default=True,
        help="Refine the centers by so many iterations of k-means.",
    ),
    click.option(
        "--robust/--no-robust",
        default=None,
        help="Outliers take no part in k-means; or, as in the paper, all rows do and all are "
        "labelled. By default they take no part, but for merged centers.",
    ),
    click.option(
        "--extraction",
        type=click.Choice(EXTRACTIONS),
        default=EXTRACTIONS[0],
        show_default=True,
        help="How centers are taken from candidates; greedy is the paper's, and what a given rho "
        "has by default.",
    ),
    lloyd_options,
    shared.seed_option,
    shared.block_rows_option,
    shared.margins_option,
    prune_option,
    shared.storage_options,
)


def fit_config(values: dict[str, Any]) -> FitConfig:
    """Return the config of the options of a fit; an option that is None keeps its default."""
    from scrlm_dask.config import FitConfig, LloydConfig

    lloyd = shared.take_fields(LloydConfig, values)
    if not lloyd.get("max_iter"):
        shared.require_option("--kmeans-iter", *(set(lloyd) - {"max_iter"}))
    return FitConfig(refine=LloydConfig(**lloyd), **shared.take_fields(FitConfig, values))


def local_memories(cluster: Any) -> Any:
    """Return the workers that the command would start; None if it connects to a scheduler."""
    from scrlm_dask.clusters.local import local_workers
    from scrlm_dask.engine.workers import WorkerMemory

    local = local_workers(cluster)
    if local is None:
        return None
    own, number = local.nworkers > 0, max(1, local.nworkers)
    return [WorkerMemory(local.memory_limit, local.nthreads, local.ahead, own)] * number


# a resumed run may use other workers and outputs of messages, but no other settings
_FREE = {
    *("resume", "storage", "as_json", "log_json", "verbose", "report"),
    *("stall_timeout", "wait_workers"),
}


def check_usage(resume: str | None, features: str | None, out: str | None) -> None:
    """Require either --resume without the options that the run records, or FEATURES and --out."""
    if resume is None:
        for missing, value in (("argument 'FEATURES'", features), ("option '--out'", out)):
            if value is None:
                raise click.UsageError(f"Missing {missing}; give it, or --resume RUN to go on")
        return
    from scrlm_dask.clusters.options import ClusterOptions

    names = {p.name for p in click.get_current_context().command.params if p.name}
    given = shared.given_options(names - _FREE - set(vars(ClusterOptions())))
    if given:
        raise click.UsageError(
            f"--resume goes on with what the run was given; leave {', '.join(given)} out"
        )


def read_run(resume: str, method: str, storage: Any) -> RunRecord | Fit:
    """Read the record of a run to resume; or, if it is complete, its result."""
    from scrlm_dask.runs.lifecycle import load_fit
    from scrlm_dask.runs.resume import read_unfinished

    unfinished = read_unfinished(resume, method, storage)
    return load_fit(resume, storage) if unfinished is None else unfinished
