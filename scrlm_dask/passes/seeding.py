"""Initial centers of k-means: samples of rows, and the passes of k-means||."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import dask
import dask.array as da
import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.engine.execution import Columns, Execution, Pass, task
from scrlm_dask.engine.features import Features, column_of, extremes
from scrlm_dask.engine.tree_reduce import tree_reduce
from scrlm_dask.engine.workers import compute
from scrlm_dask.kernels.bandwidth.search import ScanSizes
from scrlm_dask.kernels.distances.points import Points, prepare_points
from scrlm_dask.kernels.distances.preprocessing import AffineMap, FloatArray
from scrlm_dask.kernels.kmeans import init
from scrlm_dask.kernels.randomness import sampling
from scrlm_dask.kernels.scrlm.loss import Losses
from scrlm_dask.passes.lloyd import send_centers
from scrlm_dask.passes.survey import Survey


@dataclass(frozen=True)
class CoverState:
    """Distance of each row to the nearest point drawn so far; the columns stay on the workers."""

    total_cost: float  # sum over rows of weight times squared distance
    masses: NDArray[np.float64]  # (points,) total weight of the rows nearest to each point
    columns: Columns  # `sq_distances` and `nearest`, one number per row


@dataclass(frozen=True)
class _CostPart:
    total_cost: float
    masses: NDArray[np.float64]


@dataclass(frozen=True)
class _CostBlock:
    part: _CostPart
    sq_distances: NDArray[np.float64]
    nearest: NDArray[np.int64]


def choose_rows(seed: int, n_rows: int, size: int, weights: da.Array | None) -> NDArray[np.int64]:
    """Draw a random sample, by weight if there are weights; return its row numbers, ascending."""
    if weights is None or _all_equal(weights):
        return sampling.sample_rows(seed, sampling.Purpose.INIT_ROWS, n_rows, size)
    starts = np.concatenate([[0], np.cumsum(weights.chunks[0])[:-1]])
    token = uuid4().hex
    parts = [
        dask.delayed(_weighted_part, pure=False)(
            block, int(start), size, seed, dask_key_name=(f"choose-{token}", i)
        )
        for i, (block, start) in enumerate(zip(weights.to_delayed().ravel(), starts, strict=True))
    ]
    total = tree_reduce(parts, _merge_weighted, "choose")
    keys, rows = compute(task("choose", _largest, total, size))[0]
    return np.sort(rows[np.isfinite(keys)])


def _all_equal(weights: da.Array) -> bool:
    """Return whether all weights are equal; rows are then drawn as without weights."""
    least, most = extremes(weights)
    return least == most


def plus_plus_centers(
    survey: Delayed, affine: AffineMap, n_clusters: int, seed: int
) -> NDArray[np.float64]:
    """Choose centers (k, p) among the gathered rows by k-means++, in one task on a worker."""
    centers = compute(task("init", _plus_plus, survey, affine, n_clusters, seed))[0]
    return np.asarray(centers)


def gather_rows(survey: Delayed) -> FloatArray:
    """Return the gathered rows (n, p) of a survey."""
    rows: FloatArray = compute(task("init", _gathered, survey))[0]
    return rows


def scrlm_starts(
    survey: Delayed, affine: AffineMap, n_clusters: int, sizes: ScanSizes, seed: int
) -> list[init.Start]:
    """Find initial centers by SCRLM on the gathered rows, for each trial radius.

    One task computes the losses for all radii, then one task per radius finds the centers.

    The result is empty if no two rows differ.
    """
    inputs = affine, n_clusters, sizes, seed
    trials = task("init", _trial_losses, survey, *inputs)
    numbers = range(len(init.RADIUS_LADDER))
    starts = [task("init", _start, survey, trials, number, *inputs) for number in numbers]
    return [start for start in compute(*starts) if start is not None]


def cost_pass(
    execution: Execution,
    features: Features,
    points: NDArray[Any],
    affine: AffineMap,
    first: int,
    before: CoverState | None,
    weights: da.Array | None,
) -> CoverState:
    """Return the distance of each row to the nearest point, after new points (m, p) are added.

    New points are numbered from `first` on; `before` is the state without the new points.
    """
    columns: dict[str, da.Array] = {} if weights is None else {"weights": weights}
    columns |= {} if before is None else before.columns
    broadcast = {"points": send_centers(points, affine), "first": first}
    result = execution.run_per_block(_COST, features, broadcast, columns=columns)
    sq_distances, nearest = result.per_block["sq_distances"], result.per_block["nearest"]
    return CoverState(
        result.total.total_cost,
        result.total.masses,
        {
            "sq_distances": column_of(sq_distances, features, None, np.float64),
            "nearest": column_of(nearest, features, None, np.int64),
        },
    )


def draw_pass(
    execution: Execution,
    features: Features,
    cover: CoverState,
    mean_draws: float,
    weights: da.Array | None,
    seed: int,
    turn: int,
) -> init.DrawnRows:
    """Draw rows with probability proportional to their weighted squared distance.

    `mean_draws` is the expected number of rows, and `turn` the number of the round.
    """
    columns = {"sq_distances": cover.columns["sq_distances"]}
    columns |= {} if weights is None else {"weights": weights}
    broadcast = {
        "mean_draws": mean_draws,
        "total_cost": cover.total_cost,
        "seed": seed,
        "turn": turn,
    }
    drawn: init.DrawnRows = execution.run(_DRAW, features, broadcast, columns=columns)
    return drawn


def _weighted_part(
    block: NDArray[np.float64], start: int, size: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    stop = start + len(block)
    keys = sampling.weighted_keys(
        block[:, 0], sampling.row_uniforms(seed, sampling.Purpose.INIT_ROWS, start, stop)
    )
    return _largest((keys, np.arange(start, stop, dtype=np.int64)), size)


def _merge_weighted(a: Any, b: Any) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    # All keys are kept until the end: a block has at most as many keys as the sample has rows.
    return np.concatenate([a[0], b[0]]), np.concatenate([a[1], b[1]])


def _largest(keyed: Any, size: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    keys, rows = keyed
    order = np.lexsort((rows, -keys))[:size]
    return keys[order], rows[order]


def _gathered(survey: Survey) -> FloatArray:
    return survey.gathered


def _plus_plus(
    survey: Survey, affine: AffineMap, n_clusters: int, seed: int
) -> NDArray[np.float64]:
    points = prepare_points(survey.gathered, affine)
    picks = init.plus_plus(points, n_clusters, sampling.stream(seed, sampling.Purpose.INIT_CHOICES))
    return points.raw[picks].astype(np.float64)


def _shuffled(survey: Survey, seed: int) -> Any:
    return survey.gathered[
        sampling.random_order(seed, sampling.Purpose.INIT_CHOICES, len(survey.gathered))
    ]


def _trial_losses(
    survey: Survey, affine: AffineMap, n_clusters: int, sizes: ScanSizes, seed: int
) -> list[tuple[float, Losses]]:
    """Return each squared trial radius with the losses of the candidates at this radius."""
    judged = _shuffled(survey, seed)[: sizes.judged]
    rng = sampling.stream(seed, sampling.Purpose.INIT_CHOICES, 1)
    sq_radii = init.radius_ladder(
        prepare_points(judged[: init.LADDER_ROWS], affine), n_clusters, rng
    )
    if len(sq_radii) == 0:
        return []
    losses = init.radius_losses(judged, sizes.candidates, affine, sq_radii)
    return list(zip(sq_radii.tolist(), losses, strict=True))


def _start(
    survey: Survey,
    trials: list[tuple[float, Losses]],
    number: int,
    affine: AffineMap,
    n_clusters: int,
    sizes: ScanSizes,
    seed: int,
) -> init.Start | None:
    """Return the centers found with trial radius `number`; None if there are fewer radii."""
    if number >= len(trials):
        return None
    sq_radius, losses = trials[number]
    rows = _shuffled(survey, seed)
    judged, held_out = rows[: sizes.judged], rows[sizes.judged :]
    return init.scrlm_start(judged, held_out, losses, affine, n_clusters, sq_radius, seed)


def _cost_part(
    block: NDArray[Any],
    start: int,
    points: Points,
    first: int,
    weights: NDArray[np.float64] | None = None,
    sq_distances: NDArray[np.float64] | None = None,
    nearest: NDArray[np.int64] | None = None,
) -> _CostBlock:
    before = None
    if sq_distances is not None and nearest is not None:
        before = init.RowCosts(sq_distances, nearest)
    costs = init.row_costs(block, points, first, before)
    masses = np.ones(len(block)) if weights is None else weights
    part = _CostPart(
        float((masses * costs.sq_distances).sum()),
        np.bincount(costs.nearest, masses, first + len(points.raw)).astype(np.float64),
    )
    return _CostBlock(part, costs.sq_distances, costs.nearest)


def _merge_costs(a: _CostPart, b: _CostPart) -> _CostPart:
    return _CostPart(a.total_cost + b.total_cost, a.masses + b.masses)


def _draw_part(
    block: NDArray[Any],
    start: int,
    sq_distances: NDArray[np.float64],
    mean_draws: float,
    total_cost: float,
    seed: int,
    turn: int,
    weights: NDArray[np.float64] | None = None,
) -> init.DrawnRows:
    masses = sq_distances if weights is None else weights * sq_distances
    uniforms = sampling.row_uniforms(
        seed, sampling.Purpose.INIT_ROUNDS, start, start + len(block), turn
    )
    return init.draw_rows(block, start, uniforms, masses, mean_draws, total_cost)


_COST = Pass("init-serve", _cost_part, _merge_costs, per_block=("sq_distances", "nearest"))
_DRAW = Pass("init-draw", _draw_part, init.merge_drawn)
