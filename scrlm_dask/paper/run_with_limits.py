"""Run one method in a separate process with limits on time and memory.

The process runs this module:

    python -m scrlm_dask.paper.run_with_limits METHOD ROWS.npy CLUSTERS SEED FOLDER

It writes "ready" to stdout after it has loaded the rows and before the fit starts. After the fit it
writes time and memory as one line of JSON, and the labels into the folder.
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
_START_SECONDS = 300.0  # for imports, compilation and reading; `timeout` limits the fit only
_POLL_SECONDS = 0.05
_WARM_UP_ROWS, _WARM_UP_CLUSTERS = 256, 3
# One mixture with clear clusters and one without, because SCRLM uses different code for them.
_WARM_UP = [MixtureSpec(8, _WARM_UP_CLUSTERS, outliers) for outliers in (0.2, 1.0)]


@dataclass(frozen=True)
class Task:
    """A method and its input; rows (N, p) are an array, or a .npy file of float32."""

    method: str
    rows: NDArray[np.float32] | Path
    n_clusters: int
    seed: int = 0


@dataclass(frozen=True)
class Outcome:
    """Result of a task: labels, time and memory, or the reason for its failure.

    CPU seconds (of all threads and child processes) and wall seconds are those of the fit only.
    Memory is the peak of the whole process, including libraries and rows.
    """

    labels: NDArray[np.int64] | None  # (N,)
    reason: str | None
    cpu_seconds: float | None
    wall_seconds: float | None
    peak_bytes: int


def run_with_limits(task: Task, timeout: float, memory: int | None = None) -> Outcome:
    """Run a task with at most `timeout` seconds for the fit and `memory` bytes (None: no limit)."""
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
    """Raise `InputError` unless both limits are positive; `memory` may be None."""
    if not timeout > 0:
        raise InputError(f"timeout must be positive, got {timeout:g} s")
    if memory is not None and memory < 1:
        raise InputError(
            f"the memory limit must be positive, or None for no limit, got {memory} bytes"
        )


@contextmanager
def _start(task: Task, rows: Path, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the process; on exit, always kill it and all of its children."""
    method = find_method(task.method).name
    arguments = [method, str(rows), str(task.n_clusters), str(task.seed), str(folder)]
    with (folder / _ERRORS_FILE).open("wb") as errors:
        process = subprocess.Popen(
            # -P: files in the working directory must not be imported instead of libraries.
            [sys.executable, "-P", "-m", "scrlm_dask.paper.run_with_limits", *arguments],
            stdin=subprocess.PIPE,  # closed if this process dies; the child then exits
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,  # a process group of its own, to kill it with its children
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
    """Poll the process until it finishes or exceeds a limit."""
    assert process.stdout is not None
    peak, output, began = 0, b"", None
    limit, deadline = _START_SECONDS, time.monotonic() + _START_SECONDS
    while True:
        peak = max(peak, _memory_of(process.pid))
        if memory is not None and peak > memory:
            return Outcome(None, f"used more than {format_bytes(memory)}", None, None, peak)
        if time.monotonic() > deadline:
            reason = (
                f"took more than {timeout:g} s" if began else f"did not start within {limit:g} s"
            )
            return Outcome(None, reason, None, None, peak)
        if not select.select([process.stdout], [], [], _POLL_SECONDS)[0]:
            continue
        piece = os.read(process.stdout.fileno(), 2**16)
        output += piece
        if not piece:
            return _finish(process, output, folder, peak)
        if began is None and output.startswith(_READY):
            began = time.monotonic()
            deadline = began + timeout


def _memory_of(pid: int) -> int:
    """Return the resident bytes of a process and all of its children."""
    total = 0
    with suppress(psutil.Error):
        parent = psutil.Process(pid)
        for process in (parent, *parent.children(recursive=True)):
            with suppress(psutil.Error):
                total += int(process.memory_info().rss)
    return total


def _finish(process: subprocess.Popen[bytes], output: bytes, folder: Path, peak: int) -> Outcome:
    """Return the outcome of a process that has exited by itself."""
    code = process.wait()
    report: dict[str, Any] = {}
    with suppress(ValueError):
        report = json.loads(output.removeprefix(_READY) or b"{}")
    peak = max(peak, report.get("peak_bytes", 0))
    if "error" in report:
        return Outcome(None, report["error"], None, None, peak)
    if code != 0 or not report:
        return Outcome(None, _describe_exit(code, folder), None, None, peak)
    labels = np.load(folder / _LABELS_FILE, allow_pickle=False)
    return Outcome(labels, None, report["cpu_seconds"], report["wall_seconds"], peak)


def _describe_exit(code: int, folder: Path) -> str:
    """Return exit code or signal, and the last line of stderr."""
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    lines = (folder / _ERRORS_FILE).read_text(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"{how}: {last}" if last else how


def _main(method: str, rows: str, n_clusters: str, seed: str, folder: str) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    write = _take_stdout()
    # If the process fails, the last line of stderr is reported as the reason. It must be the error,
    # not a warning.
    warnings.simplefilter("ignore")
    chosen = find_method(method)
    _warm_up(chosen)
    given = np.load(rows, allow_pickle=False)
    write(_READY)
    costs = _measure(chosen, given, int(n_clusters), int(seed), Path(folder))
    write(json.dumps(costs).encode())


def _end_with_parent() -> None:
    """Kill this process group when stdin is closed, which happens when the parent exits."""
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


def _take_stdout() -> Callable[[bytes], Any]:
    """Return a function that writes to stdout; redirect all other output to stderr."""
    own = os.dup(1)
    os.dup2(2, 1)
    return lambda text: os.write(own, text)


def _warm_up(method: Method) -> None:
    """Run the method on small data, so that its modules are imported and compiled."""
    for spec in _WARM_UP:
        drawn = synth_block(spec, true_mixture(spec), 0, _WARM_UP_ROWS)
        with suppress(Exception):  # the measured fit raises the same error
            method.fit(drawn.features, _WARM_UP_CLUSTERS, 0)


def _measure(
    method: Method, rows: NDArray[np.float32], n_clusters: int, seed: int, folder: Path
) -> dict[str, Any]:
    try:
        cpu, begin = cpu_seconds(), time.perf_counter()
        labels = method.fit(rows, n_clusters, seed)
        cpu, wall = cpu_seconds() - cpu, time.perf_counter() - begin
    except MemoryError:
        return {"error": "out of memory", "peak_bytes": peak_memory()}
    except Exception as error:
        return {"error": one_line(error), "peak_bytes": peak_memory()}
    np.save(folder / _LABELS_FILE, labels)
    return {"cpu_seconds": cpu, "wall_seconds": wall, "peak_bytes": peak_memory()}


if __name__ == "__main__":
    _main(*sys.argv[1:])
