"""Progress: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest
from scrlm_cli.terminal import progress

from scrlm_dask.monitoring.run_state import PhaseState


@pytest.mark.slow
def test_a_terminal_gets_a_bar_with_rate_and_time_left(features, tmp_path):
    """stderr is a terminal and stdout a pipe: the bar must not reach the JSON."""
    args = (
        "fit",
        features,
        "--rho",
        0.5,
        "--out",
        tmp_path / "run",
        "--block-rows",
        50,
        "--nworkers",
        0,
    )
    reader, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    with subprocess.Popen(
        [str(Path(sys.executable).parent / "scrlm"), *map(str, args), "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm-256color"},
    ) as process:
        os.close(terminal)
        shown = _read_terminal(reader)
        assert process.stdout is not None
        stdout = process.stdout.read().decode()
    assert process.returncode == 0, shown
    assert "\x1b[" in shown
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    bar = re.compile(r"loss [━╸╺]+ +(\d+)% ([\d,]+ rows/s) +\d:\d\d:\d\d eta (\S+)")
    frames = bar.findall(text)
    assert any(share == "100" for share, _, _ in frames)
    # and on the way there, not only at the end
    assert any(int(share) < 100 and re.match(r"\d:\d\d:\d\d", eta) for share, _, eta in frames)
    assert "rows in" not in text  # the lines of the log would be said twice
    assert stdout.startswith("{")
    assert stdout.count("\n") == 1


def _read_terminal(reader: int) -> str:
    pieces = []
    while True:
        try:
            piece = os.read(reader, 65536)
        except OSError:  # how Linux says that the other side is closed
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(reader)
    return b"".join(pieces).decode()


def test_a_long_phase_says_how_far_it_is(invoke, features, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "_LOG_SECONDS", 0.0)
    args = ("--out", tmp_path / "run", "--block-rows", 500, "--nthreads", 1)
    stderr = invoke("fit", features, "--rho", 0.5, *args).ok().stderr
    lines = [line for line in stderr.splitlines() if line.startswith("loss: ") and "%" in line]
    shares = [int(re.match(r"loss: (\d+)%, [\d,]+ rows/s, about \d+ s left$", x)[1]) for x in lines]
    assert shares == [12, 25, 38, 50, 62, 75, 88]


def test_lines_and_bars_are_not_drawn_all_the_time() -> None:
    timer = progress.RefreshTimer(100.0)
    assert not timer.line_is_due(109.9)
    assert timer.line_is_due(110.0)
    assert not timer.line_is_due(119.9)
    assert timer.line_is_due(120.0)
    # a bar soon after the start, and then whenever the time has doubled
    drawn = [i for i in range(1, 101) if timer.redraw_is_due(100.0 + i / 16)]
    assert drawn == [1, 2, 4, 8, 16, 32, 64]


def test_share_rate_and_time_left() -> None:
    phase = PhaseState("loss")
    phase.start(blocks=8, rows=8000, now=50.0)
    assert progress.progress_line(phase, 50.0) == "0%, 0 rows/s, about 0 s left"
    phase.add_block(2000)
    assert progress.progress_line(phase, 51.0) == "25%, 2,000 rows/s, about 3 s left"


def worker(memory: float, limit: float | None, threads: int = 2) -> dict[str, Any]:
    return {"metrics": {"memory": memory}, "memory_limit": limit, "nthreads": threads}


def test_the_fullest_worker_is_named() -> None:
    assert progress.workers_line([]) == "no workers"
    shown = progress.workers_line([worker(5e8, 4e9), worker(2e9, 3e9), worker(1e9, 9e9)])
    assert shown == "3 workers, 6 threads, memory of the fullest 2.0 GB of 3.0 GB"
    shown = progress.workers_line([worker(5e8, None, 1), {**worker(0, None, 1), "metrics": {}}])
    assert shown == "2 workers, 2 threads, memory of the fullest 500.0 MB"
