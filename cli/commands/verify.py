from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from ..console import EXIT_INPUT_REFUSED, Console
from ..options import cluster_options, output_options, session, storage_options
from ..tables import facts, few


@click.command()
@click.argument("run", type=click.Path())
@click.option(
    "--blocks",
    type=click.IntRange(min=0),
    default=8,
    show_default=True,
    help="Label so many random blocks again.",
)
@click.option(
    "--losses",
    type=click.IntRange(min=0),
    default=4,
    show_default=True,
    help="Take the losses of so many random clusters again, by one read of the features.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Which blocks and clusters: the same seed, the same ones.",
)
@storage_options
@cluster_options
@output_options
def verify(
    console: Console, cluster: Any, storage: Any, run: str, blocks: int, losses: int, seed: int
) -> None:
    """Compute a random part of RUN again and compare it with what is stored.

    Ends with 3, and names the first row, if a label, a distance or a loss differs.
    """
    from scrlm_dask.pipeline import check_verify, verify_run

    check_verify(run, storage)
    with session(console, cluster):
        found = verify_run(
            run,
            blocks=blocks,
            losses=losses,
            seed=seed,
            storage_options=storage,
            listener=console,
        )
    content = {"run": run, **asdict(found), "ok": found.ok}
    shown = {name: _listed(v) if isinstance(v, tuple) else v for name, v in content.items()}
    console.result(content, facts("Computed again", shown))
    if not found.ok:
        row = found.first_wrong_row
        console.fail(
            f"{run} is not what its features give: {found.wrong_labels} labels, "
            f"{found.wrong_distances} distances and {len(found.wrong_clusters)} losses differ"
            f"{'' if row is None else f'; the first row is {row}'}"
        )
        raise SystemExit(EXIT_INPUT_REFUSED)


def _listed(numbers: tuple[int, ...]) -> str:
    """How many there are, and the first of them."""
    return f"{len(numbers)} (number {few(list(numbers))})" if numbers else "none"
