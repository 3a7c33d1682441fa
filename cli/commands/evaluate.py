from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ..console import Console
from ..options import cluster_options, output_options, session, storage_options
from ..tables import facts

if TYPE_CHECKING:
    from scrlm_dask.pipeline import Evaluation


@click.command()
@click.argument("run", type=click.Path())
@click.option(
    "--truth",
    type=click.Path(),
    help="True labels, .npy or Zarr, -1 for outliers; default: those in the features store.",
)
@storage_options
@cluster_options
@output_options
def evaluate(console: Console, cluster: Any, storage: Any, run: str, truth: str | None) -> None:
    """Score the labels of RUN, or those that `scrlm predict` wrote, against the truth."""
    from scrlm_dask.pipeline import check_evaluate, evaluate_run

    check_evaluate(run, truth, storage)
    with session(console, cluster.for_little_work()):
        found = evaluate_run(run, truth, storage_options=storage, listener=console)
    content = numbers(found)
    console.result(content, facts("Against the truth", content))


def numbers(found: Evaluation) -> dict[str, Any]:
    """The evaluation as names and numbers."""
    content = asdict(found.scores)
    del content["matching"]
    if found.recovery is not None:
        content["largest_weight_error"] = found.recovery.weights
        content["largest_sigma_error"] = found.recovery.sigmas
    return content
