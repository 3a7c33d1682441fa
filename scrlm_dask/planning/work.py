"""Predict the work of each phase: blocks, rows, bytes and FLOPs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from scrlm_dask.config import ResolvedConfig
from scrlm_dask.engine.block_layout import Layout
from scrlm_dask.engine.execution import Execution, blocks_with_rows
from scrlm_dask.engine.workers import WorkerMemory
from scrlm_dask.events import Planned
from scrlm_dask.kernels.distances.preprocessing import needs_moments
from scrlm_dask.kernels.randomness.sampling import Purpose, sample_rows, stream
from scrlm_dask.planning.memory import MemoryPlan

SAMPLE_ITERATIONS = 10
RADIUS_ROWS = 65_536  # rows whose distances determine the radius of a share of outliers


def block_samples(n_blocks: int, share: float | None, seed: int) -> Iterator[list[int]]:
    """Yield growing random samples of blocks, each a subset of the next; none has all blocks."""
    if share is None:
        return
    order = stream(seed, Purpose.BLOCK_SAMPLE).permutation(n_blocks)
    size = math.ceil(share * n_blocks)
    while size < n_blocks:
        yield sorted(int(i) for i in order[:size])
        size *= 2


_MOMENT_FLOPS = 4  # per number: add it to one sum and its squared deviation to another


@dataclass(frozen=True)
class PhaseCost:
    """Work of one execution of a phase; rows and bytes are counted as in `run.json`."""

    name: str
    blocks: int
    rows: int  # rows that are read
    computed_rows: int  # rows that are used in computations
    n_bytes: int
    flops: int  # for full matrix products; pruning needs fewer
    times: int = 1  # maximum number of executions
    from_store: bool = True  # False: blocks are in the workers' memory


def fit_costs(
    layout: Layout, config: ResolvedConfig, n_clusters: int | None, persisted: bool = False
) -> Iterator[PhaseCost]:
    """Yield the cost of the phases of a fit in order; without `n_clusters`, up to the extraction.

    If the features are `persisted`, they are read from their store only once, or twice if the scan
    decides whether there are k-means iterations.
    """
    asked, p = config.asked, layout.n_features
    late = persisted and asked.refine.max_iter == "auto"
    if persisted and not late:
        yield _pass_cost(layout, "hold", 0)
    cost = partial(_pass_cost, persisted=persisted and not late)
    if needs_moments(asked.first_preprocess):
        yield cost(layout, "survey", _MOMENT_FLOPS * p)
    else:
        yield cost(layout, "survey", 0, _survey_blocks(layout, config))
    if config.sample is None:
        yield from _loss(layout, config, n_clusters or 0, persisted)
    else:
        rows, judged = config.sample.rows, config.sample.judged
        flops = 2 * judged * config.sample.candidates * p
        yield PhaseCost("scan", 1, rows, judged, 0, flops, from_store=False)
    if n_clusters is None:
        return
    if late:
        yield _pass_cost(layout, "hold", 0)
        cost = partial(_pass_cost, persisted=True)
    larger, flops = layout.in_blocks_for(n_clusters), 2 * n_clusters * p
    if asked.polish:
        yield cost(larger, "polish", flops)
    if asked.most_iterations:
        for blocks in block_samples(larger.n_blocks, asked.refine.sample, asked.seed):
            yield cost(larger, "kmeans-step", flops, blocks, times=SAMPLE_ITERATIONS)
        yield cost(larger, "kmeans-step", flops, times=asked.most_iterations)
    if isinstance(asked.outlier_share, float):
        yield cost(larger, "radius", flops, computed_rows=min(layout.n_rows, RADIUS_ROWS))
    yield cost(larger, "assign", flops)


def kmeans_costs(layout: Layout, n_clusters: int, max_iter: int) -> Iterator[PhaseCost]:
    """Yield the cost of the phases of k-means after seeding, if all iterations run."""
    row_flops = 2 * n_clusters * layout.n_features
    yield _pass_cost(layout, "kmeans-step", row_flops, times=max_iter)
    yield _pass_cost(layout, "assign", row_flops)


def _survey_blocks(layout: Layout, config: ResolvedConfig) -> list[int]:
    if config.sample is not None:
        return _sample_blocks(layout, config, Purpose.SCAN_ROWS, config.sample.rows)
    return _sample_blocks(layout, config, Purpose.CANDIDATES, config.n_candidates)


def _loss(
    layout: Layout, config: ResolvedConfig, n_clusters: int, persisted: bool
) -> Iterator[PhaseCost]:
    """Yield the cost of the loss pass and of the extraction that follows it."""
    n, p, blocks = config.n_candidates, layout.n_features, None
    if not config.loss_on_all_rows:
        blocks = _sample_blocks(layout, config, Purpose.LOSS_ROWS, config.loss_rows)
    yield _pass_cost(layout, "loss", 2 * n * p, blocks, persisted, config.loss_rows)
    yield PhaseCost("extract", 1, n, n, 0, 2 * n * n_clusters * p, from_store=False)


def _pass_cost(
    layout: Layout,
    name: str,
    row_flops: int,
    blocks: list[int] | None = None,
    persisted: bool = False,
    computed_rows: int | None = None,
    times: int = 1,
) -> PhaseCost:
    """Return the cost of a pass over the given blocks, by default over all blocks."""
    numbers = range(layout.n_blocks) if blocks is None else blocks
    rows = layout.rows_in(numbers)
    computed = computed_rows or rows
    n_bytes, flops = rows * layout.row_bytes, computed * row_flops
    return PhaseCost(name, len(numbers), rows, computed, n_bytes, flops, times, not persisted)


def _sample_blocks(
    layout: Layout, config: ResolvedConfig, purpose: Purpose, size: int
) -> list[int]:
    rows = sample_rows(config.asked.seed, purpose, config.n_rows, size)
    return blocks_with_rows(rows, layout.block_rows)


def report_plan(
    execution: Execution,
    costs: Iterable[PhaseCost],
    memory: MemoryPlan,
    workers: Sequence[WorkerMemory],
) -> None:
    """Report the work of all phases, and the memory that the largest phase needs."""
    flops: dict[str, int] = {}
    row_flops: dict[str, float] = {}
    for phase in costs:
        flops[phase.name] = flops.get(phase.name, 0) + phase.times * phase.flops
        row_flops[phase.name] = phase.flops / max(phase.rows, 1)
    most = max(memory.worker_bytes(worker.n_threads, worker.n_ahead) for worker in workers)
    execution.emit(Planned(flops, row_flops, most, memory.client_bytes))
