"""Options of the scale that clusters are looked for on, which several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

KINDS = ("standardize", "center", "scale", "none", "l2")

clusters_option = click.option(
    "--clusters", type=int, help="At most so many; without it, as many as are there."
)
neighbors_option = click.option(
    "--min-neighbors",
    type=int,
    default=1,
    show_default=True,
    help="Other rows a center needs inside its radius.",
)
depth_option = click.option(
    "--F", "loss_depth", type=float, default=2.5, show_default=True, help="Depth of the loss."
)


def preprocess_option(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """--preprocess; the help says what it does to this command."""
    return click.option(
        "--preprocess", type=click.Choice(KINDS), default=KINDS[0], show_default=True, help=what
    )
