from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..console import Console
from ..fitting import local_memories
from ..lasting import Lasting, lasting_options
from ..lloyd import lloyd_options
from ..options import (
    cluster_options,
    label_options,
    output_options,
    prune_option,
    session,
    storage_options,
)
from ..performance import performance_option
from ..resuming import check_usage, read_run, resume_option
from ..scales import KINDS
from .fit import show_fit

if TYPE_CHECKING:
    from scrlm_dask.config import KMeansConfig

_WAYS = ("scrlm", "k-means++", "k-means||", "random")


@click.command()
@click.argument("features", type=click.Path(), required=False)
@click.option("--out", metavar="RUN", help="Run directory to write.")
@click.option("--clusters", type=int, help="Number of clusters; default: as many as --init brings.")
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
@label_options
@prune_option
@click.option("--overwrite", is_flag=True, help="Replace a run that exists.")
@resume_option
@lasting_options
@storage_options
@cluster_options
@output_options
@performance_option
def kmeans(
    console: Console,
    cluster: Any,
    storage: Any,
    lasting: Lasting,
    features: str | None,
    out: str | None,
    sample_weight: str | None,
    block_rows: int | None,
    overwrite: bool,
    resume: str | None,
    **config: Any,
) -> None:
    """Cluster the Zarr store FEATURES by k-means, one read of it an iteration.

    RUN gets what `scrlm fit` writes; every row gets the label of its nearest center. A run that was
    stopped goes on when the same command is given again, or `scrlm kmeans --resume RUN`.
    """
    from scrlm_dask.config import KMeansConfig
    from scrlm_dask.pipeline import Fit, check_kmeans
    from scrlm_dask.pipeline import kmeans as run_kmeans

    check_usage(resume, features, out)
    if resume is None:
        asked, centers = _asked(storage, **config)
    else:
        before = read_run(resume, "k-means", storage)
        if isinstance(before, Fit):
            show_fit(console, before, resume)
            return
        out, features, block_rows = resume, before.features, before.block_rows
        asked, centers = KMeansConfig(**before.config), before.inputs.get("centers")
        sample_weight = before.inputs.get("sample_weight")
    source, place = str(features), str(out)
    shared: Any = {
        "centers": centers,
        "sample_weight": sample_weight,
        "overwrite": overwrite,
        "block_rows": block_rows,
        "storage_options": storage,
    }
    check_kmeans(source, asked, place, workers=local_memories(cluster) or (), **shared)
    with lasting.settings(), session(console, cluster), lasting.watching(console, place):
        result = run_kmeans(source, asked, out=place, listener=lasting, **shared)
    show_fit(console, result, place)


def _asked(
    storage: Any,
    lloyd: dict[str, Any],
    clusters: int | None,
    init: str,
    max_iter: int,
    spherical: bool,
    preprocess: Any,
    seed: int,
    margins: bool,
    prune: Any,
) -> tuple[KMeansConfig, str | None]:
    """The config that the options stand for, and the path of the centers to begin with, if any."""
    from scrlm_dask.config import KMeansConfig, LloydConfig

    if spherical and preprocess not in ("none", "l2"):
        raise click.UsageError("--spherical takes rows at unit length; leave --preprocess out")
    given = init not in _WAYS
    if given:
        centers = _centers_at(init, storage)
        clusters = len(centers) if clusters is None else clusters
    if clusters is None:
        raise click.UsageError(
            f"--clusters is missing: how many are to be found? --init {init} does not say it, only "
            "the centers of a run, a model or a .npy array do"
        )
    config = KMeansConfig(
        n_clusters=clusters,
        init="given" if given else init,  # type: ignore[arg-type]
        lloyd=LloydConfig(max_iter=max_iter, **lloyd),
        preprocess="l2" if spherical else preprocess,
        seed=seed,
        prune=prune,
        margins=margins,
    )
    return config, init if given else None


def _centers_at(path: str, storage: Any) -> Any:
    """The centers in a file; a word that was misspelt looks like one, too."""
    from scrlm_dask.errors import MissingError
    from scrlm_dask.pipeline import read_centers

    try:
        return read_centers(path, storage_options=storage)
    except MissingError as error:
        raise MissingError(f"{error}, or begin by one of {', '.join(_WAYS)}") from error
