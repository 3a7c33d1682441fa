"""The command group `scrlm`. A command imports large packages only when it is called."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import click

from scrlm_dask.text import printable

from .commands.clustering import fit, kmeans, predict
from .commands.data import embed, ingest, inspect, synth
from .commands.demo import demo
from .commands.research import compare, experiment_alias, paper, theory_alias
from .commands.results import cut, evaluate, export, report, verify
from .commands.tuning import plan, rho
from .terminal.streams import exit_on_write_errors, prepare_streams


class PrintableGroup(click.Group):
    """A group that escapes control characters in messages, which may contain file names.

    Streams that are closed or full cause no traceback.
    """

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Prepare the standard streams and parse the arguments, or print the help."""
        prepare_streams()
        with exit_on_write_errors():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; escape the message of an error in its usage."""
        try:
            with exit_on_write_errors():
                return super().invoke(ctx)
        except click.ClickException as error:
            error.message = printable(error.message)
            raise


@click.group(
    "scrlm",
    cls=PrintableGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(version("scrlm-dask"), prog_name="scrlm")
def main() -> None:
    """Cluster large feature stores and detect outliers.

    The method is SCRLM: scalable clustering by robust loss minimization. Features are stored in
    Zarr arrays and streamed by Dask workers. Start with `scrlm demo`.
    """


_WORK = (demo, synth, ingest, embed, inspect, rho, plan, fit, kmeans, predict)
_RESULTS = (cut, evaluate, compare, verify, report, export, paper)
_DEPRECATED = (theory_alias, experiment_alias)
for command in (*_WORK, *_RESULTS, *_DEPRECATED):
    main.add_command(command)
