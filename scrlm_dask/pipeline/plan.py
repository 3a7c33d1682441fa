"""Plan a fit: predict computation, reads, memory and time of each phase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scrlm_dask.config import FitConfig, ResolvedConfig, as_config
from scrlm_dask.engine.block_layout import Layout
from scrlm_dask.engine.features import Features, FeaturesLike, as_features
from scrlm_dask.engine.workers import WorkerMemory, worker_memories
from scrlm_dask.planning import memory
from scrlm_dask.planning.calibration import Calibration, Rate, ReadRate, calibrate
from scrlm_dask.planning.persist import choose_persist
from scrlm_dask.planning.work import PhaseCost, fit_costs
from scrlm_dask.storage.locations import Options

# Overhead of a pass in addition to reading and computing, measured on a local cluster:
_PHASE_SECONDS = 0.1  # per pass: send the graph, and query the workers' memory at the end
_TASK_SECONDS = 0.004  # time of the scheduler per block
_WRITE_SECONDS = 0.02  # time to write the labels of a block
# Bounds of the startup time of a new worker. A shorter time is measured only in a process that has
# already loaded the kernels. A longer time includes their compilation, which happens only once.
_LEAST_START_SECONDS, _MOST_START_SECONDS = 0.5, 2.5
_SENT_SECONDS = 2e-9  # per byte of candidates or centers and per worker


@dataclass(frozen=True)
class WorkerPool:
    """Total threads and cores of all workers."""

    n_workers: int
    n_threads: int  # compute threads
    n_ahead: int  # prefetch threads
    n_cores: int  # shared by all threads


@dataclass(frozen=True)
class PhasePlan:
    """Predicted cost of a phase; all numbers except `times` are for one execution.

    Attributes
    ----------
    name : str
        Name of the phase.
    times : int
        Maximum number of executions.
    rows, bytes : int
        Rows and bytes to read.
    flops : int
        FLOPs of full matrix products; pruning needs fewer.
    worker_bytes : int
        Upper bound of the memory per worker, in bytes.
    seconds : float
        Predicted time in seconds.
    """

    name: str
    times: int
    rows: int
    bytes: int
    flops: int
    worker_bytes: int
    seconds: float


@dataclass(frozen=True)
class FitPlan:
    """Predicted cost of a fit, assuming that k-means runs all of its iterations.

    Attributes
    ----------
    rows, features, block_rows : int
        Shape of the features, and rows per block.
    candidates, clusters : int
        Number of candidates, and maximum number of clusters.
    workers : int
        Number of workers.
    threads : int
        Threads of the worker with the most threads.
    memory_limit : int or None
        Smallest memory limit of a worker, in bytes; None if there is no limit.
    phases : tuple of PhasePlan
        Cost of each phase.
    start_seconds : float
        Seconds until new workers have loaded the code.
    seconds : float
        Seconds of all phases, including `start_seconds`.
    bytes, flops : int
        Bytes to read and FLOPs, summed over all phases.
    worker_bytes, client_bytes : int
        Upper bounds of the memory of a worker and of the client, in bytes.
    held_bytes : int
        Size of the features that are persisted in the memory of the workers, in total.
    calibration_seconds : float
        Seconds spent on measuring kernels and reads.
    notes : tuple of str
        Remarks for the user.
    """

    rows: int
    features: int
    block_rows: int
    candidates: int
    clusters: int
    workers: int
    threads: int
    memory_limit: int | None
    phases: tuple[PhasePlan, ...]
    start_seconds: float
    seconds: float
    bytes: int
    flops: int
    worker_bytes: int
    client_bytes: int
    held_bytes: int
    calibration_seconds: float
    notes: tuple[str, ...]


def plan_fit(
    source: FeaturesLike,
    config: FitConfig | None = None,
    *,
    workers: Sequence[WorkerMemory] | None = None,
    n_cores: int | None = None,
    block_rows: int | None = None,
    storage_options: Options | None = None,
) -> FitPlan:
    """Predict time, memory, bytes and FLOPs of `fit` without running it.

    Kernels and reads are measured in this process for about two seconds.

    Parameters
    ----------
    source : str, Path, FeatureStore, zarr.Array, dask.array.Array or numpy.ndarray
        Features (rows, p). A path or URL must point to a features store or a Zarr array.
    config : FitConfig or None
        Parameters of the fit; None: the defaults.
    workers : sequence of scrlm_dask.results.WorkerMemory or None
        The workers to plan for; None: the workers of the current client.
    n_cores : int or None
        Cores that the workers share; None: one core per computing thread.
    block_rows : int or None
        Rows per block; None follows the chunks of the source.
    storage_options : dict or None
        fsspec options used to open URLs. They are neither printed nor saved.

    Returns
    -------
    scrlm_dask.results.FitPlan
        The prediction, in total and per phase.

    Raises
    ------
    InputError
        If the features or the parameters are invalid, or if the run does not fit in the memory of
        the workers.

    Examples
    --------
    >>> import scrlm_dask
    >>> config = scrlm_dask.FitConfig(rho=0.5, n_clusters=6)
    >>> plan = scrlm_dask.plan_fit("features.zarr", config)
    >>> [phase.name for phase in plan.phases]
    ['survey', 'loss', 'extract', 'assign']
    """
    config = as_config(config, FitConfig)
    job = prepare_plan(source, config, block_rows=block_rows, storage_options=storage_options)
    return job.run(worker_memories() if workers is None else workers, n_cores)


def prepare_plan(
    source: FeaturesLike,
    config: FitConfig,
    *,
    block_rows: int | None = None,
    storage_options: Options | None = None,
) -> PlanJob:
    """Validate the features and the config of a plan, before workers are started."""
    features = as_features(source, block_rows, storage_options)
    return PlanJob(features, config.resolve(features.n_rows))


@dataclass(frozen=True)
class PlanJob:
    """A validated request for a plan, ready to run."""

    features: Features
    config: ResolvedConfig

    def run(self, workers: Sequence[WorkerMemory], n_cores: int | None = None) -> FitPlan:
        """Measure kernels and reads, and return the plan of the fit for the given workers."""
        layout, config = self.features.layout, self.config
        memory.check_fit_memory(layout, config, memory.most_clusters(config), workers)
        # if the number of clusters is unknown, the number of candidates is an upper bound
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
) -> FitPlan:
    """Predict the cost of each phase of the fit, and combine the predictions into a plan."""
    refine, most_iterations = config.asked.refine, config.asked.most_iterations
    pool = worker_pool(workers, n_cores)
    memory_plan = memory.fit_memory(layout, config, n_clusters, len(workers))
    persisted = most_iterations > 0 and (
        choose_persist(layout, memory_plan, workers, refine.persist, 3 + most_iterations).persisted
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
    return FitPlan(
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
    """Add up the threads of the workers; `n_cores` is one per compute thread by default."""
    n_threads = sum(worker.n_threads for worker in workers)
    n_ahead = sum(worker.n_ahead for worker in workers)
    return WorkerPool(len(workers), n_threads, n_ahead, n_cores or n_threads)


def phase_seconds(
    work: PhaseCost, layout: Layout, rate: Rate, read: ReadRate, pool: WorkerPool
) -> float:
    """Return the seconds to read and compute the blocks of a phase with all threads.

    The slowest of three limits decides: the busiest compute thread, all threads together, or the
    cores, because reads also use CPU time. No thread computes before its first block is read.
    """
    n_bytes = work.n_bytes if work.from_store else 0
    reading, cpu = n_bytes * read.seconds, n_bytes * read.cpu_seconds
    computing = work.computed_rows * rate.row + work.blocks * rate.block
    share = min(1.0, layout.block_rows / max(work.rows, 1)) if work.blocks > 1 else 1.0
    turns = -(-work.blocks // pool.n_threads)  # blocks of the busiest thread
    if pool.n_ahead:
        busiest = turns * share * computing + share * reading
    else:
        busiest = turns * share * (computing + reading)
    together = (computing + reading) / (pool.n_threads + pool.n_ahead)
    return rate.once + max(busiest, together, (computing + cpu) / pool.n_cores)


def _extra_seconds(
    work: PhaseCost, layout: Layout, n_candidates: int, n_clusters: int, pool: WorkerPool
) -> float:
    """Return the seconds to schedule tasks, send candidates or centers, and write labels."""
    if work.name in ("hold", "survey", "extract"):
        n_points = 0
    else:
        n_points = n_candidates if work.name == "loss" else n_clusters
    sent = 8 * n_points * layout.n_features * pool.n_workers * _SENT_SECONDS
    written = work.blocks * _WRITE_SECONDS / pool.n_threads if work.name == "assign" else 0.0
    return _PHASE_SECONDS + work.blocks * _TASK_SECONDS + sent + written


def _start_seconds(calibration: Calibration, pool: WorkerPool) -> float:
    """Return the seconds that new workers, which share the cores, need to load the kernels."""
    seconds = min(max(calibration.load_seconds, _LEAST_START_SECONDS), _MOST_START_SECONDS)
    return seconds * max(1.0, pool.n_workers / pool.n_cores)


def _phase_bytes(plan: memory.MemoryPlan, name: str, worker: WorkerMemory) -> int:
    # the phase "hold" (persisting the features) needs the memory of the survey: both read blocks
    phase = plan.of("survey" if name == "hold" else name)
    return phase.worker_bytes(worker.n_threads, worker.n_ahead)


def _notes(config: ResolvedConfig, persisted: bool) -> list[str]:
    notes = []
    if config.asked.n_clusters is None:
        notes.append(
            "the number of clusters is not given: the plan assumes that each of the "
            f"{config.n_candidates} candidates becomes a cluster, which is far too many; set "
            "--clusters (n_clusters)"
        )
    if config.asked.refine.max_iter == "auto" and config.asked.most_iterations:
        notes.append("k-means runs only if the data shows no clear scale; --kmeans-iter 0 omits it")
    elif config.asked.most_iterations:
        notes.append("k-means may stop before the maximum number of iterations")
    if persisted:
        notes.append("features are kept in the workers' memory and read from their store once")
    return notes
