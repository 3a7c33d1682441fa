"""Lloyd iterations over a features store until a rule says stop."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
    """Growing random samples of whole blocks, each within the next, up to but not all of them."""
    if share is None:
        return
    order = stream(seed, Purpose.BLOCK_SAMPLE).permutation(n_blocks)
    size = math.ceil(share * n_blocks)
    while size < n_blocks:
        yield sorted(int(i) for i in order[:size])
        size *= 2


_MOMENT_FLOPS = 4  # a number in a sum, and its squared distance from the mean in another


@dataclass(frozen=True)
class PhaseCost:
    """What a phase does each time. Rows and bytes are those that `run.json` will say."""

    name: str
    blocks: int
    rows: int  # that are read
    computed_rows: int
    n_bytes: int
    flops: int  # of whole matrix products: pruning takes fewer
    times: int = 1  # at most
    from_store: bool = True  # else the blocks are in the workers' memory


def fit_costs(
    layout: Layout, config: ResolvedConfig, n_clusters: int, held: bool
) -> tuple[PhaseCost, ...]:
    """The phases of a fit in their order; with `held` features are read once and then held."""
    return tuple(_phases(layout, config, n_clusters, held))


def kmeans_costs(layout: Layout, n_clusters: int, max_iter: int) -> tuple[PhaseCost, ...]:
    """What k-means does once it has begun, if it takes all of its iterations."""
    a_row = 2 * n_clusters * layout.n_features
    return (
        _over(layout, "kmeans-step", a_row, None, held=False, times=max_iter),
        _over(layout, "assign", a_row, None, held=False),
    )


def _phases(
    layout: Layout, config: ResolvedConfig, n_clusters: int, held: bool
) -> Iterator[PhaseCost]:
    asked, p = config.asked, layout.n_features
    if held:
        yield _over(layout, "hold", 0, None, held=False)
    moments = needs_moments(asked.preprocess)
    yield _over(
        layout,
        "survey",
        _MOMENT_FLOPS * p if moments else 0,
        None if moments else _surveyed(layout, config),
        held,
    )
    yield from _scan(layout, config) if asked.samples else _loss(layout, config, n_clusters, held)
    larger, a_row = layout.in_blocks_for(n_clusters), 2 * n_clusters * p
    if asked.polish:
        yield _over(larger, "polish", a_row, None, held)
    if asked.refine.max_iter:
        for blocks in block_samples(larger.n_blocks, asked.refine.sample, asked.seed):
            yield _over(larger, "kmeans-step", a_row, blocks, held, times=SAMPLE_ITERATIONS)
        yield _over(larger, "kmeans-step", a_row, None, held, times=asked.refine.max_iter)
    yield _over(larger, "assign", a_row, None, held)


def _surveyed(layout: Layout, config: ResolvedConfig) -> list[int]:
    if config.sample is not None:
        return _touched(layout, config, Purpose.SCAN_ROWS, config.sample.rows)
    return _touched(layout, config, Purpose.CANDIDATES, config.n_candidates)


def _scan(layout: Layout, config: ResolvedConfig) -> Iterator[PhaseCost]:
    assert config.sample is not None
    rows = config.sample.judged
    flops = 2 * rows * config.sample.candidates * layout.n_features
    yield PhaseCost("scan", 1, config.sample.rows, rows, 0, flops, from_store=False)


def _loss(
    layout: Layout, config: ResolvedConfig, n_clusters: int, held: bool
) -> Iterator[PhaseCost]:
    n, p = config.n_candidates, layout.n_features
    blocks = None
    if not config.loss_on_all_rows:
        blocks = _touched(layout, config, Purpose.LOSS_ROWS, config.loss_rows)
    yield _over(layout, "loss", 2 * n * p, blocks, held, computed_rows=config.loss_rows)
    yield PhaseCost("extract", 1, n, n, 0, 2 * n * n_clusters * p, from_store=False)


def _over(
    layout: Layout,
    name: str,
    row_flops: int,
    blocks: list[int] | None,
    held: bool,
    computed_rows: int | None = None,
    times: int = 1,
) -> PhaseCost:
    """A pass over all blocks, or over some."""
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
        from_store=not held,
    )


def _touched(layout: Layout, config: ResolvedConfig, purpose: Purpose, size: int) -> list[int]:
    rows = sample_rows(config.asked.seed, purpose, config.n_rows, size)
    return blocks_with_rows(rows, layout.block_rows)


def report_fit_plan(
    execution: Execution,
    layout: Layout,
    config: ResolvedConfig,
    n_clusters: int | None,
    workers: Sequence[WorkerMemory],
) -> None:
    """The phases of a fit; without clusters, those that come before there are any."""
    memory = fit_memory(layout, config, n_clusters, len(workers))
    work = fit_costs(layout, config, n_clusters or 0, held=False)
    known = [phase for phase in work if n_clusters is not None or phase.name in _BEFORE_CLUSTERS]
    execution.emit(_plan_event(known, memory, workers))


def report_kmeans_plan(
    execution: Execution,
    layout: Layout,
    config: KMeansConfig,
    memory: MemoryPlan,
    workers: Sequence[WorkerMemory],
) -> None:
    """The iterations and the labelling; how k-means begins is cheap beside them."""
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
