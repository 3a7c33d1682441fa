"""The command group: version, commands and help."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from scrlm_cli.main import main

DASK = str(Path(sys.executable).parent / "dask")


def test_version(scrlm):
    done = scrlm("--version").ok()
    assert re.fullmatch(r"scrlm, version \d+\.\d+\.\d+\S*\n", done.stdout)


@pytest.mark.slow
def test_command_is_a_plugin_of_dask(scrlm):
    shown = scrlm("scrlm", "--help", program=(DASK,)).ok().stdout
    for command in ("synth", "fit", "evaluate", "predict", "paper", "demo"):
        assert re.search(rf"^  {command} ", shown, re.MULTILINE)
    numbers = ("--rows", 4000, "--features", 5000, "--clusters", 9, "--json")
    same = scrlm("paper", "theory", *numbers).json()
    assert scrlm("scrlm", "paper", "theory", *numbers, program=(DASK,)).json() == same


@pytest.mark.parametrize("command", main.commands)
def test_help_explains_the_command_and_every_option(invoke, command):
    shown = invoke(command, "--help", threads=False).ok().stdout
    assert shown == invoke(command, "-h", threads=False).ok().stdout
    assert main.commands[command].help
    for option in main.commands[command].params:
        if isinstance(option, click.Option):
            assert option.opts[-1] in shown
            assert option.help, f"{command} {option.opts[-1]} is not explained"


def test_command_starts_without_heavy_imports():
    code = (
        "import sys, scrlm_cli.main; "
        "heavy = {'numpy', 'dask', 'distributed', 'zarr', 'numba', 'sklearn', 'rich'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_every_command_is_registered() -> None:
    data = {"synth", "ingest", "embed", "inspect"}
    clustering = {"demo", "rho", "plan", "fit", "kmeans", "predict"}
    results = {"cut", "evaluate", "compare", "verify", "report", "export", "paper"}
    shown = {name for name, command in main.commands.items() if not command.hidden}
    assert shown == data | clustering | results
