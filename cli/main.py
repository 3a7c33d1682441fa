"""The command group. Subcommands import what is heavy only when they run."""

from __future__ import annotations

from importlib.metadata import version

import click

from .commands.compare import compare
from .commands.cut import cut
from .commands.demo import demo
from .commands.embed import embed
from .commands.evaluate import evaluate
from .commands.experiment import experiment
from .commands.export import export
from .commands.fit import fit
from .commands.ingest import ingest
from .commands.inspect import inspect
from .commands.kmeans import kmeans
from .commands.plan import plan
from .commands.predict import predict
from .commands.report import report
from .commands.rho import rho
from .commands.synth import synth
from .commands.theory import theory
from .commands.verify import verify


@click.group(
    "scrlm", context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(version("scrlm-dask"), prog_name="scrlm")
def main() -> None:
    """Cluster large feature stores, with outliers, by robust loss minimization.

    Features lie in Zarr arrays and are streamed by Dask workers. Start with `scrlm demo`.
    """


_WORK = (demo, synth, ingest, embed, inspect, rho, plan, fit, kmeans, predict)
_RESULTS = (cut, evaluate, compare, verify, report, export, theory, experiment)
for command in (*_WORK, *_RESULTS):
    main.add_command(command)
