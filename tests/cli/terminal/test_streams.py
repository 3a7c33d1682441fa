"""Standard streams that are closed or full: no traceback, and the exit code of the command."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRLM = str(Path(sys.executable).parent / "scrlm")
FULL = "No space left on device"


def redirected(redirection: str, *args: Any) -> tuple[int, str, str]:
    """Run `scrlm ARGS` in a shell with a redirection; return its exit code, stdout and stderr."""
    words = shlex.join([SCRLM, *map(str, args)])
    done = subprocess.run(
        ["bash", "-c", f"{words} {redirection}; exit ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        timeout=120,
        # Only buffered text is written again when the interpreter exits.
        env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command", [("--help",), ("fit", "--help"), ("--version",)])
def test_full_stdout_is_an_error(command: tuple[str, ...]) -> None:
    code, _, message = redirected(">/dev/full", *command)
    assert code == 1
    assert FULL in message
    assert message.count("\n") == 1


@pytest.mark.parametrize("redirection", [">&-", ">&- 2>&- <&-"])
def test_closed_stdout_discards_the_output(redirection: str) -> None:
    assert redirected(redirection, "--help") == (0, "", "")


def test_closed_pipe_needs_no_message() -> None:
    code, _, message = redirected("| head -c0", "--help")
    assert (code, message) in {(0, ""), (1, "")}  # `head` may end before or after the write


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full"])
def test_lost_stderr_keeps_the_code_of_usage_errors(redirection: str) -> None:
    assert redirected(redirection, "fit") == (2, "", "")


@pytest.mark.slow
@pytest.mark.parametrize("output", [("--json",), ()])
def test_result_on_a_full_or_closed_stdout(features: Path, output: tuple[str, ...]) -> None:
    inspect = ("inspect", features, *output)
    code, _, message = redirected(">/dev/full", *inspect)
    assert (code, FULL in message) == (1, True)
    assert redirected(">&-", *inspect) == (0, "", "")
    assert redirected("| head -c0", *inspect)[::2] == (1, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("redirection", "workers"),
    [("2>&-", 1), ("2>/dev/full", 0), ("2> >(head -c0)", 0), ("<&- >&- 2>&-", 1)],
)
def test_lost_messages_do_not_end_a_fit(
    features: Path, tmp_path: Path, redirection: str, workers: int
) -> None:
    run = tmp_path / "run"
    fit = ("fit", features, "--rho", 0.5, "--out", run, "--nworkers", workers, "--json")
    code, shown, _ = redirected(redirection, *fit)
    assert code == 0
    assert (run / "run.json").exists()
    assert ('"method"' in shown) == (">&-" not in redirection.split())


@pytest.mark.slow
def test_fit_is_complete_if_its_result_cannot_be_printed(features: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    fit = ("fit", features, "--rho", 0.5, "--out", run, "--nworkers", 0)
    code, _, message = redirected(">/dev/full", *fit)
    assert (code, FULL in message) == (1, True)
    assert redirected("", "evaluate", run, "--nworkers", 0)[0] == 0
