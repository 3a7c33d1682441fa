"""Options of fit and kmeans, some of which other commands share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from scrlm_dask.choices import EXTRACTIONS, PERSIST_KINDS, PREPROCESS_KINDS

from .parsing import parse_seconds
from .shared import given_options, label_options, prune_option, require_option, storage_options

if TYPE_CHECKING:
    from scrlm_dask.runs.lifecycle import Fit
    from scrlm_dask.runs.record import RunRecord


clusters_option = click.option(
    "--clusters", type=int, help="At most so many; without it, as many as are there."
)


neighbors_option = click.option(
    "--min-neighbors",
    type=int,
    default=1,
    show_default=True,
    help="Other rows a center needs inside its radius.",
)


depth_option = click.option(
    "--F", "loss_depth", type=float, default=2.5, show_default=True, help="Depth of the loss."
)


def preprocess_option(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--preprocess; the help says what it does to this command."""
    return click.option(
        "--preprocess",
        type=click.Choice(PREPROCESS_KINDS),
        default="standardize",
        show_default=True,
        help=what,
    )


LLOYD_PARAMETERS = ("tol", "inertia_tol", "max_time", "kmeans_sample", "persist")


def lloyd_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of k-means iterations; the command gets `lloyd`, all but their number."""

    @click.option(
        "--tol",
        type=float,
        default=1e-4,
        show_default=True,
        help="k-means stops when centers move less than this share of the rows' distance to them.",
    )
    @click.option(
        "--inertia-tol",
        type=float,
        default=1e-5,
        show_default=True,
        help="k-means stops when the inertia falls by less than this share of itself.",
    )
    @click.option(
        "--max-time", metavar="DURATION", help="No new iteration of k-means after e.g. 55m."
    )
    @click.option(
        "--kmeans-sample",
        type=float,
        help="k-means iterates first on this share of the blocks, doubled until it is all of them.",
    )
    @click.option(
        "--persist",
        type=click.Choice(PERSIST_KINDS),
        default="auto",
        show_default=True,
        help="Hold features in the workers' memory between the passes of k-means.",
    )
    @wraps(command)
    def wrapped(
        tol: float,
        inertia_tol: float,
        max_time: str | None,
        kmeans_sample: float | None,
        persist: str,
        **kwargs: Any,
    ) -> Any:
        lloyd = {
            "tol": tol,
            "inertia_tol": inertia_tol,
            "max_seconds": None if max_time is None else parse_seconds("--max-time", max_time),
            "sample": kmeans_sample,
            "persist": persist,
        }
        return command(lloyd=lloyd, **kwargs)

    return wrapped


def fit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a fit; the command gets `config`, `block_rows` and `storage`.

    `config` are the arguments of a `FitConfig`.
    """

    @click.option(
        "--rho",
        metavar="auto|FLOAT",
        default="auto",
        show_default=True,
        callback=_parse_rho,
        help="Bandwidth, in units of the preprocessed features; by default chosen on a sample.",
    )
    @clusters_option
    @click.option(
        "--candidates", type=int, help="Rows tried as centers; default: what theory asks."
    )
    @click.option("--loss-rows", type=int, help="Judge candidates on a random subset of rows.")
    @neighbors_option
    @depth_option
    @preprocess_option("Map applied to rows first; l2 is for cosine distance.")
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
        default=None,
        help="Outliers take no part in k-means; or, as in the paper, all rows do and all are "
        "labelled. By default they take no part, but for merged centers.",
    )
    @click.option(
        "--extraction",
        type=click.Choice(EXTRACTIONS),
        default=EXTRACTIONS[0],
        show_default=True,
        help="How centers are taken from candidates; greedy is the paper's, and what a given rho "
        "has by default.",
    )
    @lloyd_options
    @click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same bits.")
    @click.option(
        "--block-rows", type=int, help="Rows handled at a time; default: the store's chunks."
    )
    @label_options
    @prune_option
    @storage_options
    @wraps(command)
    def wrapped(
        lloyd: dict[str, Any],
        rho: Any,
        clusters: int | None,
        candidates: int | None,
        loss_rows: int | None,
        min_neighbors: int,
        loss_depth: float,
        preprocess: Any,
        polish: bool,
        kmeans_iter: int,
        robust: bool | None,
        extraction: Any,
        seed: int,
        margins: bool,
        prune: Any,
        **kwargs: Any,
    ) -> Any:
        if kmeans_iter == 0:
            require_option("--kmeans-iter", *LLOYD_PARAMETERS)
        config = {
            "rho": rho,
            "F": loss_depth,
            "n_clusters": clusters,
            "n_candidates": "auto" if candidates is None else candidates,
            "loss_rows": "all" if loss_rows is None else loss_rows,
            "min_neighbors": min_neighbors,
            "preprocess": preprocess,
            "seed": seed,
            "polish": polish,
            "refine": {"max_iter": kmeans_iter, **lloyd},
            "robust": "auto" if robust is None else robust,
            "extraction": extraction,
            "prune": prune,
            "margins": margins,
        }
        return command(config=config, **kwargs)

    return wrapped


def _parse_rho(context: click.Context, parameter: click.Parameter, text: str) -> float | str:
    if text == "auto":
        return text
    try:
        return float(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is neither auto nor a number") from error


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
    *("stall_timeout", "wait_workers", "kind"),  # the latter is --cluster
}


def resume_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--resume",
        metavar="RUN",
        help="Go on with a run that was stopped, with the options that it was given.",
    )(command)


def check_usage(resume: str | None, features: str | None, out: str | None) -> None:
    """Require either --resume without the options that the run records, or FEATURES and --out."""
    if resume is None:
        for missing, value in (("argument 'FEATURES'", features), ("option '--out'", out)):
            if value is None:
                raise click.UsageError(f"Missing {missing}; give it, or --resume RUN to go on")
        return
    from scrlm_dask.clusters.options import ClusterOptions

    names = {p.name for p in click.get_current_context().command.params if p.name}
    given = given_options(names - _FREE - {field.name for field in fields(ClusterOptions)})
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
