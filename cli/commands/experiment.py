from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..console import Console
from ..options import cluster_options, output_options, session, storage_options
from ..tables import facts

if TYPE_CHECKING:
    from rich.console import Group

# of scrlm_dask.experiments, which is not imported for --help
_NAMES = ("bounds", "bandwidth", "methods", "images")
_SIZES = ("smoke", "small", "paper")


def _parsed_data(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str | None] | None:
    """Names and paths; a name alone is to be fetched."""
    found: dict[str, str | None] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not name or (equals and not path):
            raise click.BadParameter(f"{text!r} is not NAME=PATH")
        if name in found:
            raise click.BadParameter(f"{name} is given twice")
        found[name] = path or None
    return found or None


@click.command()
@click.argument("name", type=click.Choice(_NAMES), metavar="NAME")
@click.option("--out", metavar="FOLDER", required=True, help="Folder to write, or to go on with.")
@click.option(
    "--size",
    type=click.Choice(_SIZES),
    default="small",
    show_default=True,
    help="smoke: shows that it runs; small: minutes on two cores; paper: the paper's grids.",
)
@click.option(
    "--data",
    metavar="NAME=PATH",
    multiple=True,
    callback=_parsed_data,
    help="For images: a features store with labels; may be repeated. A name alone, mnist or "
    "fashion, is fetched; without --data both are.",
)
@storage_options
@cluster_options
@output_options
def experiment(
    console: Console,
    cluster: Any,
    storage: Any,
    name: str,
    out: str,
    size: Any,
    data: dict[str, str | None] | None,
) -> None:
    """Run an experiment of the paper: NAME is bounds, bandwidth, methods or images.

    bounds: success regions against Corollary 7 (Figure 4). bandwidth: for which rho it succeeds
    (Figure 5). methods: accuracy beside other methods, with 50 % outliers (Figure 6). images:
    accuracy, purity and time on real images (Figures 7 to 10, Tables 1 and 2).

    FOLDER gets results.csv, results.parquet (with the extra formats), summary.json and figures
    (with the extra plot), and keeps each finished cell: the same command again goes on.
    """
    if data and name != "images":
        raise click.UsageError(f"the experiment {name} draws its own data; leave --data out")
    from scrlm_dask.experiments import run

    console.interrupted = "finished cells were kept, and the same command again goes on"
    with session(console, cluster):
        ran = run(name, out, size=size, data=data, storage_options=storage, listener=console)
    console.result({"out": ran.out, **ran.summary}, _tables(ran))


def _tables(ran: Any) -> Group:
    from rich.console import Group

    done = {
        "cells": f"{ran.n_cells:,}, {ran.n_kept:,} of them from before",
        "seconds": ran.summary["seconds"],
        "out": ran.out,
        "files": ", ".join(ran.files),
    }
    return Group(*(_table(table) for table in ran.tables), facts("Done", done))


def _table(content: Any) -> Any:
    from rich.table import Table

    table = Table(title=content.title, title_justify="left")
    for number, name in enumerate(content.header):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for line in content.lines:
        table.add_row(*line)
    return table
