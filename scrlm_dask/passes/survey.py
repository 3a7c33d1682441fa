"""The survey pass, the first read of the features: compute moments and gather given rows.

The given rows are, for example, the candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.engine.execution import Execution, Pass, blocks_with_rows, persist, task
from scrlm_dask.engine.features import Features
from scrlm_dask.engine.workers import compute
from scrlm_dask.errors import NonFiniteRowError
from scrlm_dask.kernels.distances import preprocessing
from scrlm_dask.kernels.distances.points import Points, check_sample
from scrlm_dask.kernels.distances.pruning import prepare_with_axes
from scrlm_dask.kernels.randomness.sampling import rows_within

_TOO_LARGE = 1e37  # a larger candidate would make the distances of all rows overflow


@dataclass(frozen=True)
class Survey:
    """Moments and gathered rows: a mergeable part."""

    moments: preprocessing.Moments | None
    gathered: preprocessing.FloatArray  # (n, p) the requested rows, in row order


@dataclass(frozen=True)
class Candidates:
    """Candidate rows, prepared for the loss; they stay on the workers."""

    points: Points
    rows: NDArray[np.int64]  # (n,) their row numbers, ascending


def survey_pass(
    execution: Execution,
    features: Features,
    rows: NDArray[np.int64],
    with_moments: bool,
    blocks: list[int] | None = None,
) -> Delayed:
    """Gather the given rows and, if requested, moments; return a `Survey` on the workers.

    With `blocks`, only these blocks are read. Otherwise all blocks are read for moments; without
    moments, only blocks that contain given rows.
    """
    if blocks is None and not with_moments:
        blocks = blocks_with_rows(rows, features.block_rows)
    broadcast = {"rows": task("candidate-rows", np.array, rows), "with_moments": with_moments}
    return execution.run(_SURVEY, features, broadcast, blocks=blocks, leave_on_workers=True)


def candidates_from(
    survey: Delayed, rows: NDArray[np.int64], affine: preprocessing.AffineMap
) -> Delayed:
    """Prepare the gathered rows as `Candidates` in a task; Dask repeats it if a worker is lost."""
    return persist(task("candidates", _candidates, survey, rows, affine))


def moments_of(survey: Delayed) -> preprocessing.Moments | None:
    """Return the moments of a survey; None if they were not computed."""
    moments: preprocessing.Moments | None = compute(task("moments", _moments, survey))[0]
    return moments


def check_gathered(
    survey: Delayed, rows: NDArray[np.int64], affine: preprocessing.AffineMap, label: str
) -> None:
    """Raise if distances of the gathered rows may overflow; `rows` are their row numbers."""
    compute(task("check", _check_gathered, survey, rows, affine, label))


def check_rows(
    gathered: preprocessing.FloatArray,
    rows: NDArray[np.int64],
    affine: preprocessing.AffineMap,
    label: str,
) -> None:
    """Raise `UnusableRowsError` if distances of the rows with the numbers `rows` may overflow."""
    try:
        check_sample(gathered, affine)
    except NonFiniteRowError as error:
        raise error.named(f"row {rows[error.row]} of {label}") from error


def _survey_part(
    block: NDArray[Any], start: int, rows: NDArray[np.int64], with_moments: bool
) -> Survey:
    moments = preprocessing.block_moments(block) if with_moments else None
    here = rows_within(rows, start, start + len(block)) - start
    gathered = preprocessing.native_float(block[here])
    usable = (np.abs(gathered) < _TOO_LARGE).all(axis=1)  # False for NaN
    if not usable.all():
        raise NonFiniteRowError(int(here[np.argmin(usable)]))
    return Survey(moments, gathered)


def _merge(a: Survey, b: Survey) -> Survey:
    moments = None
    if a.moments is not None and b.moments is not None:
        moments = preprocessing.merge_moments(a.moments, b.moments)
    return Survey(moments, np.concatenate([a.gathered, b.gathered]))


_SURVEY = Pass("survey", _survey_part, _merge, checkpoint_types=(Survey, preprocessing.Moments))


def _candidates(
    survey: Survey, rows: NDArray[np.int64], affine: preprocessing.AffineMap
) -> Candidates:
    return Candidates(prepare_with_axes(survey.gathered, affine), rows)


def _check_gathered(
    survey: Survey, rows: NDArray[np.int64], affine: preprocessing.AffineMap, label: str
) -> None:
    check_rows(survey.gathered, rows, affine, label)


def _moments(survey: Survey) -> preprocessing.Moments | None:
    return survey.moments
