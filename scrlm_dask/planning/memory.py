"""What each phase needs of a worker's memory, and of the client's: bounds, from counts alone.

A worker has its process, what it holds once (candidates or centers, labels between iterations), for
each thread that computes what that works with, and for each thread, also those that read ahead, a
block as it is read.
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
from scrlm_dask.engine.features import Features
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


_BLOCK_TASK_BYTES = 20_000  # what client and scheduler know of a block in a pass


@dataclass(frozen=True)
class PhaseMemory:
    """Bytes that a phase needs at its peak, beside the process."""

    name: str
    held_bytes: int  # once a worker
    thread_bytes: int  # a thread that computes
    block_bytes: int  # a thread, also one that reads ahead

    def worker_bytes(self, n_threads: int, n_ahead: int = 0) -> int:
        work = n_threads * self.thread_bytes + (n_threads + n_ahead) * self.block_bytes
        return PROCESS_BYTES + self.held_bytes + work


@dataclass(frozen=True)
class MemoryPlan:
    """What a run needs: a worker of the phase that needs most, and the client."""

    phases: tuple[PhaseMemory, ...]
    client_bytes: int

    def worker_bytes(self, n_threads: int, n_ahead: int = 0) -> int:
        return max(phase.worker_bytes(n_threads, n_ahead) for phase in self.phases)

    def of(self, name: str) -> PhaseMemory:
        return next(phase for phase in self.phases if phase.name == name)

    def record(self, n_threads: int, n_ahead: int) -> dict[str, Any]:
        """For `run.json`: what was planned for a worker of so many threads."""
        return {
            "worker_bytes": self.worker_bytes(n_threads, n_ahead),
            "client_bytes": self.client_bytes,
            "phases": {p.name: p.worker_bytes(n_threads, n_ahead) for p in self.phases},
        }


def fit_memory(
    layout: Layout, config: ResolvedConfig, n_clusters: int | None, n_workers: int
) -> MemoryPlan:
    """SCRLM. Without a number of clusters only what comes before there are any is planned."""
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
    """k-means, from the rows among which its first centers are looked for."""
    seeding = tuple(_seeding(layout, n_clusters, n_workers, init))
    phases = _lloyd(layout, n_clusters, n_workers), _with_centers("assign", layout, n_clusters)
    client = _client_bytes(layout, 0, n_clusters)
    if init == "k-means||":
        client += _thinning_bytes(layout, _most_drawn(n_clusters, ROUNDS))
    return MemoryPlan((*seeding, *phases), client)


def _seeding(layout: Layout, n_clusters: int, n_workers: int, init: Init) -> Iterator[PhaseMemory]:
    """The read that gathers rows, and what is made of them."""
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
    """k-means++ among rows: as they come, joined, and mapped, and a few draws' distances."""
    rows = n_rows * layout.n_features * (2 * _float_bytes(layout) + 4)
    return rows + _MOST_DRAWS * n_rows * 32


def _scrlm_seeding(layout: Layout, n_clusters: int) -> Iterator[PhaseMemory]:
    """Starts for a ladder of radii; each thread that tries one has its own copy of the sample."""
    sizes = scrlm_sample_sizes(layout.n_rows, layout.n_features, n_clusters)
    n, candidates = sizes.judged + sizes.held_out, sizes.candidates
    yield _survey(layout, n)
    sample = n * layout.n_features * _float_bytes(layout)
    ladder = 32 * PROBES * min(sizes.judged, LADDER_ROWS)  # before the first start
    probed = 32 * PROBES * candidates
    points = _point_bytes(layout, candidates, 0) + _tile_bytes(layout, max(candidates, n_clusters))
    centers = 6 * 8 * n_clusters * layout.n_features
    losses = 16 * candidates * len(RADIUS_LADDER)
    held, work = 2 * sample + ladder + losses, sample + probed + points + centers
    yield PhaseMemory("init", held, work, 0)


def _oversampling(layout: Layout, n_clusters: int, n_workers: int) -> Iterator[PhaseMemory]:
    """Rounds of k-means||: rows are served by the points of one, and drawn as those of the next."""
    drawn = _most_drawn(n_clusters, 1)
    # distance and nearest point of each row, of this round and of the one before
    columns = int(2 * 16 * layout.n_rows / n_workers / EVEN_SHARE)
    a_row = 64 * min(layout.block_rows, layout.n_rows)
    masses = (FAN_IN + 2) * 8 * _most_drawn(n_clusters, ROUNDS)
    held = columns + 2 * _point_bytes(layout, drawn, _float_bytes(layout))
    work = _tile_bytes(layout, drawn) + a_row + masses
    yield PhaseMemory("init-serve", held, work, layout.reading_bytes)
    gathered = 3 * drawn * (layout.n_features * _float_bytes(layout) + 8)
    yield PhaseMemory("init-draw", columns + gathered, a_row, layout.reading_bytes)


def _most_drawn(n_clusters: int, rounds: int) -> int:
    """Rows are drawn one by one: eight deviations above the mean, and the very first row."""
    mean = rounds * OVERSAMPLING * n_clusters
    return 1 + mean + int(8 * math.sqrt(mean))


def _subset_rows(config: ResolvedConfig) -> int:
    """Rows whose numbers client and workers hold, as the loss is not taken on all rows."""
    return 0 if config.sample is not None or config.loss_on_all_rows else config.loss_rows


def _survey(layout: Layout, n_candidates: int) -> PhaseMemory:
    # the parts of a merge, what is merged of them so far, and that with one more
    gathered = 3 * n_candidates * (layout.n_features * _float_bytes(layout) + 8)
    return PhaseMemory("survey", gathered, 0, layout.reading_bytes)


def _scan(layout: Layout, sizes: ScanSizes, merged: int) -> PhaseMemory:
    """The sample as it was gathered, in another order, mapped, and its distances.

    With candidates that may become more, and with the leaves of a merge: their costs and means.
    """
    candidates = min(sizes.judged, max(sizes.candidates, MOST_CANDIDATES))
    rows = sizes.rows * layout.n_features * (2 * _float_bytes(layout) + 8)
    distances = 4 * candidates * sizes.judged
    n_leaves = max(sizes.candidates, min(candidates, merged))
    leaves = n_leaves * (3 * 8 * n_leaves + 8 * 8 * layout.n_features)
    return PhaseMemory("scan", rows + distances + leaves, 0, 0)


def _loss(layout: Layout, n_candidates: int, subset_rows: int) -> PhaseMemory:
    subset = layout.block_bytes if subset_rows else 0  # a copy of its rows
    sums = (FAN_IN + 2) * 16 * n_candidates  # in hand, merged, and those that wait
    work = _tile_bytes(layout, n_candidates) + sums + subset
    # they come from the worker that made them, and are there twice until they are unpacked
    held = 2 * _point_bytes(layout, n_candidates, _float_bytes(layout)) + 8 * subset_rows
    return PhaseMemory("loss", held, work, layout.reading_bytes)


def _extract(layout: Layout, n_candidates: int) -> PhaseMemory:
    work = 6 * TOGETHER * AGAINST + 4 * (TOGETHER + AGAINST) * layout.n_features
    held = 2 * _point_bytes(layout, n_candidates, _float_bytes(layout))
    return PhaseMemory("extract", held, work, 0)


def _with_centers(name: str, layout: Layout, n_clusters: int) -> PhaseMemory:
    """A phase that compares rows with centers and sums them by cluster."""
    layout = layout.in_blocks_for(n_clusters)
    k, p = n_clusters, layout.n_features
    # in hand, merged, and those that wait: large ones are merged in pairs
    n_sums = fan_in_for(8 * k * p) + (1 if fan_in_for(8 * k * p) == 2 else 2)
    a_row = 64  # label, norm, distances and weight of a row, and what is written of them
    rows = min(layout.block_rows, layout.n_rows)
    work = _tile_bytes(layout, k) + n_sums * 8 * k * p + a_row * rows
    # as they come, in input units, and as points
    held = 8 * k * p + _point_bytes(layout, k, 8)
    return PhaseMemory(name, held, work, layout.reading_bytes)


def _lloyd(layout: Layout, n_clusters: int, n_workers: int) -> PhaseMemory:
    base = _with_centers("kmeans-step", layout, n_clusters)
    # of this iteration and of the one before
    labels = int(2 * 4 * layout.n_rows / n_workers / EVEN_SHARE)
    return replace(base, held_bytes=base.held_bytes + labels)


def _tile_bytes(layout: Layout, n_points: int) -> int:
    """Tiles of rows and their products, of shadows and of rows that shadows do not settle."""
    n, p = n_points, layout.n_features
    rows = tile_rows(n)
    products = 2 * 4 * rows * n
    # a piece of the block, those that wait to be settled, and those joined
    mapped = 3 * rows * p * (_float_bytes(layout) + 4)
    tried = TRIED_ROWS * n * 24
    # along the axes, or as many features as there may be
    shadows = 4 * n * p + 4 * p * (_axes(p) + 1)
    return products + mapped + tried + shadows + 64 * n


def _point_bytes(layout: Layout, n_points: int, float_bytes: int) -> int:
    """Points as they are, mapped, and along the axes."""
    p = layout.n_features
    each = p * (float_bytes + 4) + 4 * _axes(p) + 24
    return n_points * each + 4 * p * _axes(p)


def _axes(n_features: int) -> int:
    return min(MOST_AXES, n_features // 2)


def _float_bytes(layout: Layout) -> int:
    """Of a number once it is taken from the block."""
    return 8 if layout.itemsize > 4 else 4


def _client_bytes(layout: Layout, n_candidates: int, n_clusters: int) -> int:
    # centers and sums: before and after a step, in its graph, and as the model writes them
    centers = 10 * 8 * n_clusters * layout.n_features
    return CLIENT_BYTES + centers + 64 * n_candidates + _BLOCK_TASK_BYTES * layout.n_blocks


# Above this share of its limit Dask gives a worker no more tasks, and as the process keeps its
# memory for the next block, it would get none any more.
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

    `planned` says what the run needs for rows that are cut into blocks in one way or another.
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
    """Each setting by which alone the run would fit."""
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
    """Rows of the largest blocks that fit: whole chunks, or halves of one, or halves of those."""
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
    """Refuse a fit that does not fit its workers; without clusters, what comes before them."""
    words = f"a fit with {config.n_candidates} candidates"
    if n_clusters is not None:
        words += f" and {n_clusters} clusters"
    planned = partial(
        fit_memory, config=config, n_clusters=n_clusters, n_workers=max(1, len(workers))
    )
    check_memory(words, planned, layout, workers)


def most_clusters(config: ResolvedConfig) -> int | None:
    """As many as there can be; None where nobody said it."""
    asked = config.asked.n_clusters
    return None if asked is None else min(asked, config.n_candidates)


def check_kmeans_memory(
    features: Features, config: KMeansConfig, workers: Sequence[WorkerMemory]
) -> None:
    planned = partial(
        kmeans_memory,
        n_clusters=config.n_clusters,
        n_workers=max(1, len(workers)),
        init=config.init,
    )
    what = f"k-means with {config.n_clusters} clusters"
    check_memory(what, planned, features.layout, workers)
