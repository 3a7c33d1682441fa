"""What each phase of a fit reads and computes: counts, from the shape of the run alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from scrlm_dask.config import ResolvedConfig
from scrlm_dask.kernels.preprocessing import needs_moments
from scrlm_dask.kernels.sampling import Purpose, sample_rows
from scrlm_dask.passes.execution import blocks_holding
from scrlm_dask.passes.layout import Layout
from scrlm_dask.pipeline.refinement import SAMPLE_ITERATIONS, block_samples

_MOMENT_FLOPS = 4  # a number in a sum, and its squared distance from the mean in another


@dataclass(frozen=True)
class PhaseWork:
    """What a phase does each time. Rows and bytes are those that `run.json` will say."""

    name: str
    blocks: int
    rows: int  # that are read
    computed_rows: int
    n_bytes: int
    flops: int  # of whole matrix products: pruning takes fewer
    times: int = 1  # at most
    from_store: bool = True  # else the blocks are in the workers' memory


def fit_work(
    layout: Layout, config: ResolvedConfig, n_clusters: int, held: bool
) -> tuple[PhaseWork, ...]:
    """The phases of a fit in their order; with `held` features are read once and then held."""
    return tuple(_phases(layout, config, n_clusters, held))


def kmeans_work(layout: Layout, n_clusters: int, max_iter: int) -> tuple[PhaseWork, ...]:
    """What k-means does once it has begun, if it takes all of its iterations."""
    a_row = 2 * n_clusters * layout.n_features
    return (
        _over(layout, "kmeans-step", a_row, None, held=False, times=max_iter),
        _over(layout, "assign", a_row, None, held=False),
    )


def _phases(
    layout: Layout, config: ResolvedConfig, n_clusters: int, held: bool
) -> Iterator[PhaseWork]:
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


def _scan(layout: Layout, config: ResolvedConfig) -> Iterator[PhaseWork]:
    assert config.sample is not None
    rows = config.sample.judged
    flops = 2 * rows * config.sample.candidates * layout.n_features
    yield PhaseWork("scan", 1, config.sample.rows, rows, 0, flops, from_store=False)


def _loss(
    layout: Layout, config: ResolvedConfig, n_clusters: int, held: bool
) -> Iterator[PhaseWork]:
    n, p = config.n_candidates, layout.n_features
    blocks = None
    if not config.loss_on_all_rows:
        blocks = _touched(layout, config, Purpose.LOSS_ROWS, config.loss_rows)
    yield _over(layout, "loss", 2 * n * p, blocks, held, computed_rows=config.loss_rows)
    yield PhaseWork("extract", 1, n, n, 0, 2 * n * n_clusters * p, from_store=False)


def _over(
    layout: Layout,
    name: str,
    row_flops: int,
    blocks: list[int] | None,
    held: bool,
    computed_rows: int | None = None,
    times: int = 1,
) -> PhaseWork:
    """A pass over all blocks, or over some."""
    rows = layout.n_rows if blocks is None else layout.rows_in(blocks)
    computed = rows if computed_rows is None else computed_rows
    return PhaseWork(
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
    return blocks_holding(rows, layout.block_rows)
