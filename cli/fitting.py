"""Options that say what a fit does, which the fit and its plan share."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from .lloyd import LLOYD_PARAMETERS, lloyd_options
from .options import label_options, prune_option, refuse_without, storage_options
from .scales import clusters_option, depth_option, neighbors_option, preprocess_option

EXTRACTIONS = ("auto", "greedy", "residual", "merge")


def fit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How to fit; the command gets `asked`, `block_rows` and `storage`.

    `asked` is what a `FitConfig` is made of.
    """

    @click.option(
        "--rho",
        metavar="auto|FLOAT",
        default="auto",
        show_default=True,
        callback=_parsed_rho,
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
            refuse_without("--kmeans-iter", *LLOYD_PARAMETERS)
        asked = {
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
        return command(asked=asked, **kwargs)

    return wrapped


def _parsed_rho(context: click.Context, parameter: click.Parameter, text: str) -> float | str:
    if text == "auto":
        return text
    try:
        return float(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is neither auto nor a number") from error


def local_memories(cluster: Any) -> Any:
    """The workers that the command would start; None where it goes to a scheduler that runs."""
    from scrlm_dask.cluster import local_workers
    from scrlm_dask.passes.clients import WorkerMemory

    found = local_workers(cluster)
    if found is None:
        return None
    own, number = found.nworkers > 0, max(1, found.nworkers)
    return [WorkerMemory(found.memory_limit, found.nthreads, found.ahead, own)] * number
