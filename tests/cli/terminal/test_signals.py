"""Signals and stalls, where the command is a part of a process that goes on."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMAND = """
import os, signal, sys, threading, time
from scrlm_cli.terminal import signals

signals._GRACE_SECONDS = 0.3
try:
    with signals.handle_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(9)
except signals.SignalInterrupt:
    print("stopped", flush=True)
"""
GOES_ON = "signals.raise_in_main(ValueError('late')); time.sleep(1); print('went on')"
# at its end Python waits for the thread of a pool
HANGS = "from concurrent.futures import ThreadPoolExecutor as P; P().submit(time.sleep, 30)"


@pytest.mark.parametrize(
    ("rest", "code", "said"), [(GOES_ON, 0, "stopped\nwent on\n"), (HANGS, 143, "stopped\n")]
)
def test_only_a_process_that_hangs_is_left(rest: str, code: int, said: str) -> None:
    facts = [sys.executable, "-c", COMMAND + rest]
    done = subprocess.run(facts, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (code, said), done.stderr
    left = "Error: interrupted by SIGTERM; left without waiting any longer\n"
    assert done.stderr == (left if code == 143 else "")
