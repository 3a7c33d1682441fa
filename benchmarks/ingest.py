"""Compare the throughput of an ingest with a simple loop that copies rows with the same codec.

    python -m benchmarks.ingest --gigabytes 10 --memory-limit 1GB

The exit code is 1 if the ingest reaches less than 0.6 of the loop's bytes per second, if a worker
exceeded its memory limit or spilled, or if the store differs from the file.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
from distributed import Client

from scrlm_dask.engine.threads import peak_memory
from scrlm_dask.pipeline.ingest import ingest
from scrlm_dask.pipeline.ingest_job import IngestConfig
from scrlm_dask.storage.arrays import create_array, read_rows, write_rows
from scrlm_dask.storage.feature_store import TARGET_BLOCK_BYTES, open_features_store

from .common import Spent, scratch, spilled_bytes, timed, workers

LEAST_RATIO = 0.6


@click.command()
@click.option("--gigabytes", default=10.0, show_default=True)
@click.option("--features", default=512, show_default=True)
@click.option("--nworkers", default=2, show_default=True)
@click.option("--memory-limit", default="1GB", show_default=True)
@click.option("--chunk-bytes", default=TARGET_BLOCK_BYTES, show_default=True)
@click.option("--repeats", default=2, show_default=True)
@click.option("--shuffle", is_flag=True, help="Shuffle rows in the ingest, but not in the loop.")
@click.option("--scratch", "folder", help="Folder for the data; it is kept.")
def main(
    gigabytes: float,
    features: int,
    nworkers: int,
    memory_limit: str,
    chunk_bytes: int,
    repeats: int,
    shuffle: bool,
    folder: str | None,
) -> None:
    """Copy and ingest the same file, and print the throughput of copy and ingest."""
    rows = int(gigabytes * 1e9 / (4 * features))
    block_rows = min(rows, max(1, chunk_bytes // (4 * features)))
    with scratch(folder) as place, workers(nworkers, memory_limit) as client:
        source, copy, out = place / "rows.npy", place / "copy.zarr", place / "features.zarr"
        write_source(source, rows, features, block_rows)
        config = IngestConfig(chunk_bytes=chunk_bytes, shuffle=shuffle)
        copies, ingests = [], []
        # Alternate and use the best time of each, because other processes also use the disk.
        for _ in range(repeats):
            copies.append(timed_to_disk(client, lambda: plain_copy(source, str(copy), block_rows)))
            shutil.rmtree(copy)
            ingests.append(
                timed_to_disk(client, lambda: ingest([source], out, config, overwrite=True))
            )
        report = measure(client)
        report |= {
            "bytes": 4 * rows * features,
            "copy_seconds": [spent.wall for spent in copies],
            "ingest_seconds": [spent.wall for spent in ingests],
            "copy_cpu_seconds": [spent.cpu for spent in copies],
            "ingest_cpu_seconds": [spent.cpu for spent in ingests],
            "copy_bytes_per_second": 4 * rows * features / best(copies),
            "ingest_bytes_per_second": 4 * rows * features / best(ingests),
            "ratio": best(copies) / best(ingests),
            "same_rows": shuffle or same_rows(source, out, block_rows),
        }
        report["ok"] = report["bounded"] and report["same_rows"] and report["ratio"] >= LEAST_RATIO
    print(json.dumps(report, indent=2))
    sys.exit(0 if report["ok"] else 1)


def write_source(path: Path, rows: int, features: int, block_rows: int) -> None:
    if path.exists():
        return
    rng = np.random.default_rng(0)
    file = np.lib.format.open_memmap(path, "w+", np.float32, (rows, features))
    for start in range(0, rows, block_rows):
        piece = file[start : start + block_rows]
        piece[...] = rng.random(piece.shape, np.float32)
    file.flush()


def plain_copy(source: Path, out: str, block_rows: int) -> None:
    """Copy rows in a simple loop: sequential, without checks and without checkpoints."""
    rows = np.load(source, mmap_mode="r")
    create_array(out, rows.shape, (block_rows, rows.shape[1]), rows.dtype, np.nan)
    for start in range(0, len(rows), block_rows):
        write_rows(out, start, np.array(rows[start : start + block_rows]))


def timed_to_disk(client: Client, work: Callable[[], Any]) -> Spent:
    """Return the time until all bytes are on disk; pending writes are flushed first."""

    def until_written() -> None:
        work()
        os.sync()

    os.sync()
    return timed(client, until_written)


def best(spent: list[Spent]) -> float:
    return min(one.wall for one in spent)


def measure(client: Client) -> dict[str, Any]:
    limits = {a: w["memory_limit"] for a, w in client.scheduler_info(-1)["workers"].items()}
    peaks = client.run(peak_memory)
    spilled = spilled_bytes(client)
    return {
        "worker_limits": limits,
        "worker_peaks": peaks,
        "spilled_bytes": spilled,
        "bounded": spilled == 0
        and peaks.keys() == limits.keys()
        and all(peaks[a] < limits[a] for a in peaks),
    }


def same_rows(source: Path, out: Path, block_rows: int) -> bool:
    rows, stored = np.load(source, mmap_mode="r"), open_features_store(out)
    starts = range(0, len(rows), block_rows)
    return len(rows) == stored.shape[0] and all(
        np.array_equal(
            read_rows(stored, i, min(i + block_rows, len(rows)), "it"), rows[i : i + block_rows]
        )
        for i in starts
    )


if __name__ == "__main__":
    main()
