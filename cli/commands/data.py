"""Commands that write or describe features stores: synth, ingest, embed, inspect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from scrlm_dask.choices import (
    DAMAGED_ITEMS,
    FEATURE_DTYPES,
    INGEST_FORMATS,
    NAN_ROWS,
    ZERO_ROWS,
)
from scrlm_dask.text import first_few, plural

from ..options import shared
from ..options.fitting import depth_option, preprocess_option
from ..tables.store import damage_content, rows_content, store_content, store_tables
from ..tables.summaries import facts
from ..terminal.console import Console

if TYPE_CHECKING:
    from scrlm_dask.passes.digests import DamagedBlock
    from scrlm_dask.pipeline.ingest_job import IngestConfig, IngestResult


_overwrite_option = click.option("--overwrite", is_flag=True, help="Replace an existing store.")


@click.command()
@click.argument("out", type=click.Path())
@click.option("--rows", type=int, default=20_000, show_default=True, help="Number of rows.")
@click.option(
    "--features", "n_features", type=int, default=640, show_default=True, help="Features per row."
)
@click.option(
    "--clusters", "n_clusters", type=int, default=100, show_default=True, help="Number of clusters."
)
@click.option(
    "--outliers", type=float, default=0.5, show_default=True, help="Fraction of outliers."
)
@click.option(
    "--sigma-min",
    type=float,
    default=1 / 16,
    show_default=True,
    help="Standard deviation of the first, tightest cluster.",
)
@click.option(
    "--sigma-max",
    type=float,
    default=1 / 4,
    show_default=True,
    help="Standard deviation of the last, widest cluster.",
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
    """Draw a synthetic mixture into the features store OUT.

    The rows come from the paper's mixture of Gaussian clusters and outliers. The store also
    contains their true labels. Workers draw the chunks; the rows depend on the seed and not on the
    chunk size.
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
@click.option("--format", type=click.Choice(INGEST_FORMATS), help="Input format (default: detect).")
@click.option(
    "--dataset", metavar="NAME", help="Name of the array in an HDF5, .npz or Zarr source."
)
@click.option(
    "--column",
    "columns",
    metavar="NAME",
    multiple=True,
    help="Column that contains a list of features, or, if repeated, one column per feature.",
)
@click.option(
    "--exclude",
    metavar="NAME",
    multiple=True,
    help="Column to exclude from the features. May be repeated.",
)
@click.option("--labels", metavar="NAME", help="True labels: a file or a column of the source.")
@click.option("--ids", metavar="NAME", help="Ids of the rows: a file or a column of the source.")
@click.option(
    "--dtype",
    type=click.Choice(FEATURE_DTYPES),
    help="Data type of the stored features (default: float16 for float16 input, else float32).",
)
@click.option(
    "--raw-dtype", metavar="DTYPE", help="Data type of a raw file (default: the type of --dtype)."
)
@click.option(
    "--features",
    "raw_features",
    type=click.IntRange(min=1),
    help="Number of features per row of a raw file.",
)
@shared.chunk_option("64MB")
@click.option(
    "--limit", type=click.IntRange(min=1), help="Maximum number of rows to read (default: all)."
)
@click.option("--shuffle", is_flag=True, help="Store the rows in random order.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed for --shuffle.")
@click.option(
    "--nan",
    type=click.Choice(NAN_ROWS),
    default="error",
    show_default=True,
    help="Treatment of rows that contain NaN or infinity.",
)
@click.option(
    "--zeros",
    type=click.Choice(ZERO_ROWS),
    default="keep",
    show_default=True,
    help="Treatment of rows that contain only zeros, e.g. failed encodings.",
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
    """Convert the rows of SOURCE... into the features store OUT.

    A source is a file, a directory or a quoted pattern. Files that a shell lists in alphabetical
    order are read in numeric order. Formats: .npy, .npz, .fbin, .u8bin, .i8bin,
    .fvecs, .bvecs, HDF5, Parquet, Arrow, CSV, raw, Zarr, clip-retrieval and Hugging Face's
    save_to_disk.

    To resume an interrupted ingest, run the same command again.
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
    ordered = _order_sources(console, sources, config)
    job = prepare_ingest(ordered, out, config, options, overwrite, storage)
    console.interrupted = "run the same command again to resume"
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
    help="Encoder: pixels[:SIDE], hashing[:FEATURES], sentence-transformers:NAME_OR_PATH, "
    "open_clip:MODEL/PRETRAINED_OR_PATH, torchvision:MODEL[/WEIGHTS_OR_PATH], or module:function "
    "or file.py:function, which runs that code.",
)
@click.option(
    "--column", metavar="NAME", help="Column of texts in a CSV, TSV, JSON-lines or Parquet file."
)
@click.option(
    "--labels",
    metavar="NAME",
    help="True labels: a file, a column, or `folder` for the subdirectories of images.",
)
@click.option(
    "--ids",
    metavar="NAME",
    help="Ids of the rows: a file or a column (default: paths of images, row numbers of texts).",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="Number of items per call of the encoder.",
)
@click.option(
    "--device",
    metavar="NAME",
    help="Device of the model, e.g. cpu or cuda:0 (default: a GPU if there is one).",
)
@click.option(
    "--dtype",
    type=click.Choice(FEATURE_DTYPES),
    help="Data type of the stored features (default: float16 for float16 input, else float32).",
)
@shared.chunk_option("8MB")
@click.option(
    "--limit", type=click.IntRange(min=1), help="Maximum number of items to encode (default: all)."
)
@click.option(
    "--on-error",
    type=click.Choice(DAMAGED_ITEMS),
    default="refuse",
    show_default=True,
    help="Treatment of damaged images and empty texts; with skip, all items are checked "
    "before the first is encoded.",
)
@_overwrite_option
@shared.storage_options
@shared.output_options
def embed(
    console: Console, storage: Any, source: str, out: str, overwrite: bool, **values: Any
) -> None:
    """Encode images or texts of SOURCE into the features store OUT.

    SOURCE is a directory of images, including its subdirectories, a .txt file with one text per
    line, or a CSV, TSV, JSON-lines or Parquet file with --column. The encoder runs in this process.

    To resume an interrupted command, run it again with the same arguments.
    """
    from scrlm_dask.pipeline.embed import EmbedConfig
    from scrlm_dask.pipeline.embed import embed as run_embed

    config = EmbedConfig(**shared.take_fields(EmbedConfig, values))
    console.interrupted = "run the same command again to resume"
    with console.progress():
        written = run_embed(
            *(source, out, config), overwrite=overwrite, storage_options=storage, listener=console
        )
    _show_store(console, written, "skipped_items", {"encoder": config.encoder, "input": source})


@click.command()
@click.argument("store", type=click.Path())
@click.option("--stats", is_flag=True, help="Read all rows and add statistics.")
@click.option("--verify", is_flag=True, help="Read all blocks and verify digests and checksums.")
@click.option("--plot", metavar="FILE", help="Plot the statistics to this file, e.g. out.png.")
@click.option(
    "--rho", type=float, help="Bandwidth; its radius is compared with the distances between rows."
)
@depth_option
@preprocess_option("Transformation of the rows before spectrum and distances are computed.")
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
    """Describe the features store STORE and its rows.

    Prints shape, chunks, codecs, completeness and manifest. --stats reads all rows and adds ranges,
    rows with NaN, duplicates, norms, spectrum and distances. --verify reads all blocks, lists the
    damaged blocks, and exits with code 3 if there are any.
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
                console.say("statistics are skipped because the store is damaged")
            elif stats or plot:
                rows = inspect_rows(store, storage_options=storage, listener=console, **values)
                content["statistics"] = rows_content(rows)
                if plot:
                    plot_statistics(rows.statistics, description.url, values["preprocess"], plot)
    console.result(content, store_tables(content))
    _reject_damaged(damaged, description.url)


def _order_sources(
    console: Console, sources: tuple[str, ...], config: IngestConfig
) -> tuple[str, ...]:
    """Return the sources in numeric order if a shell has probably sorted them by their names.

    Raise if labels or ids are files, because these may have the order of the shell.
    """
    from scrlm_dask.errors import InputError
    from scrlm_dask.sources.registry import is_column
    from scrlm_dask.sources.sharded import first_moved, natural_order

    ordered = natural_order(sources)
    moved = first_moved(sources, ordered)
    if moved is None:
        return sources
    place, new_place = sources.index(moved) + 1, ordered.index(moved) + 1
    for option, given in (("--labels", config.labels), ("--ids", config.ids)):
        if given is not None and not is_column(given):
            raise InputError(
                f"the order of the rows of {option} {given} is ambiguous: {moved} is source "
                f"{place} in alphabetical order, but {new_place} in numeric order; for numeric "
                "order, give the folder or a quoted pattern such as 'part*.npy'; for another "
                "order, use scrlm_dask.ingest in Python"
            )
    console.say(
        f"the {len(sources)} sources are read in numeric order: {moved} was given as source "
        f"{place} and is read as source {new_place}"
    )
    return tuple(ordered)


def _show_store(
    console: Console,
    written: IngestResult,
    dropped: str,
    about: dict[str, str] | None = None,
    **lists: list[str],
) -> None:
    """Print the store that was written; `dropped` is the JSON key for the count of omitted rows."""
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
    """Raise an error, which sets exit code 3, if there are damaged blocks."""
    from scrlm_dask.errors import StoreError

    if damaged:
        listed = "; ".join(f"block {d.block} (rows {d.first_row} to {d.last_row})" for d in damaged)
        number = plural(len(damaged), "damaged block")
        raise StoreError(f"{url} has {number}: {listed}; restore them from a copy")
