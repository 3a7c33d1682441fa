from __future__ import annotations

from typing import Any

import click

from ..console import Console
from ..options import output_options, storage_options
from ..tables import facts


@click.command()
@click.argument("run", type=click.Path())
@click.option("--out", metavar="FOLDER", required=True, help="Folder to write.")
@click.option(
    "--format",
    "table",
    type=click.Choice(("parquet", "csv")),
    default="parquet",
    show_default=True,
    help="Form of the table of labels.",
)
@click.option("--overwrite", is_flag=True, help="Replace an export that exists.")
@storage_options
@output_options
def export(console: Console, storage: Any, run: str, out: str, table: Any, overwrite: bool) -> None:
    """Write labels and centers of RUN for other programs.

    FOLDER gets labels.parquet or labels.csv (row, id if the features have ids, label, distance,
    margin), centers.npy, centers.fbin and, where FAISS is installed, centers.faiss, an index that
    takes rows as they are and finds the labels that RUN has.
    """
    from scrlm_dask.pipeline import export as run_export

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
