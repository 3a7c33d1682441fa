"""Commands that use a finished run: cut, evaluate, verify, report, export."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from scrlm_dask.choices import TABLE_FORMATS
from scrlm_dask.text import first_few

from ..options import shared
from ..tables.summaries import facts
from ..terminal.console import EXIT_INPUT_REFUSED, Console

if TYPE_CHECKING:
    from rich.table import Table

    from scrlm_dask.pipeline.evaluate import Evaluation

_MOST_SHOWN = 40


@click.command()
@click.argument("run", type=click.Path())
@click.option("--clusters", type=int, required=True, help="How many are to be left.")
@click.option("--out", metavar="OUT", help="Labels store to write; default: only show the cut.")
@click.option("--overwrite", is_flag=True, help="Replace labels that exist.")
@shared.storage_options
@shared.output_options
def cut(
    console: Console, storage: Any, run: str, clusters: int, out: str | None, overwrite: bool
) -> None:
    """Join the clusters of RUN to fewer, along its merge tree or that of its clusters.

    OUT gets a label for every row (-1 is an outlier) without another read of the features.
    """
    if out is None:
        shared.require_option("--out", "overwrite")
    from scrlm_dask.pipeline.cut import cut_run

    coarse = cut_run(run, clusters, out=out, overwrite=overwrite, storage_options=storage)
    members = [[k for k, g in enumerate(coarse.groups.tolist()) if g == i] for i in range(clusters)]
    content = {
        "run": run,
        "labels": out,
        "clusters": clusters,
        "outliers": coarse.n_outliers,
        "counts": coarse.counts.tolist(),
        "members": members,
    }
    console.result(content, _cut_table(content))


@click.command()
@click.argument("run", type=click.Path())
@click.option(
    "--truth",
    type=click.Path(),
    help="True labels, .npy or Zarr, -1 for outliers; default: those in the features store.",
)
@shared.storage_options
@shared.cluster_options
@shared.output_options
def evaluate(console: Console, cluster: Any, storage: Any, run: str, truth: str | None) -> None:
    """Score the labels of RUN, or those that `scrlm predict` wrote, against the truth."""
    from scrlm_dask.pipeline.evaluate import prepare_evaluate

    job = prepare_evaluate(run, truth, storage)
    with shared.session(console, cluster.for_little_work()):
        content = evaluation_record(job.run(console))
    console.result(content, facts("Against the truth", content))


@click.command()
@click.argument("run", type=click.Path())
@click.option(
    "--blocks",
    type=click.IntRange(min=0),
    default=8,
    show_default=True,
    help="Label so many random blocks again.",
)
@click.option(
    "--losses",
    type=click.IntRange(min=0),
    default=4,
    show_default=True,
    help="Take the losses of so many random clusters again, by one read of the features.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Which blocks and clusters: the same seed, the same ones.",
)
@shared.storage_options
@shared.cluster_options
@shared.output_options
def verify(
    console: Console, cluster: Any, storage: Any, run: str, blocks: int, losses: int, seed: int
) -> None:
    """Compute a random part of RUN again and compare it with what is stored.

    Ends with 3, and names the first row, if a label, a distance or a loss differs.
    """
    from scrlm_dask.pipeline.verify import prepare_verify

    job = prepare_verify(run, blocks, losses, seed, storage)
    with shared.session(console, cluster):
        result = job.run(console)
    content = {"run": run, **asdict(result), "ok": result.ok}
    shown = {name: _list_numbers(v) if isinstance(v, tuple) else v for name, v in content.items()}
    console.result(content, facts("Computed again", shown))
    if not result.ok:
        row = result.first_wrong_row
        console.fail(
            f"{run} is not what its features give: {result.wrong_labels} labels, "
            f"{result.wrong_distances} distances and {len(result.wrong_clusters)} losses differ"
            f"{'' if row is None else f'; the first row is {row}'}"
        )
        raise SystemExit(EXIT_INPUT_REFUSED)


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path())
@click.option(
    "--out",
    metavar="FILE.html",
    help="Page to write; default: report.html in RUN, or here if there are several runs.",
)
@click.option(
    "--items",
    metavar="FILE|FOLDER",
    help="What the rows stand for, one each and in their order: texts or pictures in a .npy or "
    "Parquet file, or a folder of them.",
)
@click.option("--items-column", metavar="NAME", help="Column of a Parquet file of items.")
@click.option(
    "--rows-each",
    type=click.IntRange(min=1, max=100),
    default=8,
    show_default=True,
    help="Rows that are shown of a cluster.",
)
@shared.storage_options
@shared.output_options
def report(
    console: Console, storage: Any, runs: tuple[str, ...], out: str | None, **values: Any
) -> None:
    """Write a page about RUN, or one that compares several runs.

    The page needs no other file and no network: what was run on what, a summary in words, phases,
    clusters, outliers, distances, losses, a map of the centers, nearest pairs and the rows nearest
    to each center. Its figures lie beside it as PNG files.
    """
    from scrlm_dask.reporting.report import write_report

    if values["items"] is None:
        shared.require_option("--items", "items_column")
    done = write_report(runs, out, storage_options=storage, **values)
    content = {"report": done.page, "figures": list(done.figures)}
    console.result(content, facts("Written", {"report": done.page, "figures": len(done.figures)}))


@click.command()
@click.argument("run", type=click.Path())
@click.option("--out", metavar="FOLDER", required=True, help="Folder to write.")
@click.option(
    "--format",
    "table",
    type=click.Choice(TABLE_FORMATS),
    default="parquet",
    show_default=True,
    help="Form of the table of labels.",
)
@click.option("--overwrite", is_flag=True, help="Replace an export that exists.")
@shared.storage_options
@shared.output_options
def export(console: Console, storage: Any, run: str, out: str, table: Any, overwrite: bool) -> None:
    """Write labels and centers of RUN for other programs.

    FOLDER gets labels.parquet or labels.csv (row, id if the features have ids, label, distance,
    margin), centers.npy, centers.fbin and, where FAISS is installed, centers.faiss, an index that
    takes rows as they are and finds the labels that RUN has.
    """
    from scrlm_dask.pipeline.export import export as run_export

    done = run_export(
        run, out, table=table, overwrite=overwrite, storage_options=storage, listener=console
    )
    content = {
        "out": out,
        "files": list(done.files),
        "rows": done.n_rows,
        "clusters": done.n_clusters,
        "ids": done.ids,
    }
    console.result(content, facts("Exported", content | {"files": ", ".join(done.files)}))


def evaluation_record(evaluation: Evaluation) -> dict[str, Any]:
    """Return the evaluation as names and numbers."""
    content = asdict(evaluation.scores)
    del content["matching"]
    if evaluation.recovery is not None:
        content["largest_weight_error"] = evaluation.recovery.weights
        content["largest_sigma_error"] = evaluation.recovery.sigmas
    return content


def _cut_table(content: dict[str, Any]) -> Table:
    from rich.table import Table

    shown = min(content["clusters"], _MOST_SHOWN)
    table = Table(title=f"The first {shown} of {content['clusters']} clusters of the cut")
    for name in ("cluster", "rows", "clusters of the run"):
        table.add_column(name, justify="left" if name.startswith("clusters") else "right")
    if content["labels"] is not None:
        table.caption = f"labels of all rows: {content['labels']}"
    for k in range(shown):
        table.add_row(str(k), f"{content['counts'][k]:,}", first_few(content["members"][k], 8))
    return table


def _list_numbers(numbers: tuple[int, ...]) -> str:
    """Return how many numbers there are, and the first of them."""
    return f"{len(numbers)} (number {first_few(list(numbers))})" if numbers else "none"
