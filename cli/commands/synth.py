from __future__ import annotations

from typing import Any

import click

from ..console import Console
from ..options import cluster_options, output_options, session, storage_options
from ..tables import facts


@click.command()
@click.argument("out", type=click.Path())
@click.option("--rows", type=int, default=20_000, show_default=True, help="Rows to draw.")
@click.option("--features", type=int, default=640, show_default=True, help="Features of a row.")
@click.option("--clusters", type=int, default=100, show_default=True, help="Clusters.")
@click.option("--outliers", type=float, default=0.5, show_default=True, help="Share of outliers.")
@click.option(
    "--sigma-min", type=float, default=1 / 16, show_default=True, help="Sigma of the first."
)
@click.option(
    "--sigma-max", type=float, default=1 / 4, show_default=True, help="Sigma of the last."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same bits.")
@click.option("--chunk-size", default="64MB", show_default=True, help="Size of a chunk.")
@click.option("--overwrite", is_flag=True, help="Replace a store that exists.")
@storage_options
@cluster_options
@output_options
def synth(
    console: Console,
    cluster: Any,
    storage: Any,
    out: str,
    rows: int,
    features: int,
    clusters: int,
    outliers: float,
    sigma_min: float,
    sigma_max: float,
    seed: int,
    chunk_size: str,
    overwrite: bool,
) -> None:
    """Draw the paper's Gaussian mixture with outliers into the features store OUT.

    Blocks are drawn by the workers; the bits depend on the seed alone, not on the chunks.
    """
    from scrlm_dask.kernels.synthesis import MixtureSpec
    from scrlm_dask.pipeline import check_synth
    from scrlm_dask.pipeline import synth as draw

    from ..sizes import parse_size

    spec = MixtureSpec(features, clusters, outliers, sigma_min, sigma_max, seed)
    chunk_bytes = parse_size("--chunk-size", chunk_size)
    check_synth(out, rows, overwrite, storage)
    with session(console, cluster):
        path = draw(
            out,
            rows,
            spec,
            chunk_bytes=chunk_bytes,
            overwrite=overwrite,
            storage_options=storage,
            listener=console,
        )
    content = {
        "path": path,
        "rows": rows,
        "features": features,
        "clusters": clusters,
        "outliers": outliers,
        "seed": seed,
        "bytes": 4 * rows * features,
    }
    console.result(content, facts("Features store", content))
