from __future__ import annotations

from typing import Any

import click

from ..console import Console
from ..lloyd import lloyd_options
from ..options import cluster_options, output_options, session, storage_options
from ..tables import fit_summary
from .fit import KINDS, summary

_WAYS = ("scrlm", "k-means++", "k-means||", "random")


@click.command()
@click.argument("features", type=click.Path())
@click.option("--out", metavar="RUN", required=True, help="Run directory to write.")
@click.option("--clusters", type=int, required=True, help="Number of clusters.")
@click.option(
    "--init",
    default=_WAYS[0],
    show_default=True,
    metavar="[" + "|".join(_WAYS) + "|PATH]",
    help="Where to begin; the path of a run, a model or a .npy array continues from its centers.",
)
@click.option("--max-iter", type=int, default=100, show_default=True, help="Most full passes.")
@click.option("--spherical", is_flag=True, help="Rows and centers at unit length: cosine distance.")
@click.option("--sample-weight", metavar="FILE", help="How much each row counts, .npy or Zarr.")
@click.option(
    "--preprocess",
    type=click.Choice(KINDS),
    default="none",
    show_default=True,
    help="Map applied to rows first.",
)
@lloyd_options
@click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same bits.")
@click.option("--block-rows", type=int, help="Rows handled at a time; default: the store's chunks.")
@click.option("--overwrite", is_flag=True, help="Replace a run that exists.")
@storage_options
@cluster_options
@output_options
def kmeans(
    console: Console,
    cluster: Any,
    storage: Any,
    lloyd: dict[str, Any],
    features: str,
    out: str,
    clusters: int,
    init: str,
    max_iter: int,
    spherical: bool,
    sample_weight: str | None,
    preprocess: Any,
    seed: int,
    block_rows: int | None,
    overwrite: bool,
) -> None:
    """Cluster the Zarr store FEATURES by k-means, one read of it an iteration.

    RUN gets what `scrlm fit` writes; every row gets the label of its nearest center.
    """
    from scrlm_dask.config import KMeansConfig, LloydConfig
    from scrlm_dask.pipeline import check_kmeans
    from scrlm_dask.pipeline import kmeans as run_kmeans

    if spherical and preprocess not in ("none", "l2"):
        raise click.UsageError("--spherical takes rows at unit length; leave --preprocess out")
    given = None if init in _WAYS else _centers_at(init, storage)
    config = KMeansConfig(
        n_clusters=clusters,
        init="given" if given is not None else init,  # type: ignore[arg-type]
        lloyd=LloydConfig(max_iter=max_iter, **lloyd),
        preprocess="l2" if spherical else preprocess,
        seed=seed,
    )
    shared: Any = {
        "centers": given,
        "sample_weight": sample_weight,
        "overwrite": overwrite,
        "block_rows": block_rows,
        "storage_options": storage,
    }
    check_kmeans(features, config, out, **shared)
    with session(console, cluster):
        result = run_kmeans(features, config, out=out, listener=console, **shared)
    content = summary(result, out)
    console.result(content, fit_summary(content, result.model))
    console.say(f"written to {out}: model.zarr, labels.zarr, run.json")


def _centers_at(path: str, storage: Any) -> Any:
    """The centers in a file; a word that was misspelt looks like one, too."""
    from scrlm_dask.errors import MissingError
    from scrlm_dask.pipeline import read_centers

    try:
        return read_centers(path, storage_options=storage)
    except MissingError as error:
        raise MissingError(f"{error}, or begin by one of {', '.join(_WAYS)}") from error
