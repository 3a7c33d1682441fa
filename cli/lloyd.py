"""Options of the k-means iterations, which two commands share, and what is shown of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table

LLOYD_PARAMETERS = ("tol", "inertia_tol", "max_time", "kmeans_sample", "persist")
_BAR = 8
_MOST_ROWS = 20


def lloyd_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """When iterations stop and what they read; the command gets `lloyd`, all but their number."""

    @click.option(
        "--tol",
        type=float,
        default=1e-4,
        show_default=True,
        help="k-means stops when centers move less than this share of the rows' distance to them.",
    )
    @click.option(
        "--inertia-tol",
        type=float,
        default=1e-5,
        show_default=True,
        help="k-means stops when the inertia falls by less than this share of itself.",
    )
    @click.option(
        "--max-time", metavar="DURATION", help="No new iteration of k-means after e.g. 55m."
    )
    @click.option(
        "--kmeans-sample",
        type=float,
        help="k-means iterates first on this share of the blocks, doubled until it is all of them.",
    )
    @click.option(
        "--persist",
        type=click.Choice(["auto", "yes", "no"]),
        default="auto",
        show_default=True,
        help="Hold features in the workers' memory between the passes of k-means.",
    )
    @wraps(command)
    def wrapped(
        tol: float,
        inertia_tol: float,
        max_time: str | None,
        kmeans_sample: float | None,
        persist: str,
        **kwargs: Any,
    ) -> Any:
        lloyd = {
            "tol": tol,
            "inertia_tol": inertia_tol,
            "max_seconds": None if max_time is None else parse_seconds("--max-time", max_time),
            "sample": kmeans_sample,
            "persist": persist,
        }
        return command(lloyd=lloyd, **kwargs)

    return wrapped


def iterations_table(record: dict[str, Any]) -> Table:
    """Each iteration with its inertia as a bar; of many, the first and the last ones."""
    from rich.table import Table

    iterations = record["iterations"]
    table = Table(title=f"k-means ended by {record['stopped']}", title_justify="left")
    for name in ("", "inertia", "per row", "shift", "moved", "empty", "seconds"):
        table.add_column(name, justify="left" if name == "per row" else "right", no_wrap=True)
    # a row's share: samples have fewer rows
    values = [it["inertia"] / max(it["rows"], 1) for it in iterations]
    low, high = min(values, default=0.0), max(values, default=0.0)
    for i, (it, value) in enumerate(zip(iterations, values, strict=True)):
        if _MOST_ROWS // 2 <= i < len(iterations) - _MOST_ROWS // 2:
            if i == _MOST_ROWS // 2:
                table.add_row("...", "", "", "", "", "", "")
            continue
        share = (value - low) / (high - low) if high > low else 0.0
        table.add_row(
            f"{it['number']}{' (sample)' if it['sampled'] else ''}",
            f"{it['inertia']:,.6g}",
            "█" * max(1, round(_BAR * share)),
            "-" if it["shift"] is None else f"{it['shift']:.2g}",
            "-" if it["moved"] is None else f"{it['moved']:,}",
            str(it["empty"]),
            f"{it['seconds']:.2f}",
        )
    return table


def parse_seconds(option: str, text: str) -> float:
    from dask.utils import parse_timedelta

    refused = click.BadParameter(
        f"{text!r} is not a duration; write it like 55m", param_hint=option
    )
    try:
        seconds = float(parse_timedelta(text))
    # Dask raises an IndexError at nothing at all
    except (KeyError, ValueError, IndexError, OverflowError) as error:
        raise refused from error
    if not math.isfinite(seconds):
        raise refused
    return seconds
