from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..console import Console
from ..options import output_options, refuse_without, storage_options
from ..tables import few

if TYPE_CHECKING:
    from rich.table import Table

_MOST_SHOWN = 40


@click.command()
@click.argument("run", type=click.Path())
@click.option("--clusters", type=int, required=True, help="How many are to be left.")
@click.option("--out", metavar="OUT", help="Labels store to write; default: only show the cut.")
@click.option("--overwrite", is_flag=True, help="Replace labels that exist.")
@storage_options
@output_options
def cut(
    console: Console,
    storage: Any,
    run: str,
    clusters: int,
    out: str | None,
    overwrite: bool,
) -> None:
    """Join the clusters of RUN to fewer, along its merge tree or that of its clusters.

    OUT gets a label for every row (-1 is an outlier) without another read of the features.
    """
    if out is None:
        refuse_without("--out", "overwrite")
    from scrlm_dask.pipeline import cut_run

    found = cut_run(run, clusters, out=out, overwrite=overwrite, storage_options=storage)
    members = [[k for k, g in enumerate(found.groups.tolist()) if g == i] for i in range(clusters)]
    content = {
        "run": run,
        "labels": out,
        "clusters": clusters,
        "outliers": found.n_outliers,
        "counts": found.counts.tolist(),
        "members": members,
    }
    console.result(content, _table(content))


def _table(content: dict[str, Any]) -> Table:
    from rich.table import Table

    shown = min(content["clusters"], _MOST_SHOWN)
    table = Table(title=f"The first {shown} of {content['clusters']} clusters of the cut")
    for name in ("cluster", "rows", "clusters of the run"):
        table.add_column(name, justify="left" if name.startswith("clusters") else "right")
    if content["labels"] is not None:
        table.caption = f"labels of all rows: {content['labels']}"
    for k in range(shown):
        table.add_row(str(k), f"{content['counts'][k]:,}", few(content["members"][k], 8))
    return table
