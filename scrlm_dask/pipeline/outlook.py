"""What a run has to do and what it may need, told before it is done."""

from __future__ import annotations

from collections.abc import Sequence

from scrlm_dask.config import KMeansConfig, ResolvedConfig
from scrlm_dask.events import Planned
from scrlm_dask.passes.clients import WorkerMemory
from scrlm_dask.passes.execution import Execution
from scrlm_dask.passes.layout import Layout
from scrlm_dask.pipeline.memory import MemoryPlan, fit_memory
from scrlm_dask.pipeline.work import PhaseWork, fit_work, kmeans_work


def tell_fit_plan(
    execution: Execution,
    layout: Layout,
    config: ResolvedConfig,
    n_clusters: int | None,
    workers: Sequence[WorkerMemory],
) -> None:
    """The phases of a fit; without clusters, those that come before there are any."""
    memory = fit_memory(layout, config, n_clusters, len(workers))
    work = fit_work(layout, config, n_clusters or 0, held=False)
    known = [phase for phase in work if n_clusters is not None or phase.name in _BEFORE_CLUSTERS]
    execution.tell(_planned(known, memory, workers))


def tell_kmeans_plan(
    execution: Execution,
    layout: Layout,
    config: KMeansConfig,
    memory: MemoryPlan,
    workers: Sequence[WorkerMemory],
) -> None:
    """The iterations and the labelling; how k-means begins is cheap beside them."""
    work = kmeans_work(layout, config.n_clusters, config.lloyd.max_iter)
    execution.tell(_planned(work, memory, workers))


_BEFORE_CLUSTERS = ("survey", "scan", "loss", "extract")


def _planned(
    work: Sequence[PhaseWork], memory: MemoryPlan, workers: Sequence[WorkerMemory]
) -> Planned:
    names = dict.fromkeys(phase.name for phase in work)
    flops = {name: sum(w.times * w.flops for w in work if w.name == name) for name in names}
    row_flops = {phase.name: phase.flops / max(phase.rows, 1) for phase in work}
    most = max(memory.worker_bytes(worker.n_threads, worker.n_ahead) for worker in workers)
    return Planned(flops, row_flops, most, memory.client_bytes)
