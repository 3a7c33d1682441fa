from __future__ import annotations

from typing import Any

import click

from ..console import Console
from ..options import (
    cluster_options,
    label_options,
    output_options,
    session,
    storage_options,
)
from ..performance import performance_option
from ..tables import facts


@click.command()
@click.argument("run", type=click.Path())
@click.argument("features", type=click.Path())
@click.option("--out", metavar="OUT", required=True, help="Labels store to write.")
@click.option("--block-rows", type=int, help="Rows handled at a time; default: the store's chunks.")
@label_options
@click.option("--overwrite", is_flag=True, help="Replace labels that exist.")
@storage_options
@cluster_options
@output_options
@performance_option
def predict(
    console: Console,
    cluster: Any,
    storage: Any,
    run: str,
    features: str,
    out: str,
    block_rows: int | None,
    margins: bool,
    overwrite: bool,
) -> None:
    """Label the rows of FEATURES with the model of RUN.

    OUT gets a label (-1 is an outlier), a distance and a margin for every row.
    """
    from scrlm_dask.pipeline import check_predict
    from scrlm_dask.pipeline import predict as run_predict

    check_predict(run, features, out, overwrite, block_rows, storage)
    with session(console, cluster):
        found = run_predict(
            run,
            features,
            out=out,
            overwrite=overwrite,
            margins=margins,
            block_rows=block_rows,
            storage_options=storage,
            listener=console,
        )
    content = {
        "labels": out,
        "rows": found.n_rows,
        "clusters": len(found.counts),
        "outliers": found.n_outliers,
        "outlier_share": found.n_outliers / found.n_rows,
    }
    console.result(content, facts("Labels", content))
