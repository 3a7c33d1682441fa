from __future__ import annotations

from typing import Any

import click

from ..console import Console
from ..options import output_options, storage_options
from ..tables import facts, few


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
    type=click.Choice(["float16", "float32"]),
    help="How features are stored; default: float16 as it is, all else as float32.",
)
@click.option("--chunk-size", default="8MB", show_default=True, help="Size of a chunk.")
@click.option("--limit", type=click.IntRange(min=1), help="Take the first so many items only.")
@click.option(
    "--on-error",
    type=click.Choice(["refuse", "skip"]),
    default="refuse",
    show_default=True,
    help="Damaged images and empty texts; to skip them, all items are looked at first.",
)
@click.option("--overwrite", is_flag=True, help="Replace a store that exists.")
@storage_options
@output_options
def embed(
    console: Console,
    storage: Any,
    source: str,
    out: str,
    encoder: str,
    column: str | None,
    labels: str | None,
    ids: str | None,
    batch_size: int,
    device: str | None,
    dtype: Any,
    chunk_size: str,
    limit: int | None,
    on_error: Any,
    overwrite: bool,
) -> None:
    """Encode the images or texts of SOURCE into the features store OUT.

    SOURCE is a folder of images, with all folders in it, a .txt file with a text a line, or a CSV,
    TSV, JSON-lines or Parquet file with --column. The encoder works in this process.

    A command that was stopped goes on when it is given again.
    """
    from scrlm_dask.pipeline import EmbedConfig
    from scrlm_dask.pipeline import embed as run_embed

    from ..sizes import parse_size

    chunk_bytes = parse_size("--chunk-size", chunk_size)
    config = EmbedConfig(
        *(encoder, column, labels, ids, batch_size, device, dtype, chunk_bytes, limit, on_error)
    )
    console.interrupted = "run the same command again to go on"
    with console.progress():
        found = run_embed(
            source,
            out,
            config,
            overwrite=overwrite,
            storage_options=storage,
            listener=console,
        )
    content: dict[str, Any] = {
        "path": found.path,
        "encoder": encoder,
        "input": source,
        "rows": found.n_rows,
        "features": found.n_features,
        "dtype": found.dtype,
        "blocks": found.n_blocks,
        "kept_blocks": found.kept_blocks,
        "skipped_items": found.n_dropped,
        "bytes": found.n_bytes,
        "label_names": None if found.label_names is None else list(found.label_names),
    }
    shown = {name: value for name, value in content.items() if name != "label_names"}
    if found.label_names:
        shown["label_names"] = few(list(found.label_names))
    console.result(content, facts("Features store", shown))
