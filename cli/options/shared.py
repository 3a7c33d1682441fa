"""Options that commands share, and the session in which a command runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from scrlm_dask.choices import CLUSTER_KINDS
from scrlm_dask.text import format_bytes

from ..terminal.console import Console, exit_on_errors
from ..terminal.signals import handle_signals
from .parsing import parse_size, parse_storage

_Command = Callable[..., Any]
_Decorator = Callable[[_Command], _Command]


def option_group(*options: _Decorator) -> _Decorator:
    """Return a decorator that adds options to a command, in this order."""

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def output_options(command: _Command) -> _Command:
    """Add --json, --log-json and -v; pass a `console`, and print errors as messages.

    The values of `cluster_options` are passed as one `cluster`, and that of `performance_option`
    is set on the console, wherever these stand among the decorators.
    """

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
    @click.option("--log-json", is_flag=True, help="Events on stderr, a line of JSON each.")
    @click.option("-v", "--verbose", is_flag=True, help="Say more on stderr, with tracebacks.")
    @wraps(command)
    def wrapped(as_json: bool, log_json: bool, verbose: bool, **values: Any) -> Any:
        console = Console(as_json=as_json, verbose=verbose, log_json=log_json)
        with exit_on_errors(console), handle_signals():
            if "cluster" in values:
                values["cluster"] = _take_cluster(values)
            console.performance_report = values.pop("report", None)
            if console.performance_report is not None:
                _check_report_path(console.performance_report, values["cluster"])
            return command(console=console, **values)

    return wrapped


def _take_cluster(values: dict[str, Any]) -> Any:
    """Remove the values of `cluster_options`; return them as `ClusterOptions`, checked."""
    from scrlm_dask.clusters.options import ClusterOptions, check_options
    from scrlm_dask.errors import InputError

    cluster = ClusterOptions(**{f.name: values.pop(f.name) for f in fields(ClusterOptions)})
    try:
        check_options(cluster, spell=lambda name: f"--{name.replace('_', '-')}")
    except InputError as error:
        raise click.UsageError(str(error)) from error
    return cluster


def take_fields(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values that are fields of a dataclass; without None, which is its default."""
    names = [field.name for field in fields(kind)]
    return {name: values[name] for name in names if values.get(name) is not None}


def chunk_option(default: str) -> _Decorator:
    """Return --chunk-size, with the default of a command."""
    return click.option(
        "--chunk-size",
        "chunk_bytes",
        default=default,
        show_default=True,
        callback=parse_size,
        help="Size of a chunk.",
    )


seed_option = click.option(
    "--seed", type=int, default=0, show_default=True, help="Same seed, same bits."
)
block_rows_option = click.option(
    "--block-rows", type=int, help="Rows handled at a time; default: the store's chunks."
)
margins_option = click.option(
    "--margins/--no-margins",
    default=True,
    show_default=True,
    help="Store how much farther the second-nearest center is, and the distance of outliers. "
    "Without, far centers are ruled out and labelling is faster.",
)
storage_options = click.option(
    "--storage-option",
    "storage",
    metavar="NAME=VALUE",
    multiple=True,
    callback=parse_storage,
    help="For URLs: an option of fsspec's file system, such as key=..., anon=true or "
    "client_kwargs.endpoint_url=http://...; or a JSON object. May be repeated.",
)
performance_option = click.option(
    "--performance-report",
    "report",
    metavar="FILE.html",
    help="Write Dask's report of tasks, transfers and profiles; it needs no network.",
)
cluster_options = option_group(
    click.option(
        "--scheduler", metavar="ADDRESS", help="Dask scheduler, e.g. tcp:// or tls://host:8786."
    ),
    click.option("--scheduler-file", metavar="FILE", help="File that a scheduler wrote."),
    click.option(
        "--cluster",
        type=click.Choice(CLUSTER_KINDS),
        help="Who starts the workers, for the length of the command; default: local.",
    ),
    click.option(
        "--cluster-config",
        metavar="FILE",
        help="YAML file for --cluster: arguments of its Dask class, or a DaskCluster manifest; "
        "see deploy/.",
    ),
    click.option(
        "--nworkers",
        "--workers",
        "nworkers",
        type=click.IntRange(min=0),
        help="Worker processes of a cluster that is started; 0 works in threads of this process.",
    ),
    click.option(
        "--min-workers", type=click.IntRange(min=1), help="Fewest workers, with --max-workers."
    ),
    click.option(
        "--max-workers",
        type=click.IntRange(min=1),
        help="As many workers as there is work for, up to so many.",
    ),
    click.option(
        "--nthreads",
        "--threads",
        "nthreads",
        type=click.IntRange(min=1),
        help="Threads of each worker.",
    ),
    click.option("--memory-limit", metavar="SIZE", help="Memory of each worker, e.g. 4GB."),
    click.option("--tls-ca-file", metavar="FILE", help="Whose certificates to trust (PEM)."),
    click.option("--tls-cert", metavar="FILE", help="Own certificate (PEM)."),
    click.option("--tls-key", metavar="FILE", help="Its key; default: in the same file."),
    click.option(
        "--require-tls",
        is_flag=True,
        help="Refuse a scheduler without TLS, but for one on this machine's loopback.",
    ),
)


def given_options(names: Collection[str]) -> list[str]:
    """Return the options among `names` that the command line contains, as they are spelt there."""
    context = click.get_current_context()
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in names
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]


def require_option(needed: str, *names: str) -> None:
    """Reject options of the command line that have no effect without `needed`."""
    given = given_options(names)
    if given:
        raise click.UsageError(
            f"{' and '.join(given)} without {needed} would do nothing; give {needed}, too, or "
            f"leave {'it' if len(given) == 1 else 'them'} out"
        )


@contextmanager
def session(console: Console, cluster: Any) -> Iterator[None]:
    """Connect to a cluster, print which, and show progress while the command runs."""
    from scrlm_dask.clusters.connect import connect

    console.on_cluster = cluster.nworkers != 0
    if not console.verbose:
        # when a run is interrupted, or its cluster does not start, asyncio logs a traceback for
        # each pending task of Dask
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    with connect(cluster, listener=console) as connection:
        if not console.verbose:
            # Dask logs each connection of a lost scheduler; importing Dask sets its log levels,
            # so this must come afterwards
            for name in ("distributed", "distributed.client"):
                logging.getLogger(name).setLevel(logging.CRITICAL)
        for line in connection_lines(connection):
            console.say(line)
        path = console.performance_report
        with nullcontext() if path is None else _record_tasks(path), console.progress():
            yield


def connection_lines(connection: Any) -> Iterator[str]:
    """Yield what to print about a connection."""
    parts = [f"using {connection.description}"]
    if connection.memory:
        memory = format_bytes(connection.memory)
        parts.append(f"{connection.nthreads} thread(s) and {memory} in all")
    if connection.dashboard:
        parts.append(f"dashboard {connection.dashboard}")
    yield "; ".join(parts)
    if connection.tunnel:
        yield f"to open the dashboard from elsewhere: {connection.tunnel}"


def _record_tasks(path: str) -> AbstractContextManager[Any]:
    """Record the tasks of the block in Dask's report at `path`."""
    from distributed import performance_report

    # inline: the report loads nothing from the network
    recording: AbstractContextManager[Any] = performance_report(filename=path, mode="inline")
    return recording


def _check_report_path(path: str, cluster: Any) -> None:
    if cluster.nworkers == 0:
        raise click.UsageError(
            "--performance-report is about a cluster; it does not go with --nworkers 0"
        )
    if not path.endswith(".html"):
        raise click.UsageError(f"the performance report {path} must end in .html")
    if not Path(path).absolute().parent.is_dir():
        raise click.UsageError(f"the folder of the performance report {path} does not exist")
