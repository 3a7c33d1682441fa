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
from .parsing import parse_storage_options

_Command = Callable[..., Any]


def output_options(command: _Command) -> _Command:
    """Add --json, --log-json and -v; pass a `console`, and print errors as messages."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
    @click.option("--log-json", is_flag=True, help="Events on stderr, a line of JSON each.")
    @click.option("-v", "--verbose", is_flag=True, help="Say more on stderr, with tracebacks.")
    @wraps(command)
    def wrapped(as_json: bool, log_json: bool, verbose: bool, **kwargs: Any) -> Any:
        console = Console(as_json=as_json, verbose=verbose, log_json=log_json)
        with exit_on_errors(console), handle_signals():
            return command(console=console, **kwargs)

    return wrapped


def label_options(command: _Command) -> _Command:
    """Add --margins, for commands that write labels."""
    return click.option(
        "--margins/--no-margins",
        default=True,
        show_default=True,
        help="Store how much farther the second-nearest center is, and the distance of outliers. "
        "Without, far centers are ruled out and labelling is faster.",
    )(command)


def prune_option(command: _Command) -> _Command:
    """Add --prune; pass the number of axes, or "auto"."""
    return click.option(
        "--prune",
        metavar="auto|AXES",
        default="auto",
        show_default=True,
        callback=_parse_axes,
        help="Axes by which pairs that are far apart are ruled out, exactly; 0 for none. "
        "By default each block finds out what is cheapest.",
    )(command)


def _parse_axes(context: click.Context, parameter: click.Parameter, text: str) -> int | str:
    if text != "auto" and not text.isdecimal():
        raise click.BadParameter(f"{text!r} is neither auto nor a number of axes")
    return text if text == "auto" else int(text)


def cluster_options(command: _Command) -> _Command:
    """Add the options that choose a cluster; pass them as `cluster`."""

    @click.option(
        "--scheduler", metavar="ADDRESS", help="Dask scheduler, e.g. tcp:// or tls://host:8786."
    )
    @click.option("--scheduler-file", metavar="FILE", help="File that a scheduler wrote.")
    @click.option(
        "--cluster",
        "kind",
        type=click.Choice(CLUSTER_KINDS),
        help="Who starts the workers, for the length of the command; default: local.",
    )
    @click.option(
        "--cluster-config",
        metavar="FILE",
        help="YAML file for --cluster: arguments of its Dask class, or a DaskCluster manifest; "
        "see deploy/.",
    )
    @click.option(
        "--nworkers",
        "--workers",
        "nworkers",
        type=click.IntRange(min=0),
        help="Worker processes of a cluster that is started; 0 works in threads of this process.",
    )
    @click.option(
        "--min-workers", type=click.IntRange(min=1), help="Fewest workers, with --max-workers."
    )
    @click.option(
        "--max-workers",
        type=click.IntRange(min=1),
        help="As many workers as there is work for, up to so many.",
    )
    @click.option(
        "--nthreads",
        "--threads",
        "nthreads",
        type=click.IntRange(min=1),
        help="Threads of each worker.",
    )
    @click.option("--memory-limit", metavar="SIZE", help="Memory of each worker, e.g. 4GB.")
    @click.option("--tls-ca-file", metavar="FILE", help="Whose certificates to trust (PEM).")
    @click.option("--tls-cert", metavar="FILE", help="Own certificate (PEM).")
    @click.option("--tls-key", metavar="FILE", help="Its key; default: in the same file.")
    @click.option(
        "--require-tls",
        is_flag=True,
        help="Refuse a scheduler without TLS, but for one on this machine's loopback.",
    )
    @wraps(command)
    def wrapped(kind: str | None, **kwargs: Any) -> Any:
        from scrlm_dask.clusters.options import ClusterOptions, check_options
        from scrlm_dask.errors import InputError

        names = [field.name for field in fields(ClusterOptions) if field.name != "cluster"]
        options = ClusterOptions(cluster=kind, **{name: kwargs.pop(name) for name in names})
        try:
            check_options(options, spell=lambda name: f"--{name.replace('_', '-')}")
        except InputError as error:
            raise click.UsageError(str(error)) from error
        return command(cluster=options, **kwargs)

    return wrapped


def storage_options(command: _Command) -> _Command:
    """Add --storage-option; pass the options as the mapping `storage`."""
    return click.option(
        "--storage-option",
        "storage",
        metavar="NAME=VALUE",
        multiple=True,
        callback=_parse_storage,
        help="For URLs: an option of fsspec's file system, such as key=..., anon=true or "
        "client_kwargs.endpoint_url=http://...; or a JSON object. May be repeated.",
    )(command)


def _parse_storage(
    context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> dict[str, Any] | None:
    return parse_storage_options(texts) if texts else None


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
    # when a run is interrupted, or its cluster does not start, asyncio logs a traceback for each
    # pending task of Dask
    _silence(console, "asyncio")
    with connect(cluster, listener=console) as connection:
        # Dask logs each connection of a lost scheduler; importing Dask sets its log levels, so
        # this must come afterwards
        _silence(console, "distributed", "distributed.client")
        for line in connection_lines(connection):
            console.say(line)
        with performance_report(console.performance_report), console.progress():
            yield


def _silence(console: Console, *names: str) -> None:
    if not console.verbose:
        for name in names:
            logging.getLogger(name).setLevel(logging.CRITICAL)


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


def performance_option(command: _Command) -> _Command:
    """Add --performance-report; set its path on the console for `session`.

    Goes below `output_options` and `cluster_options`, whose results it takes.
    """

    @click.option(
        "--performance-report",
        "report",
        metavar="FILE.html",
        help="Write Dask's report of tasks, transfers and profiles; it needs no network.",
    )
    @wraps(command)
    def wrapped(report: str | None, **kwargs: Any) -> Any:
        if report is not None:
            _check_report_path(report, kwargs["cluster"])
            kwargs["console"].performance_report = report
        return command(**kwargs)

    return wrapped


def performance_report(path: str | None) -> AbstractContextManager[Any]:
    """Record the tasks of the block in Dask's report at `path`, if given."""
    if path is None:
        return nullcontext()
    from distributed import performance_report as report

    # inline: the report loads nothing from the network
    recording: AbstractContextManager[Any] = report(filename=path, mode="inline")
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
