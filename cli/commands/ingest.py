from __future__ import annotations

from typing import Any

import click

from ..console import Console
from ..options import (
    cluster_options,
    output_options,
    refuse_without,
    session,
    storage_options,
)
from ..tables import facts, few

_FORMATS = (
    *("npy", "npz", "bin", "vecs", "hdf5", "parquet", "arrow", "csv", "raw", "zarr"),
    *("clip-retrieval", "huggingface"),
)


@click.command()
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.argument("out", type=click.Path())
@click.option("--format", "format_name", type=click.Choice(_FORMATS), help="Default: found out.")
@click.option("--dataset", metavar="NAME", help="Array of an HDF5, .npz or Zarr source.")
@click.option(
    "--column",
    "columns",
    metavar="NAME",
    multiple=True,
    help="Column of lists, or, given several times, the columns of features.",
)
@click.option(
    "--exclude",
    metavar="NAME",
    multiple=True,
    help="Column that is no feature and is left out. May be repeated.",
)
@click.option("--labels", metavar="NAME", help="True labels: a file, or a column of the source.")
@click.option("--ids", metavar="NAME", help="Names of rows: a file, or a column of the source.")
@click.option(
    "--dtype",
    type=click.Choice(["float16", "float32"]),
    help="How features are stored; default: float16 as it is, all else as float32.",
)
@click.option("--raw-dtype", metavar="DTYPE", help="Items of a raw file; default: --dtype.")
@click.option("--features", type=click.IntRange(min=1), help="Features of a row of a raw file.")
@click.option("--chunk-size", default="64MB", show_default=True, help="Size of a chunk.")
@click.option("--limit", type=click.IntRange(min=1), help="Take the first so many rows only.")
@click.option("--shuffle", is_flag=True, help="Store the rows in a random order.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random order.")
@click.option(
    "--nan",
    type=click.Choice(["error", "drop", "keep"]),
    default="error",
    show_default=True,
    help="Rows that hold NaN or infinity.",
)
@click.option("--overwrite", is_flag=True, help="Replace a store that exists.")
@storage_options
@cluster_options
@output_options
def ingest(
    console: Console,
    cluster: Any,
    storage: Any,
    sources: tuple[str, ...],
    out: str,
    format_name: str | None,
    dataset: str | None,
    columns: tuple[str, ...],
    exclude: tuple[str, ...],
    labels: str | None,
    ids: str | None,
    dtype: Any,
    raw_dtype: str | None,
    features: int | None,
    chunk_size: str,
    limit: int | None,
    shuffle: bool,
    seed: int,
    nan: Any,
    overwrite: bool,
) -> None:
    """Write the rows of SOURCE... into the features store OUT.

    A source is a file, a folder or a pattern in quotes: .npy, .npz, .fbin, .u8bin, .i8bin, .fvecs,
    .bvecs, HDF5, Parquet, Arrow, CSV, raw, Zarr, clip-retrieval or Hugging Face's save_to_disk.

    A command that was stopped goes on when it is given again.
    """
    from scrlm_dask.pipeline import IngestConfig, check_ingest
    from scrlm_dask.pipeline import ingest as run_ingest
    from scrlm_dask.sources.registry import SourceOptions

    from ..sizes import parse_size

    if not shuffle:
        refuse_without("--shuffle", "seed")
    if format_name == "raw":
        raw_dtype = raw_dtype or dtype
    options = SourceOptions(format_name, dataset, columns, raw_dtype, features, exclude)
    chunk_bytes = parse_size("--chunk-size", chunk_size)
    config = IngestConfig(labels, ids, dtype, chunk_bytes, limit, shuffle, seed, nan)
    check_ingest(sources, out, config, options, overwrite, storage)
    console.interrupted = "run the same command again to go on"
    with session(console, cluster):
        found = run_ingest(
            sources,
            out,
            config,
            options=options,
            overwrite=overwrite,
            storage_options=storage,
            listener=console,
        )
    content: dict[str, Any] = {
        "path": found.path,
        "rows": found.n_rows,
        "features": found.n_features,
        "dtype": found.dtype,
        "blocks": found.n_blocks,
        "kept_blocks": found.kept_blocks,
        "dropped_rows": found.n_dropped,
        "bytes": found.n_bytes,
        "columns": list(found.columns),
        "label_names": None if found.label_names is None else list(found.label_names),
    }
    lists = {name: few(content[name]) for name in ("columns", "label_names") if content[name]}
    shown = {name: value for name, value in content.items() if not isinstance(value, list | None)}
    console.result(content, facts("Features store", {**shown, **lists}))
