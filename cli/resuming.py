"""--resume: all that a command needs to know stands in the record of the run that was stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from .options import given_options

if TYPE_CHECKING:
    from scrlm_dask.pipeline import Fit
    from scrlm_dask.pipeline.resuming import Asked

# where and how it runs may be another this time, what it does may not
_FREE = {
    *("resume", "storage", "as_json", "log_json", "verbose", "report"),
    *("stall_timeout", "wait_workers", "kind"),  # the latter is --cluster
}


def resume_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--resume",
        metavar="RUN",
        help="Go on with a run that was stopped, with the options that it was given.",
    )(command)


def check_usage(resume: str | None, features: str | None, out: str | None) -> None:
    """Either a run to go on with, and nothing that it knows itself, or features and an output."""
    if resume is None:
        for missing, value in (("argument 'FEATURES'", features), ("option '--out'", out)):
            if value is None:
                raise click.UsageError(f"Missing {missing}; give it, or --resume RUN to go on")
        return
    from scrlm_dask.cluster.options import ClusterOptions

    names = {p.name for p in click.get_current_context().command.params if p.name}
    given = given_options(names - _FREE - {field.name for field in fields(ClusterOptions)})
    if given:
        raise click.UsageError(
            f"--resume goes on with what the run was given; leave {', '.join(given)} out"
        )


def read_run(resume: str, method: str, storage: Any) -> Asked | Fit:
    """What the run was asked; or, if it is complete, what it found."""
    from scrlm_dask.pipeline.results import finished_fit
    from scrlm_dask.pipeline.resuming import read_asked

    asked = read_asked(resume, method, storage)
    return finished_fit(resume, storage) if asked is None else asked
