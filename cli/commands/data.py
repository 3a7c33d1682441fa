"""Commands that make and describe features stores: synth, ingest, embed, inspect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from scrlm_dask.choices import DAMAGED_ITEMS, FEATURE_DTYPES, INGEST_FORMATS, NAN_ROWS
from scrlm_dask.text import first_few

from ..options import shared
from ..options.fitting import depth_option, preprocess_option
from ..tables.store import damage_content, rows_content, store_content, store_tables
from ..tables.summaries import facts
from ..terminal.console import Console

if TYPE_CHECKING:
    from scrlm_dask.passes.digests import DamagedBlock
    from scrlm_dask.pipeline.ingest_job import Ingest


_overwrite_option = click.option("--overwrite", is_flag=True, help="Replace a store that exists.")


@click.command()
@click.argument("out", type=click.Path())
@click.option("--rows", type=int, default=20_000, show_default=True, help="Rows to draw.")
@click.option(
    "--features", "n_features", type=int, default=640, show_default=True, help="Features of a row."
)
@click.option(
    "--clusters", "n_clusters", type=int, default=100, show_default=True, help="Clusters."
)
@click.option("--outliers", type=float, default=0.5, show_default=True, help="Share of outliers.")
@click.option(
    "--sigma-min", type=float, default=1 / 16, show_default=True, help="Sigma of the first."
)
@click.option(
    "--sigma-max", type=float, default=1 / 4, show_default=True, help="Sigma of the last."
)
@shared.seed_option
@shared.chunk_option("64MB")
@_overwrite_option
@shared.storage_options
@shared.cluster_options
@shared.output_options
def synth(
    console: Console,
    cluster: Any,
    storage: Any,
    out: str,
    rows: int,
    chunk_bytes: int,
    overwrite: bool,
    **values: Any,
) -> None:
    """Draw the paper's Gaussian mixture with outliers into the features store OUT.

    Blocks are drawn by the workers; the bits depend on the seed alone, not on the chunks.
    """
    from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
    from scrlm_dask.pipeline.synth import prepare_synth

    spec = MixtureSpec(**shared.take_fields(MixtureSpec, values))
    job = prepare_synth(out, rows, spec, chunk_bytes, overwrite, storage)
    with shared.session(console, cluster):
        path = job.run(console)
    content = {
        "path": path,
        "rows": rows,
        "features": spec.n_features,
        "clusters": spec.n_clusters,
        "outliers": spec.outliers,
        "seed": spec.seed,
        "bytes": 4 * rows * spec.n_features,
    }
    console.result(content, facts("Features store", content))


@click.command()
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.argument("out", type=click.Path())
@click.option("--format", type=click.Choice(INGEST_FORMATS), help="Default: found out.")
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
    type=click.Choice(FEATURE_DTYPES),
    help="How features are stored; default: float16 as it is, all else as float32.",
)
@click.option("--raw-dtype", metavar="DTYPE", help="Items of a raw file; default: --dtype.")
@click.option(
    "--features",
    "raw_features",
    type=click.IntRange(min=1),
    help="Features of a row of a raw file.",
)
@shared.chunk_option("64MB")
@click.option("--limit", type=click.IntRange(min=1), help="Take the first so many rows only.")
@click.option("--shuffle", is_flag=True, help="Store the rows in a random order.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the random order.")
@click.option(
    "--nan",
    type=click.Choice(NAN_ROWS),
    default="error",
    show_default=True,
    help="Rows that hold NaN or infinity.",
)
@_overwrite_option
@shared.storage_options
@shared.cluster_options
@shared.output_options
def ingest(
    console: Console,
    cluster: Any,
    storage: Any,
    sources: tuple[str, ...],
    out: str,
    overwrite: bool,
    **values: Any,
) -> None:
    """Write the rows of SOURCE... into the features store OUT.

    A source is a file, a folder or a pattern in quotes: .npy, .npz, .fbin, .u8bin, .i8bin, .fvecs,
    .bvecs, HDF5, Parquet, Arrow, CSV, raw, Zarr, clip-retrieval or Hugging Face's save_to_disk.

    A command that was stopped goes on when it is given again.
    """
    from scrlm_dask.pipeline.ingest import prepare_ingest
    from scrlm_dask.pipeline.ingest_job import IngestConfig
    from scrlm_dask.sources.registry import SourceOptions

    if not values["shuffle"]:
        shared.require_option("--shuffle", "seed")
    if values["format"] == "raw":
        values["raw_dtype"] = values["raw_dtype"] or values["dtype"]
    options = SourceOptions(**shared.take_fields(SourceOptions, values))
    config = IngestConfig(**shared.take_fields(IngestConfig, values))
    job = prepare_ingest(sources, out, config, options, overwrite, storage)
    console.interrupted = "run the same command again to go on"
    with shared.session(console, cluster):
        written = job.run(console)
    _show_store(console, written, "dropped_rows", columns=list(written.columns))


@click.command()
@click.argument("source", type=click.Path())
@click.argument("out", type=click.Path())
@click.option(
    "--encoder",
    metavar="NAME",
    required=True,
    help="pixels[:SIDE], hashing[:FEATURES], sentence-transformers:NAME_OR_PATH, "
    "open_clip:MODEL/PRETRAINED_OR_PATH, torchvision:MODEL[/WEIGHTS_OR_PATH], or module:function "
    "(or file.py:function), which runs that code.",
)
@click.option("--column", metavar="NAME", help="Column of texts of a CSV, JSON or Parquet file.")
@click.option(
    "--labels",
    metavar="NAME",
    help="True labels: a file, a column, or `folder` for the folders that images lie in.",
)
@click.option(
    "--ids",
    metavar="NAME",
    help="Names of rows: a file or a column; default: paths of images, numbers of rows.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="Items that the encoder is given at a time.",
)
@click.option("--device", metavar="NAME", help="Of the model, e.g. cpu or cuda:0; default: a GPU.")
@click.option(
    "--dtype",
    type=click.Choice(FEATURE_DTYPES),
    help="How features are stored; default: float16 as it is, all else as float32.",
)
@shared.chunk_option("8MB")
@click.option("--limit", type=click.IntRange(min=1), help="Take the first so many items only.")
@click.option(
    "--on-error",
    type=click.Choice(DAMAGED_ITEMS),
    default="refuse",
    show_default=True,
    help="Damaged images and empty texts; to skip them, all items are looked at first.",
)
@_overwrite_option
@shared.storage_options
@shared.output_options
def embed(
    console: Console, storage: Any, source: str, out: str, overwrite: bool, **values: Any
) -> None:
    """Encode the images or texts of SOURCE into the features store OUT.

    SOURCE is a folder of images, with all folders in it, a .txt file with a text a line, or a CSV,
    TSV, JSON-lines or Parquet file with --column. The encoder works in this process.

    A command that was stopped goes on when it is given again.
    """
    from scrlm_dask.pipeline.embed import EmbedConfig
    from scrlm_dask.pipeline.embed import embed as run_embed

    config = EmbedConfig(**shared.take_fields(EmbedConfig, values))
    console.interrupted = "run the same command again to go on"
    with console.progress():
        written = run_embed(
            *(source, out, config), overwrite=overwrite, storage_options=storage, listener=console
        )
    _show_store(console, written, "skipped_items", {"encoder": config.encoder, "input": source})


@click.command()
@click.argument("store", type=click.Path())
@click.option("--stats", is_flag=True, help="Read all rows once and say what they are like.")
@click.option("--verify", is_flag=True, help="Read everything and check digests and checksums.")
@click.option("--plot", metavar="FILE", help="Draw the statistics, e.g. to out.png.")
@click.option("--rho", type=float, help="Compare distances with the radius of this bandwidth.")
@depth_option
@preprocess_option("Take spectrum and distances after this map, as a fit would.")
@shared.block_rows_option
@shared.storage_options
@shared.cluster_options
@shared.output_options
def inspect(
    console: Console,
    cluster: Any,
    storage: Any,
    store: str,
    stats: bool,
    verify: bool,
    plot: str | None,
    **values: Any,
) -> None:
    """Say what the features store STORE is: shape, chunks, codecs, completeness, manifest.

    --stats adds what one read of the rows tells: ranges, NaN, duplicates, norms, spectrum and
    distances. --verify ends with code 3 if a block is damaged, and names each that is.
    """
    from scrlm_dask.pipeline.inspect import inspect_rows, inspect_store, verify_store
    from scrlm_dask.reporting.plots import check_plot, plot_statistics

    if not (stats or plot):
        shared.require_option("--stats or --plot", "rho", "F", "preprocess", "block_rows")
    if values["rho"] is None:
        shared.require_option("--rho", "F")
    if plot:
        check_plot(plot)
    description = inspect_store(store, storage_options=storage)
    content = store_content(description)
    damaged: tuple[DamagedBlock, ...] = ()
    if stats or plot or verify:
        with shared.session(console, cluster):
            if verify:
                damaged = verify_store(store, storage_options=storage, listener=console)
                content["verification"] = damage_content(damaged, description)
            if damaged and (stats or plot):
                console.say("no statistics: the store is damaged")
            elif stats or plot:
                rows = inspect_rows(store, storage_options=storage, listener=console, **values)
                content["statistics"] = rows_content(rows)
                if plot:
                    plot_statistics(rows.statistics, description.url, values["preprocess"], plot)
    console.result(content, store_tables(content))
    _reject_damaged(damaged, description.url)


def _show_store(
    console: Console,
    written: Ingest,
    dropped: str,
    about: dict[str, str] | None = None,
    **lists: list[str],
) -> None:
    """Print what was written; `dropped` is what the command calls rows that were left out."""
    content = {
        "path": written.path,
        **(about or {}),
        "rows": written.n_rows,
        "features": written.n_features,
        "dtype": written.dtype,
        "blocks": written.n_blocks,
        "kept_blocks": written.kept_blocks,
        dropped: written.n_dropped,
        "bytes": written.n_bytes,
        **lists,
        "label_names": None if written.label_names is None else list(written.label_names),
    }
    shown = {
        name: first_few(value) if isinstance(value, list) else value
        for name, value in content.items()
        if value not in (None, [])
    }
    console.result(content, facts("Features store", shown))


def _reject_damaged(damaged: tuple[DamagedBlock, ...], url: str) -> None:
    """Raise if there are damaged blocks, after they were printed, to set the exit code."""
    from scrlm_dask.errors import StoreError

    if damaged:
        named = "; ".join(f"block {d.block} (rows {d.first_row} to {d.last_row})" for d in damaged)
        raise StoreError(f"{len(damaged)} block(s) of {url} are damaged: {named}; restore them")
