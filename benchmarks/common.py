"""What the benchmarks share: a cluster, CPU seconds of its workers, a place for data."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributed import Client, get_client

from scrlm_dask.cluster import ClusterOptions, connect
from scrlm_dask.config import FitConfig
from scrlm_dask.kernels.synthesis import MixtureSpec
from scrlm_dask.pipeline import fit, synth


@contextmanager
def workers(number: int, memory_limit: str) -> Iterator[Client]:
    """A local cluster of single-threaded workers, its kernels compiled."""
    with connect(ClusterOptions(nworkers=number, nthreads=1, memory_limit=memory_limit)):
        warm_up()
        yield get_client()


def warm_up() -> None:
    """Let every worker compile every kernel, so that no benchmark pays for it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.zarr"
        synth(path, 8192, MixtureSpec(8, 3), chunk_bytes=1024 * 32)
        fit(path, FitConfig(n_clusters=5, n_candidates=500), block_rows=128)


def cpu_seconds(client: Client) -> float:
    """CPU seconds that the workers have used so far, all threads."""
    return sum(client.run(time.process_time).values())


def spilled_bytes(client: Client) -> int:
    """Bytes that workers have on disk, or ever wrote there."""
    return sum(client.run(_spilled).values())


def _spilled(dask_worker: Any) -> int:
    metrics = dask_worker.digests_total if hasattr(dask_worker, "digests_total") else {}
    written = sum(v for k, v in metrics.items() if "disk-write" in str(k) and "bytes" in str(k))
    return int(written)


@contextmanager
def scratch(path: str | None) -> Iterator[Path]:
    """A given folder, kept, or a temporary one."""
    if path is not None:
        Path(path).mkdir(parents=True, exist_ok=True)
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="scrlm-bench-") as folder:
        yield Path(folder)


def features_store(folder: Path, rows: int, spec: MixtureSpec) -> Path:
    """The mixture as a store in the folder; drawn only if it is not there."""
    path = folder / f"mixture-{rows}x{spec.n_features}-m{spec.n_clusters}-s{spec.seed}.zarr"
    if not path.exists():
        synth(path, rows, spec)
    return path
