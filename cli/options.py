"""Options that subcommands share, and how a command is run with them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import click

from .console import Console, failures
from .storage import parse_storage_options

_Command = Callable[..., Any]


def output_options(command: _Command) -> _Command:
    """--json and -v; the command gets a `console`, and errors end as messages."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
    @click.option("-v", "--verbose", is_flag=True, help="Say more on stderr, with tracebacks.")
    @wraps(command)
    def wrapped(as_json: bool, verbose: bool, **kwargs: Any) -> Any:
        console = Console(as_json=as_json, verbose=verbose)
        with failures(console):
            return command(console=console, **kwargs)

    return wrapped


def cluster_options(command: _Command) -> _Command:
    """Where to run; the command gets `cluster`, the options as the package takes them."""

    @click.option("--scheduler", metavar="ADDRESS", help="Dask scheduler, e.g. tcp://host:8786.")
    @click.option("--scheduler-file", metavar="FILE", help="File that a scheduler wrote.")
    @click.option(
        "--nworkers",
        type=click.IntRange(min=0),
        help="Worker processes of a local cluster; 0 works in threads of this process.",
    )
    @click.option("--nthreads", type=click.IntRange(min=1), help="Threads of each worker.")
    @click.option("--memory-limit", metavar="SIZE", help="Memory of each worker, e.g. 4GB.")
    @wraps(command)
    def wrapped(
        scheduler: str | None,
        scheduler_file: str | None,
        nworkers: int | None,
        nthreads: int | None,
        memory_limit: str | None,
        **kwargs: Any,
    ) -> Any:
        local_only = nworkers is not None or nthreads is not None or memory_limit is not None
        if (scheduler or scheduler_file) and local_only:
            raise click.UsageError(
                "--nworkers, --nthreads and --memory-limit start a local cluster; "
                "they do not go with --scheduler or --scheduler-file"
            )
        if scheduler and scheduler_file:
            raise click.UsageError("give --scheduler or --scheduler-file, not both")
        if nworkers == 0 and memory_limit is not None:
            raise click.UsageError("--memory-limit needs workers; it does not go with --nworkers 0")
        from scrlm_dask.cluster import ClusterOptions

        options = ClusterOptions(scheduler, scheduler_file, nworkers, nthreads, memory_limit)
        return command(cluster=options, **kwargs)

    return wrapped


def storage_options(command: _Command) -> _Command:
    """--storage-option; the command gets `storage`, the options as one mapping."""

    @click.option(
        "--storage-option",
        "storage",
        metavar="NAME=VALUE",
        multiple=True,
        callback=_parsed_storage,
        help="For URLs: an option of fsspec's file system, such as key=..., anon=true or "
        "client_kwargs.endpoint_url=http://...; or a JSON object. May be repeated.",
    )
    @wraps(command)
    def wrapped(**kwargs: Any) -> Any:
        return command(**kwargs)

    return wrapped


def _parsed_storage(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, Any] | None:
    return parse_storage_options(texts) if texts else None


@contextmanager
def session(console: Console, cluster: Any) -> Iterator[None]:
    """Connect, say to what, and show progress while the command works."""
    from scrlm_dask.cluster import connect

    if not console.verbose:
        # when a run is cut short, asyncio logs each of Dask's pending tasks with a traceback
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    with connect(cluster) as connection:
        where = f"; dashboard {connection.dashboard}" if connection.dashboard else ""
        console.say(f"using {connection.description}{where}")
        with console.progress():
            yield
