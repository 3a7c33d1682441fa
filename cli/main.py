"""The command group. Subcommands import what is heavy only when they run."""

from __future__ import annotations

from importlib.metadata import version

import click

from .commands.demo import demo
from .commands.evaluate import evaluate
from .commands.fit import fit
from .commands.ingest import ingest
from .commands.inspect import inspect
from .commands.kmeans import kmeans
from .commands.predict import predict
from .commands.synth import synth
from .commands.theory import theory


@click.group(
    "scrlm", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(version("scrlm-dask"), prog_name="scrlm")
def main() -> None:
    """Cluster large feature stores, with outliers, by robust loss minimization.

    Features lie in Zarr arrays and are streamed by Dask workers. Start with `scrlm demo`.
    """


for command in (demo, synth, ingest, inspect, fit, kmeans, predict, evaluate, theory):
    main.add_command(command)
