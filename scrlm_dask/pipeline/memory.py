"""What k-means needs of a worker's memory, and whether the features fit beside it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from scrlm_dask.config import Persist
from scrlm_dask.errors import InputError
from scrlm_dask.events import Note
from scrlm_dask.kernels.points import tile_rows
from scrlm_dask.passes.clients import WorkerMemory, worker_memories
from scrlm_dask.passes.execution import Execution
from scrlm_dask.passes.features import Features, hold_features

_PROCESS_BYTES = 320 * 10**6  # Python, its libraries and compiled kernels before anything is read
_KEPT_SHARE = 0.6  # Dask begins to spill above this share of a worker's limit
_EVEN_SHARE = 0.85  # workers do not get exactly equal shares of the blocks


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes that k-means needs at its peak; a worker holds a block, tiles and sums a thread."""

    block_bytes: int
    tile_bytes: int
    sums_bytes: int  # k x p in float64
    center_bytes: int

    def worker_bytes(self, n_threads: int) -> int:
        # a block is there encoded and decoded while it is read; of the sums there are those of the
        # block in hand, a finished part that waits, and the merged one
        thread = 3 * self.block_bytes + self.tile_bytes + 3 * self.sums_bytes
        return _PROCESS_BYTES + self.center_bytes + n_threads * thread


def plan_memory(features: Features, n_clusters: int) -> MemoryPlan:
    rows, p = features.in_blocks_for(n_clusters).block_rows, features.n_features
    tile = tile_rows(n_clusters)
    return MemoryPlan(
        block_bytes=min(rows, features.n_rows) * features.row_bytes,
        tile_bytes=tile * (4 * n_clusters + 12 * p),
        sums_bytes=8 * n_clusters * p,
        # as they come, in input units, and mapped
        center_bytes=(8 + 8 + 4) * n_clusters * p,
    )


def check_memory(plan: MemoryPlan, n_clusters: int) -> None:
    """Refuse in the first second what would fail in the fourth hour."""
    for worker in worker_memories():
        need = plan.worker_bytes(worker.n_threads)
        if worker.limit is not None and need > worker.limit:
            raise InputError(
                f"k-means with {n_clusters} clusters needs {need / 1e9:.2f} GB of a worker with "
                f"{worker.n_threads} thread(s), which has {worker.limit / 1e9:.2f} GB; give more "
                "memory (--memory-limit), fewer threads or smaller blocks (--block-rows)"
            )


def place_features(
    execution: Execution, features: Features, plan: MemoryPlan, wanted: Persist, n_reads: int
) -> Features:
    """Hold the features in the workers' memory if that is wanted or pays; says which and why."""
    if features.in_memory:
        return features
    size, room = features.n_rows * features.row_bytes, _room(plan, worker_memories())
    space = "no limit" if math.isinf(room) else f"room for {room / 1e9:.2f} GB"
    sizes = f"{size / 1e9:.2f} GB of features, {space} beside the work"
    if wanted == "yes" or (wanted == "auto" and size <= room and n_reads > 1):
        why = "as asked" if wanted == "yes" else "they fit"
        execution.tell(Note(f"features are held in the workers' memory: {why} ({sizes})"))
        with execution.reading("hold", features, None):
            held = hold_features(features)
        return replace(held, in_memory=True)
    why = "as asked" if wanted == "no" else sizes if size > room else "they are read only once"
    execution.tell(Note(f"features are read from their store in every pass: {why}"))
    return features


def _room(plan: MemoryPlan, workers: list[WorkerMemory]) -> float:
    """Bytes of features that the workers can hold together beside what k-means needs."""
    room = 0.0
    for worker in workers:
        if worker.limit is None:
            return math.inf
        room += max(0.0, _KEPT_SHARE * worker.limit - plan.worker_bytes(worker.n_threads))
    return _EVEN_SHARE * room
