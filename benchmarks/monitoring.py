"""Measure the CPU cost of monitoring a run with many blocks.

    python -m benchmarks.monitoring

A monitored run has an open dashboard page that polls the scheduler, progress bars on a terminal,
and `events.jsonl`. Monitoring runs in the process of client and scheduler. The cost is the increase
of the CPU seconds of this process, relative to all CPU seconds including those of the workers. Runs
with and without monitoring alternate. Of each kind, only the half with fewer CPU seconds counts,
because other processes disturb the measurement.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
import dask
from distributed import Client
from scrlm_cli.terminal.console import Console

from scrlm_dask.config import FitConfig
from scrlm_dask.events import Listener, warn
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.fit import fit

from .common import features_store, scratch, timed, workers

_LOOK_SECONDS = 2.0  # the polling interval of the page


@click.command()
@click.option("--blocks", default=1000, show_default=True)
@click.option("--block-rows", default=256, show_default=True)
@click.option("--features", default=640, show_default=True)
@click.option("--candidates", default=2000, show_default=True)
@click.option("--nworkers", default=2, show_default=True)
@click.option("--repeats", default=4, show_default=True)
@click.option("--data", help="Folder for the data (default: temporary).")
def main(
    blocks: int,
    block_rows: int,
    features: int,
    candidates: int,
    nworkers: int,
    repeats: int,
    data: str | None,
) -> None:
    """Fit a mixture with and without monitoring and print the CPU seconds."""
    config = FitConfig(n_clusters=100, n_candidates=candidates)
    with scratch(data) as place, workers(nworkers, "4GB") as client:
        rows, spec = blocks * block_rows, MixtureSpec(features, 100, 0.2)
        store = features_store(place, rows, spec, chunk_bytes=4 * features * block_rows)
        alone: list[_Run] = []
        watched: list[_Run] = []
        for repeat in range(repeats + 1):
            a = _spent(client, lambda: _unwatched(store, config, block_rows, place))
            b = _spent(client, lambda: _watched(client, store, config, block_rows, place))
            if repeat:  # the first runs only fill the disk cache
                alone.append(a)
                watched.append(b)
    for name, found in (("without", alone), ("with", watched)):
        texts = ", ".join(f"{run.here:.2f} of {run.everywhere:.2f}" for run in found)
        mean = _better([run.here for run in found])
        print(f"{name:8} {mean:6.2f} CPU s in client and scheduler   (runs, of the total: {texts})")
    more = _better([run.here for run in watched]) - _better([run.here for run in alone])
    share = more / _better([run.everywhere for run in alone])
    print(f"monitoring costs {more:+.2f} CPU s, {share:+.2%} of all CPU seconds")


@dataclass(frozen=True)
class _Run:
    """CPU seconds in this process (client and scheduler), and in all processes."""

    here: float
    everywhere: float


def _spent(client: Client, work: Callable[[], None]) -> _Run:
    begin = time.process_time()
    everywhere = timed(client, work).cpu
    return _Run(time.process_time() - begin, everywhere)


def _better(found: list[float]) -> float:
    """Return the mean of the smaller half of the values."""
    return statistics.mean(sorted(found)[: (len(found) + 1) // 2])


def _unwatched(store: Path, config: FitConfig, block_rows: int, place: Path) -> None:
    with dask.config.set({"scrlm.watch": False}):
        _fit(store, config, block_rows, place, warn)


def _watched(client: Client, store: Path, config: FitConfig, block_rows: int, place: Path) -> None:
    with _terminal(), _looking(f"{client.dashboard_link.removesuffix('status')}scrlm/state.json"):
        console = Console(as_json=False, verbose=False)
        with console.progress():
            _fit(store, config, block_rows, place, console)


def _fit(store: Path, config: FitConfig, block_rows: int, place: Path, listener: Listener) -> None:
    fit(
        store,
        config,
        out=place / "run",
        overwrite=True,
        block_rows=block_rows,
        listener=listener,
    )


@contextmanager
def _terminal() -> Iterator[None]:
    """Replace stderr by a pseudo-terminal whose output is read."""
    reader, writer = os.openpty()
    before = sys.stderr
    drain = threading.Thread(target=_drain, args=(reader,), daemon=True)
    drain.start()
    with os.fdopen(writer, "w") as sys.stderr:
        try:
            yield
        finally:
            sys.stderr.flush()
            sys.stderr = before
    drain.join()
    os.close(reader)


def _drain(reader: int) -> None:
    try:
        while os.read(reader, 65536):
            pass
    except OSError:  # the writing end is closed
        return


@contextmanager
def _looking(url: str) -> Iterator[None]:
    """Poll the data of the page in a thread, as a browser does."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(_LOOK_SECONDS):
            try:
                with urllib.request.urlopen(url, timeout=10) as answer:
                    answer.read()
            except OSError:
                time.sleep(0.1)  # the first run creates the page

    looker = threading.Thread(target=look, daemon=True)
    looker.start()
    try:
        yield
    finally:
        over.set()
        looker.join()


if __name__ == "__main__":
    main()
