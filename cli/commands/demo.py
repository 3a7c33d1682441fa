"""The command demo: synth, fit and evaluate in one step."""

from __future__ import annotations

import tempfile
from typing import Any

import click

from ..options.shared import cluster_options, output_options, seed_option, session, storage_options
from ..tables.summaries import facts, fit_summary
from ..terminal.console import Console
from .clustering import summary
from .results import evaluation_record

_ROWS, _FEATURES, _CLUSTERS, _AT_MOST, _OUTLIERS = 40_000, 640, 50, 100, 0.3
_ITERATIONS = 10


@click.command()
@click.option(
    "--out",
    type=click.Path(),
    help="Directory in which to keep features and run (default: delete them).",
)
@click.option("--overwrite", is_flag=True, help="Replace an earlier demo in --out.")
@seed_option
@storage_options
@cluster_options
@output_options
def demo(
    console: Console, cluster: Any, storage: Any, out: str | None, overwrite: bool, seed: int
) -> None:
    """Cluster synthetic data and compare the result with the truth.

    Draws a mixture of clusters and outliers, fits SCRLM and scores the labels. Takes less than a
    minute.
    """
    if out is not None:
        _demo(console, cluster, storage, out.rstrip("/"), overwrite, seed)
        console.say(f"features and run are in {out}")
        return
    with tempfile.TemporaryDirectory(prefix="scrlm-demo-") as folder:
        _demo(console, cluster, storage, folder, overwrite, seed)


def _demo(
    console: Console, cluster: Any, storage: Any, folder: str, overwrite: bool, seed: int
) -> None:
    from rich.console import Group

    from scrlm_dask.config import FitConfig, LloydConfig
    from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
    from scrlm_dask.pipeline.evaluate import evaluate
    from scrlm_dask.pipeline.fit import fit
    from scrlm_dask.pipeline.synth import synth

    features, run = f"{folder}/features.zarr", f"{folder}/run"
    spec = MixtureSpec(_FEATURES, _CLUSTERS, _OUTLIERS, seed=seed)
    console.say(
        f"drawing {_ROWS:,} rows of {_FEATURES} features: {_CLUSTERS} clusters and "
        f"{_OUTLIERS:.0%} outliers; fitting at most {_AT_MOST} clusters"
    )
    with session(console, cluster):
        stores: Any = {"storage_options": storage, "listener": console}
        outputs = {"overwrite": overwrite, **stores}
        synth(features, _ROWS, spec, chunk_bytes=16_000_000, **outputs)
        config = FitConfig(n_clusters=_AT_MOST, seed=seed, refine=LloydConfig(_ITERATIONS))
        result = fit(features, config, out=run, **outputs)
        scores = evaluation_record(evaluate(run, **stores))
    content = summary(result, run)
    headline = (
        f"{scores['n_clusters']} of {scores['n_classes']} clusters found; "
        f"{scores['accuracy']:.2%} of the rows have the correct label."
    )
    truth = facts("Scores", scores)
    tables = Group(fit_summary(content, result), truth, headline)
    console.result({**content, "evaluation": scores}, tables)
