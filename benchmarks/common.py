"""Shared helpers of the benchmarks: a cluster, CPU seconds of its workers, a folder for data."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distributed import Client, get_client

from scrlm_dask.clusters.connect import connect
from scrlm_dask.clusters.options import ClusterOptions
from scrlm_dask.config import FitConfig, LloydConfig
from scrlm_dask.events import PhaseFinished, PhaseStarted
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.synth import synth
from scrlm_dask.storage.feature_store import TARGET_BLOCK_BYTES

_RESIZE_SECONDS = 120


@contextmanager
def workers(number: int, memory_limit: str) -> Iterator[Client]:
    """Start a local cluster of single-threaded workers with compiled kernels."""
    with connect(ClusterOptions(nworkers=number, nthreads=1, memory_limit=memory_limit)):
        warm_up()
        yield get_client()


def warm_up() -> None:
    """Compile all kernels on all workers, so that no benchmark measures compilation."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.zarr"
        synth(path, 8192, MixtureSpec(8, 3), chunk_bytes=1024 * 32)
        for prune in (0, 4):
            config = FitConfig(
                rho=0.5, n_clusters=5, n_candidates=500, refine=LloydConfig(2), prune=prune
            )
            fit(path, config, block_rows=512)
            fit(path, replace(config, robust=False), block_rows=512)


def cpu_seconds(client: Client) -> float:
    """Return the CPU seconds that the workers have used so far, in all threads."""
    return sum(client.run(time.process_time).values())


@dataclass(frozen=True)
class Spent:
    """Wall seconds, and CPU seconds of all processes."""

    wall: float
    cpu: float


def timed(client: Client, work: Callable[[], Any]) -> Spent:
    """Return the time that a call takes; CPU seconds are those of this process and the workers."""
    cpu, begin = time.process_time() + cpu_seconds(client), time.perf_counter()
    work()
    wall = time.perf_counter() - begin
    return Spent(wall, time.process_time() + cpu_seconds(client) - cpu)


@dataclass(frozen=True)
class Measured:
    """A phase of a run, and its CPU seconds on all workers."""

    phase: PhaseFinished
    cpu: float


def measured_phases(
    client: Client, run: Callable[..., Any], *args: Any, **kwargs: Any
) -> tuple[list[Measured], Any]:
    """Return all phases of a run, and its result.

    The CPU time between two phases of the same name is added to the second phase, because it is
    spent on preparing an iteration.
    """
    phases: list[Measured] = []
    mark = 0.0

    def listener(event: Any) -> None:
        nonlocal mark
        follows = phases and phases[-1].phase.name == getattr(event, "name", None)
        if isinstance(event, PhaseStarted) and not follows:
            mark = cpu_seconds(client)
        elif isinstance(event, PhaseFinished):
            now = cpu_seconds(client)
            phases.append(Measured(event, now - mark))
            mark = now

    result = run(*args, listener=listener, **kwargs)
    return phases, result


def phases_called(name: str, phases: list[Measured]) -> list[Measured]:
    """Return the phases with this name."""
    return [measured for measured in phases if measured.phase.name == name]


def resize(client: Client, number: int) -> None:
    """Scale a local cluster to `number` workers; new workers compile their kernels."""
    before, deadline = len(client.nthreads()), time.monotonic() + _RESIZE_SECONDS
    client.cluster.scale(number)
    while len(client.nthreads()) != number:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{number} workers did not start within {_RESIZE_SECONDS} s")
        time.sleep(0.01)
    if number > before:
        warm_up()


def spilled_bytes(client: Client) -> int:
    """Return the bytes that the workers have spilled to disk so far."""
    return sum(client.run(_spilled).values())


def _spilled(dask_worker: Any) -> int:
    metrics = dask_worker.digests_total if hasattr(dask_worker, "digests_total") else {}
    written = sum(v for k, v in metrics.items() if "disk-write" in str(k) and "bytes" in str(k))
    return int(written)


@contextmanager
def scratch(path: str | None) -> Iterator[Path]:
    """Yield the given folder, which is not removed at the end, or a temporary folder."""
    if path is not None:
        Path(path).mkdir(parents=True, exist_ok=True)
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="scrlm-bench-") as folder:
        yield Path(folder)


def features_store(
    folder: Path, rows: int, spec: MixtureSpec, chunk_bytes: int = TARGET_BLOCK_BYTES
) -> Path:
    """Return a features store of the mixture in the folder; draw it if it does not exist."""
    name = f"{rows}x{spec.n_features}-m{spec.n_clusters}-o{spec.outliers}-s{spec.seed}"
    if chunk_bytes != TARGET_BLOCK_BYTES:
        name += f"-c{chunk_bytes}"
    path = folder / f"mixture-{name}.zarr"
    if not path.exists():
        synth(path, rows, spec, chunk_bytes=chunk_bytes)
    return path


def plain_lloyd(iterations: int) -> LloydConfig:
    """Return a config with exactly this number of iterations, which read the features from disk."""
    return LloydConfig(max_iter=iterations, tol=0.0, inertia_tol=0.0, persist="no")


def print_ratio(name: str, measured: list[float], product: list[float]) -> None:
    """Print the times of a pass and of the bare product, and the ratio of their best times."""
    for title, seconds in ((name, measured), ("bare product", product)):
        every = ", ".join(f"{s:.2f}" for s in seconds)
        print(f"{title:15} {min(seconds):8.2f} CPU s   (all: {every})")
    print(f"ratio           {min(measured) / min(product):8.3f}")
