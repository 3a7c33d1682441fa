"""The loss pass, and the extraction of centers from its losses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.config import ResolvedConfig
from scrlm_dask.engine.execution import Execution, Pass, blocks_with_rows, task
from scrlm_dask.engine.features import Features
from scrlm_dask.engine.workers import compute
from scrlm_dask.kernels.distances.points import squared_radius
from scrlm_dask.kernels.distances.pruning import Prune, Pruned
from scrlm_dask.kernels.randomness.sampling import Purpose, rows_within, sample_rows
from scrlm_dask.kernels.scrlm.extraction import Extraction, extract_centers
from scrlm_dask.kernels.scrlm.loss import Losses, LossPart, loss_part, losses_of, merge_losses
from scrlm_dask.passes.survey import Candidates
from scrlm_dask.storage.manifest import short_digest


@dataclass(frozen=True)
class ExtractedCenters:
    """The extracted centers, as returned to the client: O(m p) memory."""

    centers: NDArray[Any]  # (m, p) in input units
    rows: NDArray[np.int64]  # (m,) their row numbers
    extraction: Extraction


@dataclass(frozen=True)
class LossResult:
    """Losses of the candidates for each rho, and counts of the pairs left after pruning."""

    losses: tuple[Losses, ...]
    pruned: Pruned


def loss_pass(
    execution: Execution,
    features: Features,
    candidates: Delayed,
    config: ResolvedConfig,
    rhos: Sequence[float],
) -> LossResult:
    """Compute losses and neighbor counts of the candidates over all rows, or over a random subset.

    One read of the features is enough for all of the ascending `rhos`.
    """
    asked = config.asked
    sq_radii = [squared_radius(rho, asked.F, features.n_features) for rho in rhos]
    blocks = subset = None
    if not config.loss_on_all_rows:
        drawn = asked.seed, Purpose.LOSS_ROWS, config.n_rows, config.loss_rows
        blocks = blocks_with_rows(sample_rows(*drawn), features.block_rows)
        subset = task("loss-rows", sample_rows, *drawn)
    part: LossPart = execution.run(
        _LOSS,
        features,
        {"candidates": candidates, "sq_radii": sq_radii, "prune": asked.prune, "subset": subset},
        blocks=blocks,
        input_digest=short_digest(np.array(sq_radii)),
    )
    return LossResult(losses_of(part, sq_radii, asked.F), part.pruned)


def extract(
    execution: Execution, candidates: Delayed, losses: Losses, config: ResolvedConfig
) -> ExtractedCenters:
    """Extract centers greedily, in one task on the worker that has the candidates."""
    with execution.phase("extract", 1, config.n_candidates, 0):
        extracted: ExtractedCenters
        (extracted,) = compute(task("extract", _extract, candidates, losses, config))
    return extracted


def _loss_part(
    block: NDArray[Any],
    start: int,
    candidates: Candidates,
    sq_radii: list[float],
    prune: Prune,
    subset: NDArray[np.int64] | None,
) -> LossPart:
    numbers = np.arange(start, start + len(block), dtype=np.int64)
    if subset is not None:
        numbers = rows_within(subset, start, start + len(block))
        block = block[numbers - start]
    return loss_part(block, numbers, candidates.points, candidates.rows, sq_radii, prune)


_LOSS = Pass("loss", _loss_part, merge_losses, checkpoint_types=(LossPart, Pruned))


def _extract(candidates: Candidates, losses: Losses, config: ResolvedConfig) -> ExtractedCenters:
    asked = config.asked
    extraction = extract_centers(
        candidates.points,
        candidates.rows,
        losses,
        asked.given_rho,
        asked.F,
        asked.n_clusters,
        asked.min_neighbors,
    )
    picks = extraction.picks
    return ExtractedCenters(candidates.points.raw[picks], candidates.rows[picks], extraction)
