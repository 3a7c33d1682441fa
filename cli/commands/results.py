"""Commands that use a finished run: cut, evaluate, verify, report, export."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from scrlm_dask.choices import LEVELS, TABLE_FORMATS
from scrlm_dask.text import first_few

from ..options import shared
from ..tables.summaries import facts
from ..terminal.console import EXIT_INPUT_REJECTED, Console

if TYPE_CHECKING:
    from rich.table import Table

    from scrlm_dask.pipeline.evaluate import Evaluation

_MOST_SHOWN = 40


@click.command()
@click.argument("run", type=click.Path())
@click.option("--clusters", type=int, help="Number of clusters of the cut.")
@click.option(
    "--level", type=click.Choice(LEVELS), help="A level of the run, instead of --clusters."
)
@click.option(
    "--out", metavar="OUT", help="Labels store to write (default: print the clusters only)."
)
@click.option("--overwrite", is_flag=True, help="Replace an existing labels store.")
@shared.storage_options
@shared.output_options
def cut(
    console: Console,
    storage: Any,
    run: str,
    clusters: int | None,
    level: Any,
    out: str | None,
    overwrite: bool,
) -> None:
    """Merge the clusters of RUN into fewer clusters, or divide them along its fine level.

    Clusters are merged in the order of the merge tree that the fit stored in the model. If the
    model has no tree that contains its clusters, a Ward tree of the clusters is built. With --out,
    writes the label of every row (-1 is an outlier) to OUT. The features are not read.

    A run has a coarse or a fine level if its number of clusters was chosen without a clear scale.
    """
    if out is None:
        shared.require_option("--out", "overwrite")
    if (clusters is None) == (level is None):
        raise click.UsageError("give either --clusters or --level")
    from scrlm_dask.pipeline.cut import cut_run

    joined = cut_run(
        run,
        clusters,
        level=level,
        out=out,
        overwrite=overwrite,
        storage_options=storage,
        listener=console,
    )
    n_clusters, groups = len(joined.counts), joined.groups.tolist()
    if joined.parents is None:
        members: list[list[int]] = [[] for _ in range(n_clusters)]
        for k, group in enumerate(groups):
            members[group].append(k)
    else:
        members = [[k] for k in joined.parents.tolist()]
    content = {
        "run": run,
        "labels": out,
        "clusters": n_clusters,
        "outliers": joined.n_outliers,
        "counts": joined.counts.tolist(),
        "members": members,
    }
    console.result(content, _cut_table(content))


@click.command()
@click.argument("run", type=click.Path())
@click.option(
    "--truth",
    type=click.Path(),
    help="True labels, .npy or Zarr, -1 for outliers (default: labels in the features store).",
)
@shared.storage_options
@shared.allow_origin_option
@shared.cluster_options
@shared.output_options
def evaluate(
    console: Console,
    cluster: Any,
    storage: Any,
    allow_origins: tuple[str, ...],
    run: str,
    truth: str | None,
) -> None:
    """Score the labels of RUN against the true labels.

    RUN is a run directory or a labels store written by `scrlm predict`.
    """
    from scrlm_dask.pipeline.evaluate import prepare_evaluate

    job = prepare_evaluate(run, truth, storage, allow_origins)
    with shared.session(console, cluster.for_little_work()):
        content = evaluation_record(job.run(console))
    console.result(content, facts("Scores", content))


@click.command()
@click.argument("run", type=click.Path())
@click.option(
    "--blocks",
    type=click.IntRange(min=0),
    default=8,
    show_default=True,
    help="Number of random blocks to label again.",
)
@click.option(
    "--losses",
    type=click.IntRange(min=0),
    default=4,
    show_default=True,
    help="Number of random clusters whose loss is computed again; reads the features once.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Seed for the choice of blocks and clusters.",
)
@shared.storage_options
@shared.allow_origin_option
@shared.cluster_options
@shared.output_options
def verify(
    console: Console,
    cluster: Any,
    storage: Any,
    allow_origins: tuple[str, ...],
    run: str,
    blocks: int,
    losses: int,
    seed: int,
) -> None:
    """Verify a random part of RUN by computing it again.

    Exits with code 3 if a label, a distance or a loss differs, and prints the first row that
    differs. Labels of the coarse and the fine level are not checked.
    """
    from scrlm_dask.pipeline.verify import prepare_verify

    job = prepare_verify(run, blocks, losses, seed, storage, allow_origins)
    with shared.session(console, cluster):
        result = job.run(console)
    content = {"run": run, **asdict(result), "ok": result.ok}
    shown = {name: _list_numbers(v) if isinstance(v, tuple) else v for name, v in content.items()}
    console.result(content, facts("Verification", shown))
    if not result.ok:
        row = result.first_wrong_row
        console.fail(
            f"{run} does not match its features: {result.wrong_labels} labels, "
            f"{result.wrong_distances} distances and {len(result.wrong_clusters)} losses differ"
            f"{'' if row is None else f'; the first row that differs is {row}'}"
        )
        raise SystemExit(EXIT_INPUT_REJECTED)


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path())
@click.option(
    "--out",
    metavar="FILE.html",
    help="HTML file to write (default: report.html in RUN, or in the current directory for "
    "several runs).",
)
@click.option(
    "--items",
    metavar="FILE|DIR",
    help="Items that the rows represent, in the order of the rows: texts or images in a .npy or "
    "Parquet file, or a directory of images.",
)
@click.option("--items-column", metavar="NAME", help="Column of the items in a Parquet file.")
@click.option(
    "--rows-each",
    type=click.IntRange(min=1, max=100),
    default=8,
    show_default=True,
    help="Number of rows to show per cluster.",
)
@shared.storage_options
@shared.allow_origin_option
@shared.output_options
def report(
    console: Console, storage: Any, runs: tuple[str, ...], out: str | None, **values: Any
) -> None:
    """Write an HTML report on one run, or compare several runs.

    The report is self-contained. It shows parameters, a summary, phases, clusters, outliers,
    distances, losses, a map of the centers, the nearest pairs of clusters and the rows nearest to
    each center. The figures are also written as PNG files to a folder next to the
    report.
    """
    from scrlm_dask.reporting.report import write_report

    if values["items"] is None:
        shared.require_option("--items", "items_column")
    done = write_report(runs, out, storage_options=storage, listener=console, **values)
    content = {"report": done.page, "figures": list(done.figures)}
    console.result(content, facts("Report", {"report": done.page, "figures": len(done.figures)}))


@click.command()
@click.argument("run", type=click.Path())
@click.option("--out", metavar="DIR", required=True, help="Directory to write.")
@click.option(
    "--format",
    "table",
    type=click.Choice(TABLE_FORMATS),
    default="parquet",
    show_default=True,
    help="File format of the labels.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing export.")
@shared.storage_options
@shared.allow_origin_option
@shared.output_options
def export(
    console: Console,
    storage: Any,
    allow_origins: tuple[str, ...],
    run: str,
    out: str,
    table: Any,
    overwrite: bool,
) -> None:
    """Export labels and centers of RUN to standard file formats.

    Writes labels.parquet or labels.csv, centers.npy, centers.fbin and, if FAISS is installed,
    centers.faiss to DIR. The columns of the table are store_row (row of the features store),
    source_row and source_file (row and path of the source file, if the store was ingested), id (if
    the features have ids), label, distance and margin (if stored). A search for rows of the
    features in centers.faiss returns the labels of RUN.
    """
    from scrlm_dask.pipeline.export import export as run_export

    done = run_export(
        run,
        out,
        table=table,
        overwrite=overwrite,
        storage_options=storage,
        allow_origins=allow_origins,
        listener=console,
    )
    content = {
        "out": out,
        "files": list(done.files),
        "rows": done.n_rows,
        "clusters": done.n_clusters,
        "ids": done.ids,
    }
    console.result(content, facts("Export", content | {"files": ", ".join(done.files)}))


def evaluation_record(evaluation: Evaluation) -> dict[str, Any]:
    """Return the scores of an evaluation for --json and the tables."""
    content = asdict(evaluation.scores)
    del content["matching"]
    if evaluation.recovery is not None:
        content["largest_weight_error"] = evaluation.recovery.weights
        content["largest_sigma_error"] = evaluation.recovery.sigmas
    return content


def _cut_table(content: dict[str, Any]) -> Table:
    from rich.table import Table

    shown, total = min(content["clusters"], _MOST_SHOWN), content["clusters"]
    title = f"Clusters (first {shown} of {total})" if shown < total else "Clusters"
    table = Table(title=title, title_justify="left")
    for name in ("cluster", "rows", "clusters of the run"):
        table.add_column(name, justify="left" if name.startswith("clusters") else "right")
    if content["labels"] is not None:
        table.caption = f"labels of all rows: {content['labels']}"
        table.caption_justify = "left"
    for k in range(shown):
        table.add_row(str(k), f"{content['counts'][k]:,}", first_few(content["members"][k], 8))
    return table


def _list_numbers(numbers: tuple[int, ...]) -> str:
    """Return the count of the numbers and the first few."""
    return f"{len(numbers)} ({first_few(list(numbers))})" if numbers else "none"
