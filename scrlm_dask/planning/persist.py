"""Decide whether the workers keep the features in memory between passes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scrlm_dask.choices import Persist
from scrlm_dask.engine.block_layout import Layout
from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.features import Features, persist_features
from scrlm_dask.engine.workers import WorkerMemory
from scrlm_dask.events import Note
from scrlm_dask.planning.memory import EVEN_SHARE, MemoryPlan

SPILL_SHARE = 0.6  # Dask begins to spill above this share of a worker's limit
# k-means projects rows onto axes in every iteration. Persist this many coordinates per row if they
# are small compared with the features of a row.
PERSISTED_AXES, _LEAST_FEATURES = 63, 4 * 63


@dataclass(frozen=True)
class PersistChoice:
    """The decision to persist features or to stream them, and the reason."""

    persisted: bool
    why: str
    axes: int = 0  # number of axes whose coordinates also fit in memory


def choose_persist(
    layout: Layout,
    plan: MemoryPlan,
    workers: Sequence[WorkerMemory],
    wanted: Persist,
    n_reads: int,
) -> PersistChoice:
    """Decide whether to persist the features, which the run reads `n_reads` times."""
    available = [
        math.inf
        if worker.limit is None
        else SPILL_SHARE * worker.limit - plan.worker_bytes(worker.n_threads, worker.n_ahead)
        for worker in workers
    ]
    n_bytes, free = layout.total_bytes, EVEN_SHARE * sum(max(0.0, size) for size in available)
    space = "no memory limit" if math.isinf(free) else f"{free / 1e9:.2f} GB of free memory"
    sizes = f"{n_bytes / 1e9:.2f} GB of features, {space}"
    if wanted == "yes" or (wanted == "auto" and n_bytes <= free and n_reads > 1):
        fit = n_bytes + 4 * PERSISTED_AXES * layout.n_rows <= free
        axes = PERSISTED_AXES if fit and layout.n_features >= _LEAST_FEATURES else 0
        why = f"{'as requested' if wanted == 'yes' else 'they fit'} ({sizes})"
        return PersistChoice(True, why, axes)
    short = sizes if n_bytes > free else "they are read only once"
    return PersistChoice(False, "as requested" if wanted == "no" else short)


def persist_or_stream(
    execution: Execution,
    features: Features,
    plan: MemoryPlan,
    workers: Sequence[WorkerMemory],
    wanted: Persist,
    n_reads: int,
) -> Features:
    """Persist the features in the workers' memory if `choose_persist` decides so; report why."""
    if features.in_memory:
        return features
    choice = choose_persist(features.layout, plan, workers, wanted, n_reads)
    if not choice.persisted:
        execution.emit(Note(f"features are read from their store in every pass: {choice.why}"))
        return features
    execution.emit(Note(f"features are kept in the workers' memory: {choice.why}"))
    with execution.read_phase("hold", features):
        persisted = persist_features(features)
    return replace(persisted, in_memory=True, coordinate_axes=choice.axes)
