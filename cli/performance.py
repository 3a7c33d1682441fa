"""Dask's own report of what the cluster did, as a file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any

import click


def performance_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--performance-report, kept by the command's console until its session; stands below
    `output_options` and `cluster_options`, whose results it takes."""

    @click.option(
        "--performance-report",
        "report",
        metavar="FILE.html",
        help="Write Dask's report of tasks, transfers and profiles; it needs no network.",
    )
    @wraps(command)
    def wrapped(report: str | None, **kwargs: Any) -> Any:
        if report is not None:
            _check(report, kwargs["cluster"])
            kwargs["console"].performance_report = report
        return command(**kwargs)

    return wrapped


def performance_report(path: str | None) -> AbstractContextManager[Any]:
    """What runs inside goes into the report at `path`, if one is wanted."""
    if path is None:
        return nullcontext()
    from distributed import performance_report as report

    # inline: nothing is loaded from elsewhere when it is looked at
    made: AbstractContextManager[Any] = report(filename=path, mode="inline")
    return made


def _check(path: str, cluster: Any) -> None:
    if cluster.nworkers == 0:
        raise click.UsageError(
            "--performance-report is about a cluster; it does not go with --nworkers 0"
        )
    if not path.endswith(".html"):
        raise click.UsageError(f"the performance report {path} must end in .html")
    if not Path(path).absolute().parent.is_dir():
        raise click.UsageError(f"the folder of the performance report {path} does not exist")
