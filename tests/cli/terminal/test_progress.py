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
def test_terminal_shows_a_bar_with_rate_and_time_left(features, tmp_path):
    """stderr is a terminal and stdout a pipe: the bar must not be mixed with the JSON."""
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
    bar = re.compile(r"loss [━╸╺]+ +(\d+)% ([\d,]+ rows/s) +\d:\d\d:\d\d \w+ (\S+)")
    frames = bar.findall(text)
    assert any(share == "100" for share, _, _ in frames)
    # Bars are also drawn before the end.
    assert any(int(share) < 100 and re.match(r"\d:\d\d:\d\d", eta) for share, _, eta in frames)
    assert not re.search(r"loss: [\d,]+ rows", text)  # no lines in addition to the bars
    assert stdout.startswith("{")
    assert stdout.count("\n") == 1


def _read_terminal(reader: int) -> str:
    pieces = []
    while True:
        try:
            piece = os.read(reader, 65536)
        except OSError:  # Linux raises it if the other side is closed
            break
        if not piece:
            break
        pieces.append(piece)
    os.close(reader)
    return b"".join(pieces).decode()


def test_long_phase_reports_its_progress(invoke, features, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "_LOG_SECONDS", 0.0)
    args = ("--out", tmp_path / "run", "--block-rows", 500, "--nthreads", 1)
    stderr = invoke("fit", features, "--rho", 0.5, *args).ok().stderr
    lines = [line for line in stderr.splitlines() if line.startswith("loss: ") and "%" in line]
    shares = [int(re.match(r"loss: (\d+)%.* [\d,]+ rows/s\b.* \d+ s\b", x)[1]) for x in lines]
    assert shares == [12, 25, 38, 50, 62, 75, 88]


def test_lines_and_bars_are_drawn_at_intervals() -> None:
    timer = progress.RefreshTimer(100.0)
    assert not timer.line_is_due(109.9)
    assert timer.line_is_due(110.0)
    assert not timer.line_is_due(119.9)
    assert timer.line_is_due(120.0)
    # A bar is drawn soon after the start and then each time the elapsed time has doubled.
    drawn = [i for i in range(1, 101) if timer.redraw_is_due(100.0 + i / 16)]
    assert drawn == [1, 2, 4, 8, 16, 32, 64]


def numbers(text: str) -> list[str]:
    return re.findall(r"\d[\d,.]*\b", text)


def test_share_rate_and_time_left() -> None:
    phase = PhaseState("loss")
    phase.start(blocks=8, rows=8000, now=50.0)
    assert numbers(progress.progress_line(phase, 50.0)) == ["0", "0", "0"]
    phase.add_block(2000)
    line = progress.progress_line(phase, 51.0)
    assert numbers(line) == ["25", "2,000", "3"]
    assert "25%" in line
    assert "2,000 rows/s" in line


def worker(memory: float, limit: float | None, threads: int = 2) -> dict[str, Any]:
    return {"metrics": {"memory": memory}, "memory_limit": limit, "nthreads": threads}


def test_memory_of_the_fullest_worker_is_shown() -> None:
    assert "worker" in progress.workers_line([])
    shown = progress.workers_line([worker(5e8, 4e9), worker(2e9, 3e9), worker(1e9, 9e9)])
    assert numbers(shown) == ["3", "6", "2.0", "3.0"]
    assert all(fact in shown for fact in ("3 workers", "6 threads", "2.0 GB", "3.0 GB"))
    shown = progress.workers_line([worker(5e8, None, 1), {**worker(0, None, 1), "metrics": {}}])
    assert numbers(shown) == ["2", "2", "500.0"]
    assert all(fact in shown for fact in ("2 workers", "2 threads", "500.0 MB"))
