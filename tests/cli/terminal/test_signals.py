"""Signals and stalls if the process outlives the command."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

COMMAND = """
import os, signal, sys, threading, time
from scrlm_cli.terminal import signals

signals._GRACE_SECONDS = 3.0  # the process hangs before they are over, also on a busy machine
try:
    with signals.handle_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
except signals.SignalInterrupt:
    print("stopped", flush=True)
"""
CONTINUES = "signals.raise_in_main(ValueError('late')); time.sleep(4); print('continued')"
# At exit Python waits for the threads of a pool.
HANGS = "from concurrent.futures import ThreadPoolExecutor as P; P().submit(time.sleep, 60)"


@pytest.mark.parametrize(
    ("rest", "code", "stdout"),
    [(CONTINUES, 0, "stopped\ncontinued\n"), (HANGS, 143, "stopped\n")],
)
def test_only_a_hanging_process_is_ended(rest: str, code: int, stdout: str) -> None:
    args = [sys.executable, "-c", COMMAND + rest]
    done = subprocess.run(args, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (code, stdout), done.stderr
    expected = r"Error: .*\bSIGTERM\b.*\n" if code == 143 else ""
    assert re.fullmatch(expected, done.stderr)
