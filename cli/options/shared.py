"""Options shared by commands, and the cluster session of a command."""

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
from scrlm_dask.text import format_bytes, plural

from ..terminal.console import Console, exit_on_errors
from ..terminal.signals import handle_signals
from .parsing import parse_origins, parse_size, parse_storage

_Command = Callable[..., Any]
_Decorator = Callable[[_Command], _Command]


def option_group(*options: _Decorator) -> _Decorator:
    """Return a decorator that adds the options to a command, in the given order."""

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def output_options(command: _Command) -> _Command:
    """Add --json, --log-json and -v; pass a `console` and print errors without tracebacks.

    The command receives the values of `cluster_options` as one argument, `cluster`. The value of
    `performance_option` becomes an attribute of the console. These three decorators may be applied
    in any order.
    """

    @click.option(
        "--json", "as_json", is_flag=True, help="Print the result as one JSON object on stdout."
    )
    @click.option("--log-json", is_flag=True, help="Log events to stderr as JSON lines.")
    @click.option("-v", "--verbose", is_flag=True, help="Print details and tracebacks to stderr.")
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
    """Remove the values of `cluster_options`; return them as validated `ClusterOptions`."""
    from scrlm_dask.clusters.options import ClusterOptions, check_options
    from scrlm_dask.errors import InputError

    cluster = ClusterOptions(**{f.name: values.pop(f.name) for f in fields(ClusterOptions)})
    try:
        check_options(cluster, spell=lambda name: f"--{name.replace('_', '-')}")
    except InputError as error:
        raise click.UsageError(str(error)) from error
    return cluster


def take_fields(kind: type, values: dict[str, Any]) -> dict[str, Any]:
    """Return the items of `values` whose names are fields of a dataclass, without None values."""
    names = [field.name for field in fields(kind)]
    return {name: values[name] for name in names if values.get(name) is not None}


def chunk_option(default: str) -> _Decorator:
    """Return the option --chunk-size with the given default."""
    return click.option(
        "--chunk-size",
        "chunk_bytes",
        metavar="SIZE",
        default=default,
        show_default=True,
        callback=parse_size,
        help="Target size of a chunk of the store.",
    )


seed_option = click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Random seed; the same seed gives the same result, bit by bit.",
)
block_rows_option = click.option(
    "--block-rows",
    type=int,
    help="Number of rows per block (default: whole chunks of the store, up to about 64 MB).",
)
margins_option = click.option(
    "--margins/--no-margins",
    default=True,
    show_default=True,
    help="Store margins (distance to the second-nearest minus nearest center) and the distances "
    "of outliers; --no-margins is faster.",
)
storage_options = click.option(
    "--storage-option",
    "storage",
    metavar="NAME=VALUE",
    multiple=True,
    callback=parse_storage,
    help="Option of the fsspec file system for URLs, such as key=..., anon=true or "
    "client_kwargs.endpoint_url=http://..., or a JSON object of options. May be repeated.",
)
allow_origin_option = click.option(
    "--allow-origin",
    "allow_origins",
    metavar="URL",
    multiple=True,
    callback=parse_origins,
    help="Scheme with bucket or host, such as s3://bucket, that recorded URLs may also have; "
    "--storage-option is sent to it. By default, a URL recorded in RUN is only opened if RUN has "
    "the same scheme and bucket. May be repeated.",
)
performance_option = click.option(
    "--performance-report",
    "report",
    metavar="FILE.html",
    help="Write Dask's performance report (tasks, transfers, profiles) as one HTML file.",
)
cluster_options = option_group(
    click.option(
        "--scheduler",
        metavar="ADDRESS",
        help="Address of a Dask scheduler, e.g. tcp://host:8786 or tls://host:8786.",
    ),
    click.option(
        "--scheduler-file", metavar="FILE", help="Scheduler file written by a Dask scheduler."
    ),
    click.option(
        "--cluster",
        type=click.Choice(CLUSTER_KINDS),
        help="Type of cluster to start for the duration of the command (default: local).",
    ),
    click.option(
        "--cluster-config",
        metavar="FILE",
        help="YAML file for --cluster: arguments of the Dask cluster class, or a DaskCluster "
        "manifest; see deploy/ for examples.",
    ),
    click.option(
        "--nworkers",
        "--workers",
        "nworkers",
        type=click.IntRange(min=0),
        help="Number of worker processes to start (default of a local cluster: from the number of "
        "cores); 0 uses threads of this process.",
    ),
    click.option(
        "--min-workers",
        type=click.IntRange(min=1),
        help="Minimum number of workers of an adaptive cluster; requires --max-workers.",
    ),
    click.option(
        "--max-workers",
        type=click.IntRange(min=1),
        help="Maximum number of workers; the cluster adapts their number to the work.",
    ),
    click.option(
        "--nthreads",
        "--threads",
        "nthreads",
        type=click.IntRange(min=1),
        help="Number of threads per worker.",
    ),
    click.option("--memory-limit", metavar="SIZE", help="Memory limit per worker, e.g. 4GB."),
    click.option("--tls-ca-file", metavar="FILE", help="Certificate of the trusted CA (PEM)."),
    click.option("--tls-cert", metavar="FILE", help="Certificate of this client (PEM)."),
    click.option(
        "--tls-key",
        metavar="FILE",
        help="Private key (PEM; default: read from the file of --tls-cert).",
    ),
    click.option(
        "--require-tls",
        is_flag=True,
        help="Reject a scheduler without TLS, except on the loopback interface.",
    ),
)


def given_options(names: Collection[str]) -> list[str]:
    """Return the options on the command line that set one of the parameters `names`."""
    context = click.get_current_context()
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in names
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]


def require_option(needed: str, *names: str) -> None:
    """Raise if the user gave an option for `names`; they have no effect without option `needed`."""
    given = given_options(names)
    if given:
        listed, has = " and ".join(given), "has" if len(given) == 1 else "have"
        raise click.UsageError(
            f"{listed} {has} no effect without {needed}; add {needed}, or remove {listed}"
        )


@contextmanager
def session(console: Console, cluster: Any) -> Iterator[None]:
    """Connect to a cluster, print a description of it, and show progress inside the context."""
    from scrlm_dask.clusters.connect import connect

    console.on_cluster = cluster.nworkers != 0
    if not console.verbose:
        # If a run is interrupted or its cluster does not start, asyncio logs a traceback for each
        # pending task of Dask.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    with connect(cluster, listener=console) as connection:
        if not console.verbose:
            # If the scheduler is lost, Dask logs each of its connections. Importing Dask sets the
            # log levels, so they are changed after the import.
            for name in ("distributed", "distributed.client"):
                logging.getLogger(name).setLevel(logging.CRITICAL)
        for line in connection_lines(connection):
            console.say(line)
        path = console.performance_report
        with nullcontext() if path is None else _record_tasks(path), console.progress():
            yield


def connection_lines(connection: Any) -> Iterator[str]:
    """Yield the lines that the command prints about its connection to a cluster."""
    parts = [f"using {connection.description}"]
    if connection.memory:
        memory = format_bytes(connection.memory)
        parts.append(f"{plural(connection.nthreads, 'thread')} and {memory} in total")
    if connection.dashboard:
        parts.append(f"dashboard {connection.dashboard}")
    yield "; ".join(parts)
    if connection.tunnel:
        yield f"to open the dashboard from another machine: {connection.tunnel}"


def _record_tasks(path: str) -> AbstractContextManager[Any]:
    """Return a context manager that writes Dask's performance report to `path` at its end."""
    from distributed import performance_report

    # mode="inline" embeds all scripts, so that the report can be read offline
    recording: AbstractContextManager[Any] = performance_report(filename=path, mode="inline")
    return recording


def _check_report_path(path: str, cluster: Any) -> None:
    if cluster.nworkers == 0:
        raise click.UsageError(
            "--performance-report requires a cluster and cannot be used with --nworkers 0"
        )
    if not path.endswith(".html"):
        raise click.UsageError(f"--performance-report must end in .html, got {path}")
    if not Path(path).absolute().parent.is_dir():
        raise click.UsageError(f"the directory of --performance-report {path} does not exist")
