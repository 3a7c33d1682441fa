"""Run one method in a process of its own, ended when it takes too long or too much memory.

The process is this module:

    python -m scrlm_dask.paper.run_with_limits METHOD ROWS.npy CLUSTERS SEED FOLDER

It writes "ready" to stdout when it has the rows and the fit begins and, at its end, what the fit
took as a line of JSON. Labels are left in the folder.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray

from scrlm_dask.engine.threads import cpu_seconds, peak_memory
from scrlm_dask.errors import InputError
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec, synth_block, true_mixture
from scrlm_dask.paper.baselines import Method, find_method, find_missing_requirement
from scrlm_dask.text import format_bytes, one_line

_READY = b"ready\n"
_LABELS_FILE, _ROWS_FILE, _ERRORS_FILE = "labels.npy", "rows.npy", "stderr"
_START_SECONDS = 300.0  # imports, compilation and reading the rows, which the limit is not for
_POLL_SECONDS = 0.05
_WARM_UP_ROWS, _WARM_UP_CLUSTERS = 256, 3
# clusters with a clear scale, and none: SCRLM goes different ways
_WARM_UP = [MixtureSpec(8, _WARM_UP_CLUSTERS, outliers) for outliers in (0.2, 1.0)]


@dataclass(frozen=True)
class Task:
    """A method and what it is given; rows (N, p) as an array, or as a .npy file of float32."""

    method: str
    rows: NDArray[np.float32] | Path
    n_clusters: int
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """Labels and what they took, or why there are none.

    CPU seconds, of all threads and children, and wall seconds are those of the fit alone; memory
    is the most that the process ever held, libraries and rows included.
    """

    labels: NDArray[np.int64] | None  # (N,)
    reason: str | None
    cpu_seconds: float | None
    wall_seconds: float | None
    peak_bytes: int


def run_with_limits(task: Task, timeout: float, memory: int | None = None) -> Outcome:
    """Run a task with `timeout` seconds for the fit and `memory` bytes (None: any)."""
    check_limits(timeout, memory)
    missing = find_missing_requirement(task.method)
    if missing is not None:
        return Outcome(None, missing, None, None, 0)
    with tempfile.TemporaryDirectory(prefix="scrlm-baseline-") as name:
        folder = Path(name)
        rows = task.rows
        if not isinstance(rows, Path):
            np.save(folder / _ROWS_FILE, np.ascontiguousarray(rows, np.float32))
            rows = folder / _ROWS_FILE
        with _start(task, rows.absolute(), folder) as process:
            return _watch(process, folder, timeout, memory)


def check_limits(timeout: float, memory: int | None) -> None:
    if not timeout > 0:
        raise InputError(f"the time limit is {timeout:g} s; give more than 0")
    if memory is not None and memory < 1:
        raise InputError(f"the memory limit is {memory} bytes; give more, or None for no limit")


@contextmanager
def _start(task: Task, rows: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the process, and end it with all its children, whatever happens."""
    method = find_method(task.method).name
    words = [method, str(rows), str(task.n_clusters), str(task.seed), str(folder)]
    with (folder / _ERRORS_FILE).open("wb") as errors:
        process = subprocess.Popen(
            # -P: a file in the current folder must not stand in for a library
            [sys.executable, "-P", "-m", "scrlm_dask.paper.run_with_limits", *words],
            stdin=subprocess.PIPE,  # closed when this process dies, by whatever: then it ends
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # a group of its own, to be ended with its children
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def _watch(
    process: subprocess.Popen[bytes], folder: Path, timeout: float, memory: int | None
) -> Outcome:
    """Poll the process until it is done, or takes more time or memory than it may."""
    assert process.stdout is not None
    peak, said, began = 0, b"", None
    limit, deadline = _START_SECONDS, time.monotonic() + _START_SECONDS
    while True:
        peak = max(peak, _memory_of(process.pid))
        if memory is not None and peak > memory:
            return Outcome(None, f"more than {format_bytes(memory)}", None, None, peak)
        if time.monotonic() > deadline:
            words = f"more than {timeout:g} s" if began else f"did not start in {limit:g} s"
            return Outcome(None, words, None, None, peak)
        if not select.select([process.stdout], [], [], _POLL_SECONDS)[0]:
            continue
        piece = os.read(process.stdout.fileno(), 2**16)
        said += piece
        if not piece:
            return _finish(process, said, folder, peak)
        if began is None and said.startswith(_READY):
            began = time.monotonic()
            deadline = began + timeout


def _memory_of(pid: int) -> int:
    """Return the resident bytes of a process and all its children."""
    total = 0
    with suppress(psutil.Error):
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            with suppress(psutil.Error):
                total += int(process.memory_info().rss)
    return total


def _finish(process: subprocess.Popen[bytes], said: bytes, folder: Path, peak: int) -> Outcome:
    """Return the outcome that a process that ended by itself left behind."""
    code = process.wait()
    told: dict[str, Any] = {}
    with suppress(ValueError):
        told = json.loads(said.removeprefix(_READY) or b"{}")
    peak = max(peak, told.get("peak_bytes", 0))
    if "error" in told:
        return Outcome(None, told["error"], None, None, peak)
    if code != 0 or not told:
        return Outcome(None, _last_words(code, folder), None, None, peak)
    labels = np.load(folder / _LABELS_FILE, allow_pickle=False)
    return Outcome(labels, None, told["cpu_seconds"], told["wall_seconds"], peak)


def _last_words(code: int, folder: Path) -> str:
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    lines = (folder / _ERRORS_FILE).read_text(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"{how}: {last}" if last else how


def _main(method: str, rows: str, n_clusters: str, seed: str, folder: str) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    write = _take_stdout()
    warnings.simplefilter("ignore")  # no user reads them here
    chosen = find_method(method)
    _warm_up(chosen)
    given = np.load(rows, allow_pickle=False)
    write(_READY)
    costs = _measure(chosen, given, int(n_clusters), int(seed), Path(folder))
    write(json.dumps(costs).encode())


def _end_with_parent() -> None:
    """Wait for the end of stdin, to which nothing is written: it ends with the parent process."""
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def _take_stdout() -> Callable[[bytes], Any]:
    """Return a function that writes to stdout, which libraries that print do not disturb."""
    own = os.dup(1)
    os.dup2(2, 1)
    return lambda text: os.write(own, text)


def _warm_up(method: Method) -> None:
    """Import and compile what the method needs."""
    for spec in _WARM_UP:
        drawn = synth_block(spec, true_mixture(spec), 0, _WARM_UP_ROWS)
        with suppress(Exception):  # an error shows in the fit also
            method.fit(drawn.features, _WARM_UP_CLUSTERS, 0)


def _measure(
    method: Method, rows: NDArray[np.float32], n_clusters: int, seed: int, folder: Path
) -> dict[str, Any]:
    try:
        cpu, begin = cpu_seconds(), time.perf_counter()
        labels = method.fit(rows, n_clusters, seed)
        cpu, wall = cpu_seconds() - cpu, time.perf_counter() - begin
    except MemoryError:
        return {"error": "more memory than there is", "peak_bytes": peak_memory()}
    except Exception as error:
        return {"error": one_line(error), "peak_bytes": peak_memory()}
    np.save(folder / _LABELS_FILE, labels)
    return {"cpu_seconds": cpu, "wall_seconds": wall, "peak_bytes": peak_memory()}


if __name__ == "__main__":
    _main(*sys.argv[1:])
