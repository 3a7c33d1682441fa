from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..console import Console
from ..inspection import damage_content, rows_content, store_content, tables
from ..options import (
    cluster_options,
    output_options,
    refuse_without,
    session,
    storage_options,
)
from ..scales import depth_option, preprocess_option

if TYPE_CHECKING:
    from scrlm_dask.passes.inspect import Damage


@click.command()
@click.argument("store", type=click.Path())
@click.option("--stats", is_flag=True, help="Read all rows once and say what they are like.")
@click.option("--verify", is_flag=True, help="Read everything and check digests and checksums.")
@click.option("--plot", metavar="FILE", help="Draw the statistics, e.g. to out.png.")
@click.option("--rho", type=float, help="Compare distances with the radius of this bandwidth.")
@depth_option
@preprocess_option("Take spectrum and distances after this map, as a fit would.")
@click.option("--block-rows", type=int, help="Rows handled at a time; default: the store's chunks.")
@storage_options
@cluster_options
@output_options
def inspect(
    console: Console,
    cluster: Any,
    storage: Any,
    store: str,
    stats: bool,
    verify: bool,
    plot: str | None,
    rho: float | None,
    loss_depth: float,
    preprocess: Any,
    block_rows: int | None,
) -> None:
    """Say what the features store STORE is: shape, chunks, codecs, completeness, manifest.

    --stats adds what one read of the rows tells: ranges, NaN, duplicates, norms, spectrum and
    distances. --verify ends with code 3 if a block is damaged, and names each that is.
    """
    from scrlm_dask.pipeline import inspect_rows, inspect_store, verify_store
    from scrlm_dask.plots import check_plot, plot_statistics

    if not (stats or plot):
        refuse_without("--stats or --plot", "rho", "loss_depth", "preprocess", "block_rows")
    if rho is None:
        refuse_without("--rho", "loss_depth")
    if plot:
        check_plot(plot)
    found = inspect_store(store, storage_options=storage)
    content = store_content(found)
    damaged: tuple[Damage, ...] = ()
    if stats or plot or verify:
        with session(console, cluster):
            if verify:
                damaged = verify_store(store, storage_options=storage, listener=console)
                content["verification"] = damage_content(damaged, found)
            if damaged and (stats or plot):
                console.say("no statistics: the store is damaged")
            elif stats or plot:
                seen = inspect_rows(
                    store,
                    rho=rho,
                    F=loss_depth,
                    preprocess=preprocess,
                    block_rows=block_rows,
                    storage_options=storage,
                    listener=console,
                )
                content["statistics"] = rows_content(seen)
                if plot:
                    plot_statistics(seen.statistics, found.url, preprocess, plot)
    console.result(content, tables(content))
    _refuse(damaged, found.url)


def _refuse(damaged: tuple[Damage, ...], url: str) -> None:
    """What was found is printed; the exit code says that it is not good."""
    from scrlm_dask.errors import StoreError

    if damaged:
        named = "; ".join(f"block {d.block} (rows {d.first_row} to {d.last_row})" for d in damaged)
        raise StoreError(f"{len(damaged)} block(s) of {url} are damaged: {named}; restore them")
