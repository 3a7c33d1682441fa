"""Predict the memory of each phase, on workers and client: upper bounds, from counts alone.

A worker needs memory for its process, for what it keeps once (candidates or centers, labels between
iterations), for each computing thread, and for a block per thread, prefetching threads included.
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
from scrlm_dask.kernels.bandwidth.search import LEAVES_A_CLUSTER, MOST_CANDIDATES, ScanSizes
from scrlm_dask.kernels.distances.points import tile_rows
from scrlm_dask.kernels.distances.pruning import MOST_AXES, TRIED_ROWS
from scrlm_dask.kernels.kmeans.init import (
    LADDER_ROWS,
    OVERSAMPLING,
    PROBES,
    RADIUS_LADDER,
    ROUNDS,
    plus_plus_sample_rows,
    scrlm_sample_sizes,
)
from scrlm_dask.kernels.scrlm.extraction import AGAINST, TOGETHER

PROCESS_BYTES = 350 * 10**6  # Python, its libraries and compiled kernels before anything is read
# the client has no kernels at work, but the scheduler of a local cluster
CLIENT_BYTES = 330 * 10**6
EVEN_SHARE = 0.85  # workers do not get exactly equal shares of the blocks
_MOST_DRAWS = 24  # of k-means++ for a center: 2 + ln K
_BLOCK_TASK_BYTES = 20_000  # of client and scheduler, per block of a pass


@dataclass(frozen=True)
class PhaseMemory:
    """Bytes that a phase needs at its peak, in addition to the process."""

    name: str
    shared_bytes: int  # per worker
    thread_bytes: int  # per computing thread
    block_bytes: int  # per thread, also one that prefetches

    def worker_bytes(self, n_threads: int, n_ahead: int = 0) -> int:
        work = n_threads * self.thread_bytes + (n_threads + n_ahead) * self.block_bytes
        return PROCESS_BYTES + self.shared_bytes + work


@dataclass(frozen=True)
class MemoryPlan:
    """The memory of a run: of a worker in its largest phase, and of the client."""

    phases: tuple[PhaseMemory, ...]
    client_bytes: int

    def worker_bytes(self, n_threads: int, n_ahead: int = 0) -> int:
        return max(phase.worker_bytes(n_threads, n_ahead) for phase in self.phases)

    def of(self, name: str) -> PhaseMemory:
        return next(phase for phase in self.phases if phase.name == name)

    def record(self, n_threads: int, n_ahead: int) -> dict[str, Any]:
        """Return the entry of `run.json`: the plan of a worker with these threads."""
        return {
            "worker_bytes": self.worker_bytes(n_threads, n_ahead),
            "client_bytes": self.client_bytes,
            "phases": {p.name: p.worker_bytes(n_threads, n_ahead) for p in self.phases},
        }


def fit_memory(
    layout: Layout, config: ResolvedConfig, n_clusters: int | None, n_workers: int
) -> MemoryPlan:
    """Plan SCRLM; without `n_clusters`, only the phases before the extraction of centers."""
    n = config.n_candidates
    if config.sample is not None:
        merged = LEAVES_A_CLUSTER * (config.asked.n_clusters or 0)
        phases = [_survey(layout, config.sample.rows), _scan(layout, config.sample, merged)]
    else:
        phases = [_survey(layout, n), _loss(layout, n, _subset_rows(config))]
        phases.append(_extract(layout, n))
    client = _client_bytes(layout, n, n_clusters or 0) + 8 * _subset_rows(config)
    if n_clusters is not None:
        asked = config.asked
        if asked.polish:
            phases.append(_with_centers("polish", layout, n_clusters))
        if asked.refine.max_iter:
            phases.append(_lloyd(layout, n_clusters, n_workers))
        phases.append(_with_centers("assign", layout, n_clusters))
    return MemoryPlan(tuple(phases), client)


def kmeans_memory(
    layout: Layout, n_clusters: int, n_workers: int, init: Init = "given"
) -> MemoryPlan:
    """Plan k-means, including the sample from which the first centers are drawn."""
    seeding = tuple(_seeding(layout, n_clusters, n_workers, init))
    phases = _lloyd(layout, n_clusters, n_workers), _with_centers("assign", layout, n_clusters)
    client = _client_bytes(layout, 0, n_clusters)
    if init == "k-means||":
        client += _thinning_bytes(layout, _most_drawn(n_clusters, ROUNDS))
    return MemoryPlan((*seeding, *phases), client)


def _seeding(layout: Layout, n_clusters: int, n_workers: int, init: Init) -> Iterator[PhaseMemory]:
    """Plan the pass that gathers rows, and the seeding itself."""
    if init == "k-means++":
        rows = plus_plus_sample_rows(layout.n_rows, n_clusters)
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
    """k-means++ on gathered rows: received, concatenated and mapped, with distances per draw."""
    rows = n_rows * layout.n_features * (2 * _float_bytes(layout) + 4)
    return rows + _MOST_DRAWS * n_rows * 32


def _scrlm_seeding(layout: Layout, n_clusters: int) -> Iterator[PhaseMemory]:
    """Plan SCRLM seeding with several trial radii: one copy of the sample per thread."""
    sizes = scrlm_sample_sizes(layout.n_rows, layout.n_features, n_clusters)
    candidates = sizes.candidates
    yield _survey(layout, sizes.rows)
    sample = sizes.rows * layout.n_features * _float_bytes(layout)
    ladder = 32 * PROBES * min(sizes.judged, LADDER_ROWS)  # before the first start
    probed = 32 * PROBES * candidates
    points = _point_bytes(layout, candidates, 0) + _tile_bytes(layout, max(candidates, n_clusters))
    centers = 6 * 8 * n_clusters * layout.n_features
    losses = 16 * candidates * len(RADIUS_LADDER)
    shared, work = 2 * sample + ladder + losses, sample + probed + points + centers
    yield PhaseMemory("init", shared, work, 0)


def _oversampling(layout: Layout, n_clusters: int, n_workers: int) -> Iterator[PhaseMemory]:
    """Plan the rounds of k-means||: cost of each row, then the draw of the next points."""
    drawn = _most_drawn(n_clusters, 1)
    # distance and nearest point of each row, of this round and of the previous one
    columns = int(2 * 16 * layout.n_rows / n_workers / EVEN_SHARE)
    row_bytes = 64 * min(layout.block_rows, layout.n_rows)
    masses = (FAN_IN + 2) * 8 * _most_drawn(n_clusters, ROUNDS)
    shared = columns + 2 * _point_bytes(layout, drawn, _float_bytes(layout))
    work = _tile_bytes(layout, drawn) + row_bytes + masses
    yield PhaseMemory("init-serve", shared, work, layout.reading_bytes)
    gathered = 3 * drawn * (layout.n_features * _float_bytes(layout) + 8)
    yield PhaseMemory("init-draw", columns + gathered, row_bytes, layout.reading_bytes)


def _most_drawn(n_clusters: int, rounds: int) -> int:
    """Bound the number of drawn rows: eight deviations above the mean, plus the first row."""
    mean = rounds * OVERSAMPLING * n_clusters
    return 1 + mean + int(8 * math.sqrt(mean))


def _subset_rows(config: ResolvedConfig) -> int:
    """Return the rows of the loss if these are a subset, whose numbers every process has."""
    return 0 if config.sample is not None or config.loss_on_all_rows else config.loss_rows


def _survey(layout: Layout, n_candidates: int) -> PhaseMemory:
    # the parts of a merge, their sum so far, and the sum with the next part
    gathered = 3 * n_candidates * (layout.n_features * _float_bytes(layout) + 8)
    return PhaseMemory("survey", gathered, 0, layout.reading_bytes)


def _scan(layout: Layout, sizes: ScanSizes, merged: int) -> PhaseMemory:
    """The sample as gathered, reordered and mapped, and its distances.

    Includes the largest number of candidates, and the costs and means of the leaves of a merge.
    """
    candidates = min(sizes.judged, max(sizes.candidates, MOST_CANDIDATES))
    rows = sizes.rows * layout.n_features * (2 * _float_bytes(layout) + 8)
    distances = 4 * candidates * sizes.judged
    n_leaves = max(sizes.candidates, min(candidates, merged))
    leaves = n_leaves * (3 * 8 * n_leaves + 8 * 8 * layout.n_features)
    return PhaseMemory("scan", rows + distances + leaves, 0, 0)


def _loss(layout: Layout, n_candidates: int, subset_rows: int) -> PhaseMemory:
    subset = layout.block_bytes if subset_rows else 0  # a copy of its rows
    sums = (FAN_IN + 2) * 16 * n_candidates  # current, merged, and waiting to be merged
    work = _tile_bytes(layout, n_candidates) + sums + subset
    # twice: serialized and deserialized copies coexist during transfer
    shared = 2 * _point_bytes(layout, n_candidates, _float_bytes(layout)) + 8 * subset_rows
    return PhaseMemory("loss", shared, work, layout.reading_bytes)


def _extract(layout: Layout, n_candidates: int) -> PhaseMemory:
    work = 6 * TOGETHER * AGAINST + 4 * (TOGETHER + AGAINST) * layout.n_features
    shared = 2 * _point_bytes(layout, n_candidates, _float_bytes(layout))
    return PhaseMemory("extract", shared, work, 0)


def _with_centers(name: str, layout: Layout, n_clusters: int) -> PhaseMemory:
    """A phase that compares rows with centers and sums them by cluster."""
    layout = layout.in_blocks_for(n_clusters)
    k, p = n_clusters, layout.n_features
    # current, merged, and waiting to be merged: large ones are merged in pairs
    n_sums = fan_in_for(8 * k * p) + (1 if fan_in_for(8 * k * p) == 2 else 2)
    row_bytes = 64  # label, norm, distances and weight of a row, also as they are written
    rows = min(layout.block_rows, layout.n_rows)
    work = _tile_bytes(layout, k) + n_sums * 8 * k * p + row_bytes * rows
    # as received, in input units, and as points
    shared = 8 * k * p + _point_bytes(layout, k, 8)
    return PhaseMemory(name, shared, work, layout.reading_bytes)


def _lloyd(layout: Layout, n_clusters: int, n_workers: int) -> PhaseMemory:
    base = _with_centers("kmeans-step", layout, n_clusters)
    # of this iteration and of the previous one
    labels = int(2 * 4 * layout.n_rows / n_workers / EVEN_SHARE)
    return replace(base, shared_bytes=base.shared_bytes + labels)


def _tile_bytes(layout: Layout, n_points: int) -> int:
    """Tiles of rows and their products, also of projections and of rows they leave undecided."""
    n, p = n_points, layout.n_features
    rows = tile_rows(n)
    products = 2 * 4 * rows * n
    # a piece of the block, undecided rows, and these concatenated
    mapped = 3 * rows * p * (_float_bytes(layout) + 4)
    tried = TRIED_ROWS * n * 24
    # along the axes, or all features at most
    projections = 4 * n * p + 4 * p * (_axes(p) + 1)
    return products + mapped + tried + projections + 64 * n


def _point_bytes(layout: Layout, n_points: int, float_bytes: int) -> int:
    """Points in input units, mapped, and along the axes."""
    p = layout.n_features
    each = p * (float_bytes + 4) + 4 * _axes(p) + 24
    return n_points * each + 4 * p * _axes(p)


def _axes(n_features: int) -> int:
    return min(MOST_AXES, n_features // 2)


def _float_bytes(layout: Layout) -> int:
    """Return the size of a number once it is taken from the block."""
    return 8 if layout.itemsize > 4 else 4


def _client_bytes(layout: Layout, n_candidates: int, n_clusters: int) -> int:
    # centers and sums: before and after a step, in its graph, and in the model
    centers = 10 * 8 * n_clusters * layout.n_features
    return CLIENT_BYTES + centers + 64 * n_candidates + _BLOCK_TASK_BYTES * layout.n_blocks


# Above this share of its limit Dask pauses a worker. As the process keeps its memory for the next
# block, the worker would stay paused.
USABLE_SHARE = 0.8
_LEAST_BLOCK_ROWS = 1024  # smaller blocks cost more time than they are worth
_STEP = 10**7  # to which the memory limit is rounded


def fits(plan: MemoryPlan, worker: WorkerMemory) -> bool:
    need = plan.worker_bytes(worker.n_threads, worker.n_ahead)
    return worker.limit is None or need <= USABLE_SHARE * worker.limit


def check_memory(
    what: str,
    planned: Callable[[Layout], MemoryPlan],
    layout: Layout,
    workers: Sequence[WorkerMemory],
) -> None:
    """Refuse in the first second what would fail in the fourth hour.

    `planned` returns the memory of the run for a layout of blocks.
    """
    plan = planned(layout)
    for worker in workers:
        if worker.limit is None or fits(plan, worker):
            continue
        need = plan.worker_bytes(worker.n_threads, worker.n_ahead)
        ways = list(_ways_out(need, planned, layout, worker))
        *most, last = ways or ["it a machine with more memory"]
        raise InputError(
            f"{what} needs {need / 1e9:.2f} GB of a worker with {worker.n_threads} thread(s), "
            f"which may plan with {USABLE_SHARE:.0%} of its {worker.limit / 1e9:.2f} GB; give "
            f"{', '.join(most)}{' or ' if most else ''}{last}"
        )


def _ways_out(
    need: int, planned: Callable[[Layout], MemoryPlan], layout: Layout, worker: WorkerMemory
) -> Iterator[str]:
    """Yield each setting that alone would make the run fit."""
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
    """Return the rows of the largest blocks that fit: whole chunks, or 1/2, 1/4, ... of one."""
    chunk = layout.chunk_rows
    low, high = 0, (min(layout.block_rows, layout.n_rows) - 1) // chunk  # in chunks; low fits
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


def check_fit_memory(
    layout: Layout,
    config: ResolvedConfig,
    n_clusters: int | None,
    workers: Sequence[WorkerMemory],
) -> None:
    """Raise if a fit exceeds the workers' memory; without `n_clusters`, before extraction."""
    words = f"a fit with {config.n_candidates} candidates"
    if n_clusters is not None:
        words += f" and {n_clusters} clusters"
    planned = partial(
        fit_memory, config=config, n_clusters=n_clusters, n_workers=max(1, len(workers))
    )
    check_memory(words, planned, layout, workers)


def most_clusters(config: ResolvedConfig) -> int | None:
    """Return the largest possible number of clusters; None if it was not given."""
    n_clusters = config.asked.n_clusters
    return None if n_clusters is None else min(n_clusters, config.n_candidates)


def check_kmeans_memory(
    layout: Layout, config: KMeansConfig, workers: Sequence[WorkerMemory]
) -> None:
    planned = partial(
        kmeans_memory,
        n_clusters=config.n_clusters,
        n_workers=max(1, len(workers)),
        init=config.init,
    )
    what = f"k-means with {config.n_clusters} clusters"
    check_memory(what, planned, layout, workers)
