"""The scan for rho: gather a sample of rows in one read, then search the sample in one task."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.choices import Preprocess
from scrlm_dask.config import ResolvedConfig
from scrlm_dask.engine.execution import Execution, task
from scrlm_dask.engine.features import Features
from scrlm_dask.engine.workers import compute
from scrlm_dask.kernels.bandwidth.search import SampleScan, ScanSizes, scan_sample
from scrlm_dask.kernels.distances.preprocessing import (
    AffineMap,
    fit_map,
    needs_moments,
    zero_rows,
)
from scrlm_dask.kernels.randomness.sampling import Purpose, random_order, sample_rows
from scrlm_dask.passes.survey import Survey, check_rows, moments_of, survey_pass

# Maps that preprocess="auto" compares; the first one is used if it shows a clear scale.
AUTO_MAPS: tuple[Preprocess, ...] = ("standardize", "l2", "center")


@dataclass(frozen=True)
class Scanned:
    """The result of the search; `rows` are the sample's row numbers in the order of the search."""

    scan: SampleScan | None  # None if the sample shows no scale
    rows: NDArray[np.int64]
    affine: AffineMap
    n_blocks: int  # number of blocks read
    zero_rows: int  # rows of the sample that contain only zeros


def scan_pass(
    execution: Execution,
    features: Features,
    config: ResolvedConfig,
    sizes: ScanSizes,
    blocks: list[int] | None = None,
) -> Scanned:
    """Read a sample of rows of all blocks, or of `blocks`, and find rho and centers on the sample.

    Rows are drawn by number, so the sample does not depend on the chunking. With `blocks`, it
    depends on the chunking, and the preprocessing map is fitted to these blocks alone.
    """
    asked = config.asked
    numbers = _row_numbers(features, blocks)
    drawn = sample_rows(asked.seed, Purpose.SCAN_ROWS, len(numbers), sizes.rows)
    rows = np.asarray(numbers[drawn] if isinstance(numbers, np.ndarray) else drawn)
    with_moments = needs_moments(asked.first_preprocess)
    survey = survey_pass(execution, features, rows, with_moments, blocks)
    moments = moments_of(survey) if with_moments else None
    kinds = AUTO_MAPS if asked.preprocess == "auto" else (asked.preprocess,)
    maps = [
        fit_map(kind, features.n_features, moments if needs_moments(kind) else None)
        for kind in kinds
    ]
    inputs = survey, maps, sizes, config, rows, features.label
    with execution.phase("scan", 1, len(rows), 0):
        scan, n_zero_rows = compute(task("scan", _scan, *inputs))[0]
    affine = maps[0] if scan is None else scan.affine
    order = random_order(asked.seed, Purpose.SCAN_ORDER, len(rows))
    n_blocks = features.n_blocks if blocks is None else len(blocks)
    return Scanned(scan, rows[order], affine, n_blocks, n_zero_rows)


def _row_numbers(features: Features, blocks: list[int] | None) -> range | NDArray[np.int64]:
    if blocks is None:
        return range(features.n_rows)
    size, n_rows = features.block_rows, features.n_rows
    starts = [block * size for block in blocks]
    return np.concatenate([np.arange(i, min(i + size, n_rows), dtype=np.int64) for i in starts])


def _scan(
    survey: Survey,
    maps: list[AffineMap],
    sizes: ScanSizes,
    config: ResolvedConfig,
    rows: NDArray[np.int64],
    label: str,
) -> tuple[SampleScan | None, int]:
    """Search the sample; return also the number of its rows of zeros."""
    asked = config.asked
    if len(maps) == 1:  # of several maps, those whose distances overflow are not tried
        check_rows(survey.gathered, rows, maps[0], label)
    order = random_order(asked.seed, Purpose.SCAN_ORDER, len(survey.gathered))
    scan = scan_sample(
        survey.gathered[order],
        maps,
        sizes,
        rho=None if isinstance(asked.rho, str) else asked.rho,
        F=asked.F,
        n_clusters=asked.n_clusters,
        min_neighbors=asked.min_neighbors,
        extraction=asked.extraction if asked.extraction in ("residual", "merge") else None,
        by_modularity=asked.extraction == "auto",
        keep_candidates=asked.n_candidates != "auto",
    )
    return scan, len(zero_rows(survey.gathered))
