"""Where features lie while k-means reads them again and again: in their store or with workers."""

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

KEPT_SHARE = 0.6  # Dask begins to spill above this share of a worker's limit
# Coordinates of rows that k-means holds, where it projects them on axes in every iteration: as many
# as it mostly wants, of features so many that they are little beside them.
HELD_AXES, _LEAST_FEATURES = 63, 4 * 63


@dataclass(frozen=True)
class Placement:
    """Whether features are held in the workers' memory, and why."""

    held: bool
    why: str
    axes: int = 0  # along which coordinates fit, too


def choose_placement(
    layout: Layout,
    plan: MemoryPlan,
    workers: Sequence[WorkerMemory],
    wanted: Persist,
    n_reads: int,
) -> Placement:
    n_bytes, room = layout.total_bytes, _room(plan, workers)
    space = "no limit" if math.isinf(room) else f"room for {room / 1e9:.2f} GB"
    sizes = f"{n_bytes / 1e9:.2f} GB of features, {space} beside the work"
    if wanted == "yes" or (wanted == "auto" and n_bytes <= room and n_reads > 1):
        fit = n_bytes + 4 * HELD_AXES * layout.n_rows <= room
        axes = HELD_AXES if fit and layout.n_features >= _LEAST_FEATURES else 0
        return Placement(True, f"{'as asked' if wanted == 'yes' else 'they fit'} ({sizes})", axes)
    short = sizes if n_bytes > room else "they are read only once"
    return Placement(False, "as asked" if wanted == "no" else short)


def place_features(
    execution: Execution,
    features: Features,
    plan: MemoryPlan,
    workers: Sequence[WorkerMemory],
    wanted: Persist,
    n_reads: int,
) -> Features:
    """Hold the features in the workers' memory if that is wanted or pays; says which and why."""
    if features.in_memory:
        return features
    place = choose_placement(features.layout, plan, workers, wanted, n_reads)
    if not place.held:
        execution.emit(Note(f"features are read from their store in every pass: {place.why}"))
        return features
    execution.emit(Note(f"features are held in the workers' memory: {place.why}"))
    with execution.read_phase("hold", features):
        held = persist_features(features)
    return replace(held, in_memory=True, coordinate_axes=place.axes)


def _room(plan: MemoryPlan, workers: Sequence[WorkerMemory]) -> float:
    """Bytes of features that the workers can hold together beside what the run needs."""
    room = 0.0
    for worker in workers:
        if worker.limit is None:
            return math.inf
        need = plan.worker_bytes(worker.n_threads, worker.n_ahead)
        room += max(0.0, KEPT_SHARE * worker.limit - need)
    return EVEN_SHARE * room
