"""The survey: the first read. Moments of the features and the candidates' rows, in one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.engine.execution import Execution, blocks_holding, persist, task
from scrlm_dask.engine.features import Features
from scrlm_dask.errors import NonFiniteRowError
from scrlm_dask.kernels.distances.points import Points
from scrlm_dask.kernels.distances.preprocessing import (
    AffineMap,
    FloatArray,
    Moments,
    block_moments,
    merge_moments,
    native_float,
)
from scrlm_dask.kernels.distances.pruning import prepare_with_axes
from scrlm_dask.kernels.randomness.sampling import rows_within

_TOO_LARGE = 1e37  # a candidate near float32's end would take all rows with it


@dataclass(frozen=True)
class Survey:
    """What the first read found: a mergeable part."""

    moments: Moments | None
    gathered: FloatArray  # (n, p) the rows asked for, in row order


@dataclass(frozen=True)
class Candidates:
    """Candidate rows, ready for the loss. They live with the workers."""

    points: Points
    rows: NDArray[np.int64]  # (n,) their row numbers, rising


def survey_pass(
    execution: Execution,
    features: Features,
    rows: NDArray[np.int64],
    with_moments: bool,
    blocks: list[int] | None = None,
) -> Delayed:
    """Gather the given rows, and the moments if asked; without them only touched blocks are read.

    With `blocks` only those are read, moments or not. The result, a `Survey`, stays with the
    workers.
    """
    if blocks is None and not with_moments:
        blocks = blocks_holding(rows, features.block_rows)
    return execution.map_reduce(
        "survey",
        features,
        _survey_part,
        _merge,
        blocks=blocks,
        keep=True,
        kinds=(Survey, Moments),
        rows=task("candidate-rows", np.array, rows),
        with_moments=with_moments,
    )


def candidates_from(survey: Delayed, rows: NDArray[np.int64], affine: AffineMap) -> Delayed:
    """A task that makes `Candidates` of the gathered rows; recomputed if a worker is lost."""
    return persist(task("candidates", _candidates, survey, rows, affine))


def moments_of(survey: Delayed) -> Moments | None:
    moments: Moments | None = task("moments", _moments, survey).compute()
    return moments


def _survey_part(
    block: NDArray[Any], start: int, rows: NDArray[np.int64], with_moments: bool
) -> Survey:
    moments = block_moments(block) if with_moments else None
    here = rows_within(rows, start, start + len(block)) - start
    gathered = native_float(block[here])
    usable = (np.abs(gathered) < _TOO_LARGE).all(axis=1)  # NaN is not less, either
    if not usable.all():
        raise NonFiniteRowError(int(here[np.argmin(usable)]))
    return Survey(moments, gathered)


def _merge(a: Survey, b: Survey) -> Survey:
    moments = None
    if a.moments is not None and b.moments is not None:
        moments = merge_moments(a.moments, b.moments)
    return Survey(moments, np.concatenate([a.gathered, b.gathered]))


def _candidates(survey: Survey, rows: NDArray[np.int64], affine: AffineMap) -> Candidates:
    return Candidates(prepare_with_axes(survey.gathered, affine), rows)


def _moments(survey: Survey) -> Moments | None:
    return survey.moments
