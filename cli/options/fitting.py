"""Options of `fit` and `kmeans`; some are also used by other commands."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from scrlm_dask.choices import (
    EXTRACTIONS,
    FIT_PREPROCESS_KINDS,
    PERSIST_KINDS,
    PREPROCESS_KINDS,
)

from . import shared
from .parsing import parse_auto, parse_auto_or_none, parse_digits, parse_seconds

if TYPE_CHECKING:
    from scrlm_dask.config import FitConfig
    from scrlm_dask.runs.lifecycle import FitResult
    from scrlm_dask.runs.record import RunRecord


def preprocess_option(text: str, default: str = "standardize") -> Any:
    """Return the option --preprocess with the given help text."""
    kinds = FIT_PREPROCESS_KINDS if default == "auto" else PREPROCESS_KINDS
    return click.option(
        "--preprocess",
        type=click.Choice(kinds),
        default=default,
        show_default=True,
        help=text,
    )


# Each option sets a parameter with the name of a field of FitConfig, KMeansConfig or LloydConfig,
# so that `take_fields` can collect the values for the config.
clusters_option = click.option(
    "--clusters",
    "n_clusters",
    type=int,
    help="Maximum number of clusters (default: determined from the data).",
)
neighbors_option = click.option(
    "--min-neighbors",
    type=int,
    default=1,
    show_default=True,
    help="Minimum number of other rows inside the radius of a center.",
)
depth_option = click.option(
    "--F", "F", type=float, default=2.5, show_default=True, help="Depth F of the robust loss."
)
prune_option = click.option(
    "--prune",
    metavar="auto|AXES",
    default="auto",
    show_default=True,
    callback=partial(parse_auto, parse_digits, "a number of axes"),
    help="Number of axes for pruning pairs of rows and centers that are far apart, which does not "
    "change the labels (auto: chosen per block; 0: no pruning).",
)
resume_option = shared.option_group(
    click.option(
        "--resume",
        metavar="RUN",
        help="Resume an interrupted run with the options that it was started with.",
    ),
    shared.allow_origin_option,
)
fit_preprocess_option = preprocess_option(
    "Transformation of the rows; l2 is for cosine distance (auto: l2 for rows of unit length, "
    "otherwise standardize if that shows a clear scale, or the best on a sample).",
    "auto",
)
lloyd_options = shared.option_group(
    click.option(
        "--tol",
        type=float,
        default=1e-4,
        show_default=True,
        help="Stop k-means when centers move by at most this fraction of the distance between rows "
        "and centers.",
    ),
    click.option(
        "--inertia-tol",
        type=float,
        default=1e-5,
        show_default=True,
        help="Stop k-means when the inertia changes by at most this fraction.",
    ),
    click.option(
        "--max-time",
        "max_seconds",
        metavar="DURATION",
        callback=parse_seconds,
        help="Start no new k-means iteration after this time, e.g. 55m (default: no limit).",
    ),
    click.option(
        "--kmeans-sample",
        "sample",
        type=float,
        help="Fraction of the blocks for the first k-means iterations, doubled until all blocks "
        "are used (default: all blocks).",
    ),
    click.option(
        "--persist",
        type=click.Choice(PERSIST_KINDS),
        default="auto",
        show_default=True,
        help="Keep features in the workers' memory between k-means iterations (auto: if they fit).",
    ),
)
fit_options = shared.option_group(
    click.option(
        "--rho",
        metavar="auto|FLOAT",
        default="auto",
        show_default=True,
        callback=partial(parse_auto, float, "a number"),
        help="Bandwidth, in units of the preprocessed features (auto: estimated on a sample).",
    ),
    clusters_option,
    click.option(
        "--candidates",
        "n_candidates",
        type=int,
        help="Number of random rows tried as centers (default: the number that the theory "
        "requires).",
    ),
    click.option(
        "--loss-rows",
        type=int,
        help="Number of random rows on which the loss is computed (default: all).",
    ),
    neighbors_option,
    depth_option,
    fit_preprocess_option,
    click.option(
        "--polish",
        is_flag=True,
        help="Move each center to the mean of the rows inside its radius.",
    ),
    click.option(
        "--kmeans-iter",
        "max_iter",
        metavar="auto|N",
        default="auto",
        show_default=True,
        callback=partial(parse_auto, parse_digits, "a number of iterations"),
        help="Maximum number of k-means iterations that refine the centers (auto: 20 if centers "
        "are merged, otherwise 0).",
    ),
    click.option(
        "--robust/--no-robust",
        default=None,
        help="Exclude outliers from k-means (default, unless centers are merged; see "
        "--extraction); --no-robust uses all rows, as in the paper, and labels every row unless "
        "--outliers or --radius is given.",
    ),
    click.option(
        "--outliers",
        "--outlier-share",
        "outlier_share",
        metavar="auto|SHARE",
        callback=partial(parse_auto_or_none, float, "a share such as 0.02"),
        help="Label this share of the rows, those farthest from their centers, as outliers (auto: "
        "rows outside a radius that is chosen from the data).",
    ),
    click.option(
        "--radius",
        type=float,
        help="Distance from every center, after preprocessing, beyond which rows are outliers "
        "(default: the radius of rho).",
    ),
    click.option(
        "--levels",
        is_flag=True,
        help="Also store the labels of the coarse level, if there is one.",
    ),
    click.option(
        "--extraction",
        type=click.Choice(EXTRACTIONS),
        default=EXTRACTIONS[0],
        show_default=True,
        help="Method that selects centers from the candidates; auto uses greedy, the paper's "
        "method, if --rho is given.",
    ),
    lloyd_options,
    shared.seed_option,
    shared.block_rows_option,
    shared.margins_option,
    prune_option,
    shared.storage_options,
)


def fit_config(values: dict[str, Any]) -> FitConfig:
    """Build the config of a fit from its options; an option that is None keeps its default."""
    from scrlm_dask.config import FitConfig, LloydConfig

    lloyd = shared.take_fields(LloydConfig, values)
    config = FitConfig(refine=LloydConfig(**lloyd), **shared.take_fields(FitConfig, values))
    if config.most_iterations == 0:
        shared.require_option("--kmeans-iter", *(set(lloyd) - {"max_iter"}))
    return config


def local_memories(cluster: Any) -> Any:
    """Return the memory limit and the threads of each worker that the command starts locally.

    Return None if the workers belong to an existing scheduler or run on other machines. With
    --nworkers 0, the only entry represents the threads of this process.
    """
    from scrlm_dask.clusters.local import local_workers
    from scrlm_dask.engine.workers import WorkerMemory

    local = local_workers(cluster)
    if local is None:
        return None
    own, number = local.nworkers > 0, max(1, local.nworkers)
    return [WorkerMemory(local.memory_limit, local.nthreads, local.ahead, own)] * number


# With --resume, the user may give only these options and the cluster options.
_FREE = {
    *("resume", "allow_origins", "storage", "as_json", "log_json", "verbose", "report"),
    *("stall_timeout", "wait_workers"),
}


def check_usage(resume: str | None, features: str | None, out: str | None) -> None:
    """Require FEATURES and --out, or --resume without options whose values the run has recorded."""
    if resume is None:
        shared.require_option("--resume", "allow_origins")
        for missing, value in (("argument 'FEATURES'", features), ("option '--out'", out)):
            if value is None:
                raise click.UsageError(f"Missing {missing}; add it, or use --resume RUN")
        return
    from scrlm_dask.clusters.options import ClusterOptions

    names = {p.name for p in click.get_current_context().command.params if p.name}
    given = shared.given_options(names - _FREE - set(vars(ClusterOptions())))
    if given:
        raise click.UsageError(
            f"--resume uses the recorded options of the run; remove {', '.join(given)}"
        )


def read_run(resume: str, method: str, storage: Any) -> RunRecord | FitResult:
    """Return the record of an interrupted run, or the result of a complete run."""
    from scrlm_dask.runs.lifecycle import load_fit
    from scrlm_dask.runs.resume import read_unfinished

    unfinished = read_unfinished(resume, method, storage)
    return load_fit(resume, storage) if unfinished is None else unfinished


def recorded_input(
    path: Any, resume: str, storage: Any, allow_origins: tuple[str, ...]
) -> str | None:
    """Return the path or URL of an input that the record of the run `resume` names, if any."""
    from scrlm_dask.storage.locations import locate_recorded, trust

    if path is None:
        return None
    return locate_recorded(str(path), trust([resume], allow_origins, storage)).url
