"""Predict upper bounds of the memory that each phase needs on a worker and on the client.

The bounds are computed from numbers such as rows, features and clusters; nothing is measured. A
worker needs memory for its process, for data that its threads share (candidates or centers, labels
between iterations), for each compute thread, and for a block per thread, including prefetch
threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from scrlm_dask.choices import Init
from scrlm_dask.config import KMeansConfig, ResolvedConfig
from scrlm_dask.engine.block_layout import Layout
from scrlm_dask.engine.tree_reduce import FAN_IN, fan_in_for
from scrlm_dask.engine.workers import WorkerMemory
from scrlm_dask.errors import InputError
from scrlm_dask.kernels.bandwidth.modularity import MOST_CUT, NULL_RANK, PART_ROWS
from scrlm_dask.kernels.bandwidth.search import LEAVES_A_CLUSTER, MOST_CANDIDATES, ScanSizes
from scrlm_dask.kernels.distances.points import tile_rows
from scrlm_dask.kernels.distances.pruning import MOST_AXES, TRIED_ROWS
from scrlm_dask.kernels.kmeans import init as seeding
from scrlm_dask.kernels.scrlm.extraction import AGAINST, TOGETHER

PROCESS_BYTES = 350 * 10**6  # Python, libraries and compiled kernels, before the first read
# The client does not run kernels, but may run the scheduler of a local cluster.
CLIENT_BYTES = 330 * 10**6
EVEN_SHARE = 0.85  # workers do not get exactly equal shares of the blocks
_MOST_DRAWS = 24  # upper bound of 2 + ln k, the number of draws of k-means++ per center
_TASK_BYTES = 20_000  # on the client and the scheduler, per block task of a pass


@dataclass(frozen=True)
class PhaseMemory:
    """Peak memory that a phase needs on a worker in addition to its process, in bytes."""

    name: str
    shared_bytes: int  # per worker
    thread_bytes: int  # per compute thread
    block_bytes: int  # per thread, including prefetch threads

    def worker_bytes(self, n_threads: int, n_ahead: int = 0) -> int:
        """Return the bytes that a worker with these compute and prefetch threads needs."""
        work = n_threads * self.thread_bytes + (n_threads + n_ahead) * self.block_bytes
        return PROCESS_BYTES + self.shared_bytes + work


@dataclass(frozen=True)
class MemoryPlan:
    """Memory that a run needs: on a worker in each phase, and on the client."""

    phases: tuple[PhaseMemory, ...]
    client_bytes: int

    def worker_bytes(self, n_threads: int, n_ahead: int = 0) -> int:
        """Return the bytes that a worker needs in the largest phase."""
        return max(phase.worker_bytes(n_threads, n_ahead) for phase in self.phases)

    def of(self, name: str) -> PhaseMemory:
        """Return the memory of the phase with this name."""
        return next(phase for phase in self.phases if phase.name == name)

    def record(self, workers: Sequence[WorkerMemory]) -> dict[str, Any]:
        """Return the entry of `run.json`: the bytes needed on the worker with the most threads."""
        most = max(workers, key=lambda worker: worker.n_threads)
        phases = {p.name: p.worker_bytes(most.n_threads, most.n_ahead) for p in self.phases}
        most_bytes = max(phases.values())
        return {"worker_bytes": most_bytes, "client_bytes": self.client_bytes, "phases": phases}


def fit_memory(
    layout: Layout, config: ResolvedConfig, n_clusters: int | None, n_workers: int
) -> MemoryPlan:
    """Plan the memory of SCRLM; without `n_clusters`, only of the phases up to the extraction."""
    asked, n, subset_rows = config.asked, config.n_candidates, 0
    if config.sample is not None:
        merged = LEAVES_A_CLUSTER * (asked.n_clusters or 0)
        phases = [_survey(layout, config.sample.rows), _scan(layout, config.sample, merged)]
    else:
        subset_rows = 0 if config.loss_on_all_rows else config.loss_rows
        phases = [_survey(layout, n), *_loss(layout, n, subset_rows)]
    if n_clusters is not None:
        step, assign = _with_centers(layout, n_clusters, n_workers)
        phases += [replace(assign, name="polish")] if asked.polish else []
        phases += [step] if asked.most_iterations else []
        phases += [replace(assign, name="radius")] if isinstance(asked.outlier_share, float) else []
        phases.append(assign)
    client = _client_bytes(layout, n_clusters or 0) + 64 * n + 8 * subset_rows
    return MemoryPlan(tuple(phases), client)


def kmeans_memory(
    layout: Layout, n_clusters: int, n_workers: int, init: Init = "given"
) -> MemoryPlan:
    """Plan the memory of k-means, including the choice of initial centers."""
    phases = (
        *_seeding(layout, n_clusters, n_workers, init),
        *_with_centers(layout, n_clusters, n_workers),
    )
    client = _client_bytes(layout, n_clusters)
    if init == "k-means||":
        client += _thinning_bytes(layout, _most_drawn(n_clusters, seeding.ROUNDS))
    return MemoryPlan(phases, client)


def _seeding(layout: Layout, n_clusters: int, n_workers: int, init: Init) -> Iterator[PhaseMemory]:
    """Plan the memory to gather rows and to choose initial centers among them."""
    if init == "k-means++":
        rows = seeding.plus_plus_sample_rows(layout.n_rows, n_clusters)
        yield _survey(layout, rows)
        yield PhaseMemory("init", _thinning_bytes(layout, rows), 0, 0)
    elif init == "scrlm":
        yield from _scrlm_seeding(layout, n_clusters)
    elif init == "k-means||":
        yield _survey(layout, 1)
        yield from _oversampling(layout, n_clusters, n_workers)
    else:
        yield _survey(layout, n_clusters if init == "random" else 0)


def _thinning_bytes(layout: Layout, n_rows: int) -> int:
    """Return the bytes of k-means++: three copies of the rows, and distances per draw."""
    # rows as received, concatenated, and mapped
    rows = n_rows * layout.n_features * (2 * layout.float_bytes + 4)
    return rows + _MOST_DRAWS * n_rows * 32


def _scrlm_seeding(layout: Layout, n_clusters: int) -> Iterator[PhaseMemory]:
    """Plan initial centers by SCRLM: each thread tries a radius on its copy of the sample."""
    sizes = seeding.scrlm_sample_sizes(layout.n_rows, layout.n_features, n_clusters)
    candidates = sizes.candidates
    yield _survey(layout, sizes.rows)
    sample = sizes.rows * layout.n_features * layout.float_bytes
    ladder = 32 * seeding.PROBES * min(sizes.judged, seeding.LADDER_ROWS)  # for the trial radii
    probed = 32 * seeding.PROBES * candidates
    points = _point_bytes(layout, candidates, 0) + _tile_bytes(layout, max(candidates, n_clusters))
    centers = 6 * 8 * n_clusters * layout.n_features
    losses = 16 * candidates * len(seeding.RADIUS_LADDER)
    shared, work = 2 * sample + ladder + losses, sample + probed + points + centers
    yield PhaseMemory("init", shared, work, 0)


def _oversampling(layout: Layout, n_clusters: int, n_workers: int) -> Iterator[PhaseMemory]:
    """Plan a round of k-means||: the pass that computes costs, then the pass that draws rows."""
    drawn = _most_drawn(n_clusters, 1)
    # distance and nearest point of each row, for this round and the previous round
    columns = int(2 * 16 * layout.n_rows / n_workers / EVEN_SHARE)
    row_bytes = 64 * layout.task_rows
    masses = (FAN_IN + 2) * 8 * _most_drawn(n_clusters, seeding.ROUNDS)
    shared = columns + 2 * _point_bytes(layout, drawn, layout.float_bytes)
    work = _tile_bytes(layout, drawn) + row_bytes + masses
    yield PhaseMemory("init-serve", shared, work, layout.reading_bytes)
    gathered = 3 * drawn * (layout.n_features * layout.float_bytes + 8)
    yield PhaseMemory("init-draw", columns + gathered, row_bytes, layout.reading_bytes)


def _most_drawn(n_clusters: int, rounds: int) -> int:
    """Return a bound on the number of drawn rows: mean + 8 standard deviations + the first row."""
    mean = rounds * seeding.OVERSAMPLING * n_clusters
    return 1 + mean + int(8 * math.sqrt(mean))


def _survey(layout: Layout, n_candidates: int) -> PhaseMemory:
    # three copies while parts are merged: the parts, the merged rows, and the next merge
    gathered = 3 * n_candidates * (layout.n_features * layout.float_bytes + 8)
    return PhaseMemory("survey", gathered, 0, layout.reading_bytes)


def _scan(layout: Layout, sizes: ScanSizes, merged: int) -> PhaseMemory:
    """Plan the scan: copies of the sample (gathered, reordered, mapped) and its distances.

    The plan assumes the largest number of candidates. It includes costs and means of the leaves of
    the tree, for the case that centers are merged.
    """
    candidates = min(sizes.judged, max(sizes.candidates, MOST_CANDIDATES))
    rows = sizes.rows * layout.n_features * (2 * layout.float_bytes + 8)
    n_leaves = max(sizes.candidates, min(candidates, merged))
    leaves = n_leaves * (3 * 8 * n_leaves + 8 * 8 * layout.n_features)
    distances = 4 * candidates * sizes.judged
    return PhaseMemory("scan", rows + distances + leaves + _null_bytes(layout, sizes), 0, 0)


def _null_bytes(layout: Layout, sizes: ScanSizes) -> int:
    """Return the bytes to compare the sample with the null, and to cut a tree of candidates."""
    part = min(sizes.judged, PART_ROWS)
    rows = part * (3 * 4 * layout.n_features + 4 * NULL_RANK)
    cuts = 2 * 4 * MOST_CUT * (sizes.judged + part)
    return rows + 3 * 4 * part * part // 4 + cuts


def _loss(layout: Layout, n_candidates: int, subset_rows: int) -> Iterator[PhaseMemory]:
    """Plan the memory of the loss pass, and of the extraction that follows it."""
    subset = layout.block_bytes if subset_rows else 0  # a copy of the rows in the subset
    sums = (FAN_IN + 2) * 16 * n_candidates  # sums of a block, merged sums, sums that wait
    work = _tile_bytes(layout, n_candidates) + sums + subset
    # two copies: serialized and deserialized points exist at the same time during transfer
    points = 2 * _point_bytes(layout, n_candidates, layout.float_bytes)
    # every worker also has the row numbers of the subset
    yield PhaseMemory("loss", points + 8 * subset_rows, work, layout.reading_bytes)
    work = 6 * TOGETHER * AGAINST + 4 * (TOGETHER + AGAINST) * layout.n_features
    yield PhaseMemory("extract", points, work, 0)


def _with_centers(
    layout: Layout, n_clusters: int, n_workers: int
) -> tuple[PhaseMemory, PhaseMemory]:
    """Plan the two phases that compare rows with centers: k-means iteration and assignment."""
    # labels of this iteration and of the previous iteration
    labels = int(2 * 4 * layout.n_rows / n_workers / EVEN_SHARE)
    layout = layout.in_blocks_for(n_clusters)
    sum_bytes = 8 * n_clusters * layout.n_features
    # sums of a block, merged sums, and sums that wait; large sums are merged in pairs
    n_sums = 3 if fan_in_for(sum_bytes) == 2 else FAN_IN + 2
    row_bytes = 64  # label, norm, distances and weight of a row, with the copies to write
    work = _tile_bytes(layout, n_clusters) + n_sums * sum_bytes + row_bytes * layout.task_rows
    # centers as received, in input units, and as prepared points
    shared = sum_bytes + _point_bytes(layout, n_clusters, 8)
    assign = PhaseMemory("assign", shared, work, layout.reading_bytes)
    return replace(assign, name="kmeans-step", shared_bytes=shared + labels), assign


def _tile_bytes(layout: Layout, n_points: int) -> int:
    """Return the bytes of a thread for a tile of rows, its products and its projections."""
    n, p = n_points, layout.n_features
    rows = tile_rows(n)
    products = 2 * 4 * rows * n
    # a slice of the block, rows that pruning has not decided, and their concatenation
    mapped = 3 * rows * p * (layout.float_bytes + 4)
    tried = TRIED_ROWS * n * 24
    # projections of the points; there are at most as many axes as features
    projections = 4 * n * p + 4 * p * (min(MOST_AXES, p // 2) + 1)
    return products + mapped + tried + projections + 64 * n


def _point_bytes(layout: Layout, n_points: int, float_bytes: int) -> int:
    """Return the bytes of points: in input units, mapped, and as coordinates along axes."""
    p = layout.n_features
    axes = min(MOST_AXES, p // 2)
    return n_points * (p * (float_bytes + 4) + 4 * axes + 24) + 4 * p * axes


def _client_bytes(layout: Layout, n_clusters: int) -> int:
    # copies of centers and sums: before and after a step, in its graph, and in the model
    centers = 10 * 8 * n_clusters * layout.n_features
    n_tasks = -(-layout.n_blocks // layout.blocks_per_task)
    return CLIENT_BYTES + centers + _TASK_BYTES * n_tasks


# Dask pauses a worker above this share of its memory limit. The worker would stay paused, because
# the process does not return its memory to the system between blocks.
USABLE_SHARE = 0.8
_LEAST_BLOCK_ROWS = 1024  # smaller blocks are too slow
_STEP = 10**7  # a suggested memory limit is rounded up to a multiple of this


def fits(plan: MemoryPlan, worker: WorkerMemory) -> bool:
    """Return whether a worker has enough memory for the plan."""
    need = plan.worker_bytes(worker.n_threads, worker.n_ahead)
    return worker.limit is None or need <= USABLE_SHARE * worker.limit


def check_fit_memory(
    layout: Layout,
    config: ResolvedConfig,
    n_clusters: int | None,
    workers: Sequence[WorkerMemory],
) -> MemoryPlan:
    """Return the memory plan of a fit; raise if a worker has too little memory.

    Without `n_clusters`, the plan ends with the extraction of centers.
    """
    n_workers = max(1, len(workers))
    planned = partial(fit_memory, config=config, n_clusters=n_clusters, n_workers=n_workers)
    plan = planned(layout)
    for worker in workers:
        if not fits(plan, worker):
            clusters = "" if n_clusters is None else f" and {n_clusters} clusters"
            run = f"a fit with {config.n_candidates} candidates{clusters}"
            raise _shortage(run, planned, layout, worker)
    return plan


def check_kmeans_memory(
    layout: Layout, config: KMeansConfig, workers: Sequence[WorkerMemory]
) -> MemoryPlan:
    """Return the memory plan of k-means; raise if a worker has too little memory."""
    k, n_workers = config.n_clusters, max(1, len(workers))
    planned = partial(kmeans_memory, n_clusters=k, n_workers=n_workers, init=config.init)
    plan = planned(layout)
    for worker in workers:
        if not fits(plan, worker):
            raise _shortage(f"k-means with {k} clusters", planned, layout, worker)
    return plan


def most_clusters(config: ResolvedConfig) -> int | None:
    """Return the largest possible number of clusters; None if `n_clusters` is not given."""
    n_clusters = config.asked.n_clusters
    return None if n_clusters is None else min(n_clusters, config.n_candidates)


def _shortage(
    run: str, planned: Callable[[Layout], MemoryPlan], layout: Layout, worker: WorkerMemory
) -> InputError:
    """Return the error for a worker with too little memory, with settings that would help.

    `planned` returns the memory plan of the run for a layout of blocks.
    """
    need = planned(layout).worker_bytes(worker.n_threads, worker.n_ahead)
    *most, last = [*_ways_out(need, planned, layout, worker)] or ["a machine with more memory"]
    return InputError(
        f"{run} needs {need / 1e9:.2f} GB on a worker with {worker.n_threads} thread(s), which "
        f"can use {USABLE_SHARE:.0%} of its {(worker.limit or 0) / 1e9:.2f} GB; use "
        f"{', '.join(most)}{' or ' if most else ''}{last}"
    )


def _ways_out(
    need: int, planned: Callable[[Layout], MemoryPlan], layout: Layout, worker: WorkerMemory
) -> Iterator[str]:
    """Yield each setting that alone would reduce the needed memory enough."""
    if worker.own_process:
        enough = -(-int(need / USABLE_SHARE) // _STEP) * _STEP
        yield f"more memory (--memory-limit {enough // 10**6}MB)"
    plan = planned(layout)
    for n_threads in range(worker.n_threads - 1, 0, -1):
        if fits(plan, replace(worker, n_threads=n_threads)):
            yield f"fewer threads (--nthreads {n_threads})"
            break
    block_rows = _smaller_blocks(planned, layout, worker)
    if block_rows is not None:
        yield f"smaller blocks (--block-rows {block_rows})"


def _smaller_blocks(
    planned: Callable[[Layout], MemoryPlan], layout: Layout, worker: WorkerMemory
) -> int | None:
    """Return the number of rows in the largest blocks that fit in memory; None if none fit.

    Blocks consist of whole chunks, or of 1/2, 1/4, ... of a chunk.
    """
    chunk = layout.chunk_rows
    low, high = 0, (min(layout.block_rows, layout.n_rows) - 1) // chunk  # in chunks; `low` fits
    while low < high:
        middle = -(-(low + high) // 2)
        if fits(planned(layout.cut_into(middle * chunk)), worker):
            low = middle
        else:
            high = middle - 1
    if low > 0:
        return low * chunk
    rows = min(chunk, layout.block_rows, layout.n_rows) // 2
    while rows >= _LEAST_BLOCK_ROWS:
        if fits(planned(layout.cut_into(rows)), worker):
            return rows
        rows //= 2
    return None
