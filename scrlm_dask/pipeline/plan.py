"""Plan a fit: what each phase computes, reads and needs, and how long it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scrlm_dask.config import FitConfig, ResolvedConfig
from scrlm_dask.engine.block_layout import Layout
from scrlm_dask.engine.features import Features, FeaturesLike, as_features
from scrlm_dask.engine.workers import WorkerMemory, worker_memories
from scrlm_dask.planning import memory
from scrlm_dask.planning.calibration import Calibration, Rate, ReadRate, calibrate
from scrlm_dask.planning.persist import choose_persist
from scrlm_dask.planning.work import PhaseCost, fit_costs
from scrlm_dask.storage.locations import Options

# Cost of a pass in addition to reading and computing, measured on a local cluster:
_PHASE_SECONDS = 0.1  # to send the graph, and to ask the workers for their memory at the end
_TASK_SECONDS = 0.004  # of the scheduler, for each block
_WRITE_SECONDS = 0.02  # to write a block's labels
# Of a new worker. Less is known only of a process that has loaded kernels before; more is kernels
# being compiled, once for all.
_LEAST_START_SECONDS, _MOST_START_SECONDS = 0.5, 2.5
_SENT_SECONDS = 2e-9  # a byte of candidates or centers, to each worker


@dataclass(frozen=True)
class WorkerPool:
    """All workers together."""

    n_workers: int
    n_threads: int  # that compute
    n_ahead: int  # that read ahead
    n_cores: int  # that they share


@dataclass(frozen=True)
class PhasePlan:
    """A phase, and its cost each time it runs."""

    name: str
    times: int  # at most
    rows: int
    bytes: int
    flops: int  # of whole matrix products: pruning takes fewer
    worker_bytes: int
    seconds: float


@dataclass(frozen=True)
class Plan:
    """The predicted cost of a fit, if k-means runs all of its iterations."""

    rows: int
    features: int
    block_rows: int
    candidates: int
    clusters: int  # at most
    workers: int
    threads: int  # of the worker that has most
    memory_limit: int | None  # of the worker that has least
    phases: tuple[PhasePlan, ...]
    start_seconds: float  # until new workers have loaded what they run
    seconds: float  # of all phases, and the start
    bytes: int
    flops: int
    worker_bytes: int
    client_bytes: int
    held_bytes: int  # of features persisted in the memory of all workers
    calibration_seconds: float  # spent on measuring, after a first time
    notes: tuple[str, ...]


def plan_fit(
    source: FeaturesLike,
    config: FitConfig | None = None,
    *,
    workers: Sequence[WorkerMemory] | None = None,
    n_cores: int | None = None,
    block_rows: int | None = None,
    storage_options: Options | None = None,
) -> Plan:
    """Predict the cost of `fit` with these workers, or those of the current client.

    Kernels and reads are measured in this process for about 2 s. `n_cores` are those that the
    workers share; without it each thread that computes has one. Raises what `fit` would raise
    before it reads a row, a run that does not fit the workers' memory among it.
    """
    config = config or FitConfig()
    job = prepare_plan(source, config, block_rows=block_rows, storage_options=storage_options)
    return job.run(worker_memories() if workers is None else workers, n_cores)


def prepare_plan(
    source: FeaturesLike,
    config: FitConfig,
    *,
    block_rows: int | None = None,
    storage_options: Options | None = None,
) -> PlanJob:
    """Check everything that can be known before workers start."""
    features = as_features(source, block_rows, storage_options)
    return PlanJob(features, config.resolve(features.n_rows))


@dataclass(frozen=True)
class PlanJob:
    """A plan of a fit that was checked and can be made."""

    features: Features
    config: ResolvedConfig

    def run(self, workers: Sequence[WorkerMemory], n_cores: int | None = None) -> Plan:
        """Measure kernels and reads, and plan the fit for these workers."""
        layout, config = self.features.layout, self.config
        memory.check_fit_memory(layout, config, memory.most_clusters(config), workers)
        # without a number of clusters, candidates are an upper bound
        n_clusters = memory.most_clusters(config) or config.n_candidates
        calibration = calibrate(self.features, config, n_clusters)
        return make_plan(layout, config, n_clusters, workers, n_cores, calibration)


def make_plan(
    layout: Layout,
    config: ResolvedConfig,
    n_clusters: int,
    workers: Sequence[WorkerMemory],
    n_cores: int | None,
    calibration: Calibration,
) -> Plan:
    """Add up the phases of the fit."""
    refine = config.asked.refine
    pool = worker_pool(workers, n_cores)
    memory_plan = memory.fit_memory(layout, config, n_clusters, len(workers))
    persisted = refine.max_iter > 0 and (
        choose_persist(layout, memory_plan, workers, refine.persist, 3 + refine.max_iter).persisted
    )
    held_bytes = layout.total_bytes if persisted else 0
    share = int(held_bytes / len(workers) / memory.EVEN_SHARE)
    most = max(workers, key=lambda worker: worker.n_threads)
    phases = tuple(
        PhasePlan(
            work.name,
            work.times,
            work.rows,
            work.n_bytes,
            work.flops,
            _phase_bytes(memory_plan, work.name, most) + share,
            phase_seconds(
                work, layout, calibration.rates.get(work.name, Rate()), calibration.read, pool
            )
            + _extra_seconds(work, layout, config.n_candidates, n_clusters, pool),
        )
        for work in fit_costs(layout, config, n_clusters, persisted)
    )
    start = _start_seconds(calibration, pool)
    return Plan(
        rows=layout.n_rows,
        features=layout.n_features,
        block_rows=layout.block_rows,
        candidates=config.n_candidates,
        clusters=n_clusters,
        workers=len(workers),
        threads=most.n_threads,
        memory_limit=min((w.limit for w in workers if w.limit is not None), default=None),
        phases=phases,
        start_seconds=start,
        seconds=start + sum(phase.times * phase.seconds for phase in phases),
        bytes=sum(phase.times * phase.bytes for phase in phases),
        flops=sum(phase.times * phase.flops for phase in phases),
        worker_bytes=max(phase.worker_bytes for phase in phases),
        client_bytes=memory_plan.client_bytes,
        held_bytes=held_bytes,
        calibration_seconds=calibration.seconds - calibration.first_seconds,
        notes=(*_notes(config, persisted), *calibration.notes),
    )


def worker_pool(workers: Sequence[WorkerMemory], n_cores: int | None = None) -> WorkerPool:
    n_threads = sum(worker.n_threads for worker in workers)
    n_ahead = sum(worker.n_ahead for worker in workers)
    return WorkerPool(len(workers), n_threads, n_ahead, n_cores or n_threads)


def phase_seconds(
    work: PhaseCost, layout: Layout, rate: Rate, read: ReadRate, pool: WorkerPool
) -> float:
    """Return the time of reading and computing a phase, with the blocks shared by all threads.

    The scarcest resource decides: computing threads, all threads, or cores, which reads also use.
    No thread computes before the first block is read.
    """
    n_bytes = work.n_bytes if work.from_store else 0
    reading, cpu = n_bytes * read.seconds, n_bytes * read.cpu_seconds
    computing = work.computed_rows * rate.row + work.blocks * rate.block
    share = min(1.0, layout.block_rows / max(work.rows, 1)) if work.blocks > 1 else 1.0
    turns = -(-work.blocks // pool.n_threads)  # of a thread, when blocks are dealt out
    if pool.n_ahead:
        busiest = turns * share * computing + share * reading
    else:
        busiest = turns * share * (computing + reading)
    together = (computing + reading) / (pool.n_threads + pool.n_ahead)
    return rate.once + max(busiest, together, (computing + cpu) / pool.n_cores)


def _extra_seconds(
    work: PhaseCost, layout: Layout, n_candidates: int, n_clusters: int, pool: WorkerPool
) -> float:
    """Return the time for tasks, points that are sent and labels that are written."""
    if work.name in ("hold", "survey", "extract"):
        n_points = 0
    else:
        n_points = n_candidates if work.name == "loss" else n_clusters
    sent = 8 * n_points * layout.n_features * pool.n_workers * _SENT_SECONDS
    written = work.blocks * _WRITE_SECONDS / pool.n_threads if work.name == "assign" else 0.0
    return _PHASE_SECONDS + work.blocks * _TASK_SECONDS + sent + written


def _start_seconds(calibration: Calibration, pool: WorkerPool) -> float:
    """Return the time in which new workers load the kernels, limited by the cores."""
    seconds = min(max(calibration.load_seconds, _LEAST_START_SECONDS), _MOST_START_SECONDS)
    return seconds * max(1.0, pool.n_workers / pool.n_cores)


def _phase_bytes(plan: memory.MemoryPlan, name: str, worker: WorkerMemory) -> int:
    # holding reads blocks like the survey
    phase = plan.of("survey" if name == "hold" else name)
    return phase.worker_bytes(worker.n_threads, worker.n_ahead)


def _notes(config: ResolvedConfig, persisted: bool) -> list[str]:
    notes = []
    if config.asked.n_clusters is None:
        notes.append(
            f"the number of clusters is not given: planned as if each of the {config.n_candidates} "
            "candidates became one, which is far too many; give it (--clusters)"
        )
    if config.asked.refine.max_iter:
        notes.append("k-means may stop earlier than after all of its iterations")
    if persisted:
        notes.append("features are held in the workers' memory, and read from their store once")
    return notes
