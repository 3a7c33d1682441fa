"""Predict the work of each phase: blocks, rows, bytes and FLOPs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from scrlm_dask.config import KMeansConfig, ResolvedConfig
from scrlm_dask.engine.block_layout import Layout
from scrlm_dask.engine.execution import Execution, blocks_with_rows
from scrlm_dask.engine.workers import WorkerMemory
from scrlm_dask.events import Planned
from scrlm_dask.kernels.distances.preprocessing import needs_moments
from scrlm_dask.kernels.randomness.sampling import Purpose, sample_rows, stream
from scrlm_dask.planning.memory import MemoryPlan, fit_memory

SAMPLE_ITERATIONS = 10


def block_samples(n_blocks: int, share: float | None, seed: int) -> Iterator[list[int]]:
    """Yield growing random samples of blocks, each a subset of the next; never all blocks."""
    if share is None:
        return
    order = stream(seed, Purpose.BLOCK_SAMPLE).permutation(n_blocks)
    size = math.ceil(share * n_blocks)
    while size < n_blocks:
        yield sorted(int(i) for i in order[:size])
        size *= 2


_MOMENT_FLOPS = 4  # per number: add it to a sum, and its squared deviation to another


@dataclass(frozen=True)
class PhaseCost:
    """The work of a phase each time it runs; rows and bytes are those of `run.json`."""

    name: str
    blocks: int
    rows: int  # that are read
    computed_rows: int
    n_bytes: int
    flops: int  # of whole matrix products: pruning takes fewer
    times: int = 1  # at most
    from_store: bool = True  # else the blocks are in the workers' memory


def fit_costs(
    layout: Layout, config: ResolvedConfig, n_clusters: int, persisted: bool
) -> tuple[PhaseCost, ...]:
    """Return the phases of a fit in their order; `persisted` features are read from disk once."""
    return tuple(_phases(layout, config, n_clusters, persisted))


def kmeans_costs(layout: Layout, n_clusters: int, max_iter: int) -> tuple[PhaseCost, ...]:
    """Return the phases of k-means after seeding, if all iterations are run."""
    row_flops = 2 * n_clusters * layout.n_features
    return (
        _pass_cost(layout, "kmeans-step", row_flops, None, persisted=False, times=max_iter),
        _pass_cost(layout, "assign", row_flops, None, persisted=False),
    )


def _phases(
    layout: Layout, config: ResolvedConfig, n_clusters: int, persisted: bool
) -> Iterator[PhaseCost]:
    asked, p = config.asked, layout.n_features
    if persisted:
        yield _pass_cost(layout, "hold", 0, None, persisted=False)
    moments = needs_moments(asked.preprocess)
    yield _pass_cost(
        layout,
        "survey",
        _MOMENT_FLOPS * p if moments else 0,
        None if moments else _survey_blocks(layout, config),
        persisted,
    )
    if asked.samples:
        yield _scan(layout, config)
    else:
        yield from _loss(layout, config, n_clusters, persisted)
    larger, flops = layout.in_blocks_for(n_clusters), 2 * n_clusters * p
    if asked.polish:
        yield _pass_cost(larger, "polish", flops, None, persisted)
    if asked.refine.max_iter:
        step = partial(_pass_cost, larger, "kmeans-step", flops, persisted=persisted)
        for blocks in block_samples(larger.n_blocks, asked.refine.sample, asked.seed):
            yield step(blocks, times=SAMPLE_ITERATIONS)
        yield step(None, times=asked.refine.max_iter)
    yield _pass_cost(larger, "assign", flops, None, persisted)


def _survey_blocks(layout: Layout, config: ResolvedConfig) -> list[int]:
    if config.sample is not None:
        return _sample_blocks(layout, config, Purpose.SCAN_ROWS, config.sample.rows)
    return _sample_blocks(layout, config, Purpose.CANDIDATES, config.n_candidates)


def _scan(layout: Layout, config: ResolvedConfig) -> PhaseCost:
    assert config.sample is not None
    rows = config.sample.judged
    flops = 2 * rows * config.sample.candidates * layout.n_features
    return PhaseCost("scan", 1, config.sample.rows, rows, 0, flops, from_store=False)


def _loss(
    layout: Layout, config: ResolvedConfig, n_clusters: int, persisted: bool
) -> Iterator[PhaseCost]:
    n, p = config.n_candidates, layout.n_features
    blocks = None
    if not config.loss_on_all_rows:
        blocks = _sample_blocks(layout, config, Purpose.LOSS_ROWS, config.loss_rows)
    yield _pass_cost(layout, "loss", 2 * n * p, blocks, persisted, computed_rows=config.loss_rows)
    yield PhaseCost("extract", 1, n, n, 0, 2 * n * n_clusters * p, from_store=False)


def _pass_cost(
    layout: Layout,
    name: str,
    row_flops: int,
    blocks: list[int] | None,
    persisted: bool,
    computed_rows: int | None = None,
    times: int = 1,
) -> PhaseCost:
    """Return the cost of a pass over all blocks, or over some."""
    rows = layout.n_rows if blocks is None else layout.rows_in(blocks)
    computed = rows if computed_rows is None else computed_rows
    return PhaseCost(
        name,
        layout.n_blocks if blocks is None else len(blocks),
        rows,
        computed,
        rows * layout.row_bytes,
        computed * row_flops,
        times,
        from_store=not persisted,
    )


def _sample_blocks(
    layout: Layout, config: ResolvedConfig, purpose: Purpose, size: int
) -> list[int]:
    rows = sample_rows(config.asked.seed, purpose, config.n_rows, size)
    return blocks_with_rows(rows, layout.block_rows)


def report_fit_plan(
    execution: Execution,
    layout: Layout,
    config: ResolvedConfig,
    n_clusters: int | None,
    workers: Sequence[WorkerMemory],
) -> None:
    """Report the phases of a fit; without `n_clusters`, those before the extraction of centers."""
    memory = fit_memory(layout, config, n_clusters, len(workers))
    work = fit_costs(layout, config, n_clusters or 0, persisted=False)
    known = [phase for phase in work if n_clusters is not None or phase.name in _BEFORE_CLUSTERS]
    execution.emit(_plan_event(known, memory, workers))


def report_kmeans_plan(
    execution: Execution,
    layout: Layout,
    config: KMeansConfig,
    memory: MemoryPlan,
    workers: Sequence[WorkerMemory],
) -> None:
    """Report the iterations and the labelling; seeding is cheap in comparison."""
    work = kmeans_costs(layout, config.n_clusters, config.lloyd.max_iter)
    execution.emit(_plan_event(work, memory, workers))


_BEFORE_CLUSTERS = ("survey", "scan", "loss", "extract")


def _plan_event(
    work: Sequence[PhaseCost], memory: MemoryPlan, workers: Sequence[WorkerMemory]
) -> Planned:
    names = dict.fromkeys(phase.name for phase in work)
    flops = {name: sum(w.times * w.flops for w in work if w.name == name) for name in names}
    row_flops = {phase.name: phase.flops / max(phase.rows, 1) for phase in work}
    most = max(memory.worker_bytes(worker.n_threads, worker.n_ahead) for worker in workers)
    return Planned(flops, row_flops, most, memory.client_bytes)
