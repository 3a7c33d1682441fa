from __future__ import annotations

from typing import Any

import click

from ..console import Console
from ..options import output_options, refuse_without, storage_options
from ..tables import facts


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
@storage_options
@output_options
def report(
    console: Console,
    storage: Any,
    runs: tuple[str, ...],
    out: str | None,
    items: str | None,
    items_column: str | None,
    rows_each: int,
) -> None:
    """Write a page about RUN, or one that compares several runs.

    The page needs no other file and no network: what was run on what, a summary in words, phases,
    clusters, outliers, distances, losses, a map of the centers, nearest pairs and the rows nearest
    to each center. Its figures lie beside it as PNG files.
    """
    from scrlm_dask.reporting.report import write_report

    if items is None:
        refuse_without("--items", "items_column")
    done = write_report(
        runs,
        out,
        items=items,
        items_column=items_column,
        rows_each=rows_each,
        storage_options=storage,
    )
    content = {"report": done.page, "figures": list(done.figures)}
    console.result(content, facts("Written", {"report": done.page, "figures": len(done.figures)}))
