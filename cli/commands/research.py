"""Commands for research: compare, and paper with its experiments and guarantees."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ..options.fitting import preprocess_option
from ..options.parsing import parse_seconds, parse_size
from ..options.shared import cluster_options, output_options, session, storage_options
from ..tables.summaries import comparison_table, facts
from ..terminal.console import Console

if TYPE_CHECKING:
    from rich.console import Group

    from scrlm_dask.paper.compare import MethodScores


@click.command()
@click.argument("features", type=click.Path())
@click.option(
    "--truth",
    type=click.Path(),
    help="True labels, .npy or Zarr, -1 for outliers (default: labels in the features store).",
)
@click.option(
    "--methods",
    metavar="A,B,...",
    help="Methods to compare (default: the methods of the paper); an unknown name prints the list.",
)
@click.option("--clusters", type=int, required=True, help="Number of clusters.")
@click.option(
    "--outliers",
    is_flag=True,
    help="The data has outliers: methods that cannot find them get one more cluster for outliers.",
)
@click.option("--seeds", type=int, default=1, show_default=True, help="Number of seeds per method.")
@click.option(
    "--timeout",
    metavar="DURATION",
    default="10m",
    show_default=True,
    callback=parse_seconds,
    help="Maximum time per method and seed.",
)
@click.option(
    "--memory-limit",
    metavar="SIZE",
    callback=parse_size,
    help="Maximum memory per method, e.g. 4GB (default: memory of the machine).",
)
@click.option("--rows", type=int, help="Number of random rows to compare on (default: all).")
@preprocess_option("Transformation of the rows, the same for all methods.")
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
    timeout: float,
    memory_limit: int | None,
    rows: int | None,
    preprocess: Any,
) -> None:
    """Compare SCRLM with other clustering methods on FEATURES.

    Each method runs in its own process on the same rows, in memory, and is scored against the true
    labels. CPU and wall time are measured for the clustering only.
    """
    from scrlm_dask.paper.compare import PAPERS
    from scrlm_dask.paper.compare import compare as run_compare

    comparison = run_compare(
        features,
        truth,
        n_clusters=clusters,
        methods=PAPERS if methods is None else [name.strip() for name in methods.split(",")],
        outliers=outliers,
        seeds=seeds,
        timeout=timeout,
        memory_limit=memory_limit,
        n_rows=rows,
        preprocess=preprocess,
        storage_options=storage,
        listener=console,
    )
    content = {
        "rows": comparison.n_rows,
        "features": comparison.n_features,
        "preprocess": preprocess,
        "methods": [_summarize(method) for method in comparison.methods],
    }
    console.result(content, comparison_table(content))


def _summarize(scores: MethodScores) -> dict[str, Any]:
    """Return the results of a method for --json and the table."""
    from scrlm_dask.paper.compare import MEASURED

    spreads = {name: scores.spread(name) for name in MEASURED}
    attempts = [asdict(attempt) for attempt in scores.attempts]
    for attempt in attempts:
        attempt.update(attempt.pop("scores") or {})
        attempt.pop("matching", None)
    return {
        "method": scores.method,
        "clusters": scores.n_clusters,
        "reason": scores.reason,
        "mean": {name: spread and spread.mean for name, spread in spreads.items()},
        "deviation": {name: spread and spread.deviation for name, spread in spreads.items()},
        "seeds": attempts,
    }


# Copied from scrlm_dask.paper, so that --help does not import it.
_EXPERIMENTS = {
    "bounds": "Compare success regions with Corollary 7 (Figure 4).",
    "bandwidth": "Find the rho for which SCRLM succeeds (Figure 5).",
    "methods": "Compare accuracy with baselines at 50 % outliers (Figure 6).",
    "images": "Compare methods on real images (Figures 7-10, Tables 1-2).",
}
_SIZES = ("smoke", "small", "paper")
_FILES = """Writes results.csv, results.parquet (requires scrlm-dask[formats]), summary.json,
figures (require scrlm-dask[plot]) and one file per finished cell of the grid to DIR. Run the same
command again to resume an interrupted experiment."""


@click.group()
def paper() -> None:
    """Run experiments of the paper or compute its guarantees."""


def _parse_data(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str | None] | None:
    """Parse texts NAME=PATH or NAME; without a path (None), the data set is downloaded."""
    data: dict[str, str | None] = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not name or (equals and not path):
            raise click.BadParameter(f"must be NAME=PATH or NAME, got {text!r}")
        if name in data:
            raise click.BadParameter(f"{name} is given twice")
        data[name] = path or None
    return data or None


def _experiment_options(command: Callable[..., Any], with_data: bool) -> Callable[..., Any]:
    """Add the options of an experiment to a command."""
    command = storage_options(cluster_options(output_options(command)))
    if with_data:
        command = click.option(
            "--data",
            metavar="NAME=PATH",
            multiple=True,
            callback=_parse_data,
            help="Name and path of a features store with labels, for the experiment 'images'. The "
            "names mnist and fashion need no path: these data sets are downloaded, and are the "
            "default. May be repeated.",
        )(command)
    command = click.option(
        "--size",
        type=click.Choice(_SIZES),
        default="small",
        show_default=True,
        help="Size of the experiment; smoke: a quick test, small: minutes on two cores, paper: the "
        "grids of the paper.",
    )(command)
    return click.option(
        "--out", metavar="DIR", required=True, help="Directory to write or to resume from."
    )(command)


def _experiment_command(name: str, text: str) -> click.Command:
    """Return the command that runs one experiment."""

    def command(console: Console, **options: Any) -> None:
        _run_experiment(console, name, **options)

    options = _experiment_options(command, with_data=name == "images")
    return click.command(name, help=f"{text}\n\n{_FILES}")(options)


def _run_experiment(
    console: Console,
    name: str,
    cluster: Any,
    storage: Any,
    out: str,
    size: Any,
    data: dict[str, str | None] | None = None,
) -> None:
    from scrlm_dask.paper.runner import run_experiment

    console.interrupted = "finished cells were saved; run the same command again to resume"
    with session(console, cluster):
        ran = run_experiment(
            name, out, size=size, data=data, storage_options=storage, listener=console
        )
    console.result({"out": ran.out, **ran.summary}, _experiment_tables(ran))


def _experiment_alias(console: Console, name: str, data: Any, **options: Any) -> None:
    if data and name != "images":
        raise click.UsageError(
            f"--data is supported only by the experiment 'images', got experiment '{name}'; "
            "remove --data"
        )
    console.say(f"scrlm experiment is deprecated; use scrlm paper {name}")
    _run_experiment(console, name, data=data, **options)


def _experiment_tables(ran: Any) -> Group:
    from rich.console import Group

    done = {
        "cells": f"{ran.n_cells:,} ({ran.n_kept:,} from an earlier run)",
        "seconds": ran.summary["seconds"],
        "out": ran.out,
        "files": ", ".join(ran.files),
    }
    return Group(*(_experiment_table(table) for table in ran.tables), facts("Experiment", done))


def _experiment_table(content: Any) -> Any:
    from rich.table import Table

    table = Table(title=content.title, title_justify="left")
    for number, name in enumerate(content.header):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for line in content.lines:
        table.add_row(*line)
    return table


@paper.command()
@click.option("--rows", type=int, required=True, help="Number of rows N.")
@click.option("--features", type=int, required=True, help="Number of features p.")
@click.option("--clusters", type=int, required=True, help="Number of clusters m.")
@click.option(
    "--candidates",
    type=int,
    help="Number of candidates n (default: the number that the theory requires).",
)
@click.option(
    "--min-weight",
    type=float,
    default=0.8,
    show_default=True,
    help="Smallest weight of a cluster, multiplied by the number of clusters m.",
)
@click.option(
    "--delta", type=float, default=0.01, show_default=True, help="Accepted probability of failure."
)
@output_options
def theory(
    console: Console,
    rows: int,
    features: int,
    clusters: int,
    candidates: int | None,
    min_weight: float,
    delta: float,
) -> None:
    """Compute the guarantees of the paper.

    Prints the success probability of Theorem 1 for the given numbers of rows, features, clusters
    and candidates, and the numbers that Corollary 7 requires for the given probability of failure.
    """
    if click.get_current_context().command.hidden:
        console.say("scrlm theory is deprecated; use scrlm paper theory")
    from scrlm_dask.kernels.scrlm.theory import required_sizes, success_probability

    need = required_sizes(clusters, delta, min_weight, rows)
    if candidates is None:
        candidates = min(need.n_candidates, rows)
    content = {
        "rows": rows,
        "features": features,
        "clusters": clusters,
        "candidates": candidates,
        "success_probability_at_least": success_probability(
            rows, features, clusters, candidates, min_weight
        ),
        "required_candidates": need.n_candidates,
        "required_rows": need.n_rows,
        "required_features": need.n_features,
    }
    console.result(content, facts("Theory", content))
    if features < need.n_features:
        console.say(
            "the bound on the number of features is loose (by a factor of over 64 in the paper's "
            "experiments); fewer features are usually enough"
        )


for _name, _text in _EXPERIMENTS.items():
    paper.add_command(_experiment_command(_name, _text))

# Deprecated names; they will be removed in the next release.
theory_alias = copy(theory)
theory_alias.hidden = True
experiment_alias = click.command(
    "experiment",
    hidden=True,
    help=f"Run an experiment of the paper (deprecated: use scrlm paper).\n\n{_FILES}",
)(
    click.argument("name", type=click.Choice(tuple(_EXPERIMENTS)), metavar="NAME")(
        _experiment_options(_experiment_alias, with_data=True)
    )
)
