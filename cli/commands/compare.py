from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ..comparing import comparison_table
from ..console import Console
from ..lloyd import parse_seconds
from ..options import output_options, storage_options
from ..scales import preprocess_option
from ..sizes import parse_size

if TYPE_CHECKING:
    from scrlm_dask.rivals.comparing import Compared, Comparison


@click.command()
@click.argument("features", type=click.Path())
@click.option(
    "--truth",
    type=click.Path(),
    help="True labels, .npy or Zarr, -1 for outliers; default: those in the features store.",
)
@click.option(
    "--methods",
    metavar="A,B,...",
    help="Which ones; default: the paper's. docs/peers.md has all of them.",
)
@click.option("--clusters", type=int, required=True, help="How many clusters to ask for.")
@click.option(
    "--outliers",
    is_flag=True,
    help="There are outliers: methods that know none get a cluster more, for them.",
)
@click.option(
    "--seeds", type=int, default=1, show_default=True, help="Run each method with so many seeds."
)
@click.option(
    "--timeout",
    metavar="DURATION",
    default="10m",
    show_default=True,
    help="End a method that takes longer.",
)
@click.option(
    "--memory-limit",
    metavar="SIZE",
    help="End a method that holds more, e.g. 4GB; default: what the machine has.",
)
@click.option("--rows", type=int, help="Compare on a random sample of so many rows.")
@preprocess_option("Map applied to rows first, the same for all methods.")
@storage_options
@output_options
def compare(
    console: Console,
    storage: Any,
    features: str,
    truth: str | None,
    methods: str | None,
    clusters: int,
    outliers: bool,
    seeds: int,
    timeout: str,
    memory_limit: str | None,
    rows: int | None,
    preprocess: Any,
) -> None:
    """Cluster FEATURES by several methods, each in a process of its own, and score them.

    All get the same rows, in memory. CPU and wall seconds are those of the clustering alone.
    """
    from scrlm_dask.rivals.comparing import PAPERS
    from scrlm_dask.rivals.comparing import compare as run_compare

    found = run_compare(
        features,
        truth,
        n_clusters=clusters,
        methods=PAPERS if methods is None else [name.strip() for name in methods.split(",")],
        outliers=outliers,
        seeds=seeds,
        timeout=parse_seconds("--timeout", timeout),
        memory_limit=None if memory_limit is None else parse_size("--memory-limit", memory_limit),
        n_rows=rows,
        preprocess=preprocess,
        storage_options=storage,
        listener=console,
    )
    content = _numbers(found)
    console.result(content, comparison_table(content))


def _numbers(found: Comparison) -> dict[str, Any]:
    """The comparison as names and numbers."""
    return {
        "rows": found.n_rows,
        "features": found.n_features,
        "preprocess": found.preprocess,
        "methods": [_method(method) for method in found.methods],
    }


def _method(found: Compared) -> dict[str, Any]:
    from scrlm_dask.rivals.comparing import MEASURED

    spreads = {name: found.spread(name) for name in MEASURED}
    attempts = [asdict(attempt) for attempt in found.attempts]
    for attempt in attempts:
        attempt.update(attempt.pop("scores") or {})
        attempt.pop("matching", None)
    return {
        "method": found.method,
        "clusters": found.n_clusters,
        "reason": found.reason,
        "mean": {name: spread and spread.mean for name, spread in spreads.items()},
        "deviation": {name: spread and spread.deviation for name, spread in spreads.items()},
        "seeds": attempts,
    }
