"""Where k-means begins: samples of rows, and the passes of k-means||."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import dask
import dask.array as da
import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.engine.execution import Columns, Execution, persist, task
from scrlm_dask.engine.features import Features, column_of
from scrlm_dask.engine.tree_reduce import tree_reduce
from scrlm_dask.kernels.distances.points import Points, prepare_points
from scrlm_dask.kernels.distances.preprocessing import AffineMap, FloatArray
from scrlm_dask.kernels.kmeans.init import (
    LADDER_ROWS,
    DrawnRows,
    RowCosts,
    SampleSizes,
    Start,
    draw_rows,
    merge_drawn,
    plus_plus,
    radius_ladder,
    radius_losses,
    row_costs,
    scrlm_start,
)
from scrlm_dask.kernels.randomness.sampling import (
    Purpose,
    random_order,
    row_uniforms,
    sample_rows,
    stream,
    weighted_keys,
)
from scrlm_dask.kernels.scrlm.loss import Losses
from scrlm_dask.passes.lloyd import send_centers
from scrlm_dask.passes.survey import Survey


@dataclass(frozen=True)
class CoverState:
    """How all rows are served by the points drawn so far; rows stay with the workers."""

    potential: float  # sum of weight times squared distance
    masses: NDArray[np.float64]  # (points,) weight of the rows that each point serves
    columns: Columns  # `sq_distances` and `nearest`, one a row


@dataclass(frozen=True)
class _CostPart:
    potential: float
    masses: NDArray[np.float64]


def choose_rows(seed: int, n_rows: int, size: int, weights: da.Array | None) -> NDArray[np.int64]:
    """Row numbers (rising) of a random sample, by weight where there are weights."""
    if weights is None or _alike(weights):
        return sample_rows(seed, Purpose.INIT_ROWS, n_rows, size)
    starts = np.concatenate([[0], np.cumsum(weights.chunks[0])[:-1]])
    token = uuid4().hex
    parts = [
        dask.delayed(_weighted_part, pure=False)(
            block, int(start), size, seed, dask_key_name=(f"choose-{token}", i)
        )
        for i, (block, start) in enumerate(zip(weights.to_delayed().ravel(), starts, strict=True))
    ]
    total = tree_reduce(parts, _merge_weighted, "choose")
    keys, rows = dask.compute(task("choose", _largest, total, size))[0]
    return np.sort(rows[np.isfinite(keys)])


def _alike(weights: da.Array) -> bool:
    """Whether no row counts more than another: then they are drawn as without weights."""
    least, most = dask.compute(weights.min(), weights.max())
    return bool(least == most)


def plus_plus_centers(
    survey: Delayed, affine: AffineMap, n_clusters: int, seed: int
) -> NDArray[np.float64]:
    """k-means++ among the gathered rows, as one task where they are."""
    found: NDArray[np.float64] = task(
        "init", _plus_plus, survey, affine, n_clusters, seed
    ).compute()
    return found


def gather_rows(survey: Delayed) -> FloatArray:
    rows: FloatArray = task("init", _gathered, survey).compute()
    return rows


def scrlm_starts(
    survey: Delayed, affine: AffineMap, n_clusters: int, sizes: SampleSizes, seed: int
) -> list[Start]:
    """SCRLM on the gathered rows for a ladder of radii: one loss for all, then a task each."""
    ladder = task("init", _ladder, survey, affine, n_clusters, sizes, seed).compute()
    if len(ladder) == 0:
        return []
    losses = persist(task("init", _losses, survey, affine, sizes, ladder, seed))
    tasks = [
        task("init", _start, survey, losses, r, affine, n_clusters, sizes, float(ladder[r]), seed)
        for r in range(len(ladder))
    ]
    return list(dask.compute(*tasks))


def cost_pass(
    execution: Execution,
    features: Features,
    points: NDArray[Any],
    affine: AffineMap,
    first: int,
    before: CoverState | None,
    weights: da.Array | None,
) -> CoverState:
    """Account for newly drawn points (m, p), numbered from `first` on, in one read."""
    columns: dict[str, da.Array] = {} if weights is None else {"weights": weights}
    columns |= {} if before is None else before.columns
    shared = {
        "points": send_centers(points, affine),
        "first": first,
    }
    parts = execution.parts("init-serve", features, _cost_part, None, columns, shared)
    token = uuid4().hex
    kept = {
        name: [
            dask.delayed(_kept, pure=False)(part, name, dask_key_name=(f"{name}-{token}", i))
            for i, part in enumerate(parts)
        ]
        for name in ("sq_distances", "nearest")
    }
    sums = [
        dask.delayed(_summed, pure=False)(part, dask_key_name=(f"served-{token}", i))
        for i, part in enumerate(parts)
    ]
    total = tree_reduce(sums, _merge_costs, "init-serve")
    with execution.reading("init-serve", features, None):
        total, *rows = dask.persist(total, *kept["sq_distances"], *kept["nearest"])
        found: _CostPart = total.compute()
    half = len(parts)
    return CoverState(
        found.potential,
        found.masses,
        {
            "sq_distances": column_of(rows[:half], features, None, np.float64),
            "nearest": column_of(rows[half:], features, None, np.int64),
        },
    )


def draw_pass(
    execution: Execution,
    features: Features,
    service: CoverState,
    mean_draws: float,
    weights: da.Array | None,
    seed: int,
    turn: int,
) -> DrawnRows:
    """Draw rows with a chance in proportion to how badly they are served."""
    columns = {"sq_distances": service.columns["sq_distances"]}
    columns |= {} if weights is None else {"weights": weights}
    drawn: DrawnRows = execution.map_reduce(
        "init-draw",
        features,
        _draw_part,
        merge_drawn,
        columns=columns,
        mean_draws=mean_draws,
        potential=service.potential,
        seed=seed,
        turn=turn,
    )
    return drawn


def _weighted_part(
    block: NDArray[np.float64], start: int, size: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    stop = start + len(block)
    keys = weighted_keys(block[:, 0], row_uniforms(seed, Purpose.INIT_ROWS, start, stop))
    return _largest((keys, np.arange(start, stop, dtype=np.int64)), size)


def _merge_weighted(a: Any, b: Any) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    # all are kept until the end: a block keeps no more than the whole sample's size
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
    picks = plus_plus(points, n_clusters, stream(seed, Purpose.INIT_CHOICES))
    return points.raw[picks].astype(np.float64)


def _shuffled(survey: Survey, seed: int) -> Any:
    return survey.gathered[random_order(seed, Purpose.INIT_CHOICES, len(survey.gathered))]


def _ladder(
    survey: Survey, affine: AffineMap, n_clusters: int, sizes: SampleSizes, seed: int
) -> NDArray[np.float64]:
    judged = _shuffled(survey, seed)[: min(sizes.judged, LADDER_ROWS)]
    points = prepare_points(judged, affine)
    return radius_ladder(points, n_clusters, stream(seed, Purpose.INIT_CHOICES, 1))


def _losses(
    survey: Survey, affine: AffineMap, sizes: SampleSizes, ladder: NDArray[np.float64], seed: int
) -> tuple[Losses, ...]:
    judged = _shuffled(survey, seed)[: sizes.judged]
    return radius_losses(judged, sizes.candidates, affine, ladder)


def _start(
    survey: Survey,
    losses: tuple[Losses, ...],
    rung: int,
    affine: AffineMap,
    n_clusters: int,
    sizes: SampleSizes,
    sq_radius: float,
    seed: int,
) -> Start:
    rows = _shuffled(survey, seed)
    return scrlm_start(
        rows[: sizes.judged],
        rows[sizes.judged :],
        losses[rung],
        affine,
        n_clusters,
        sq_radius,
        seed,
    )


def _cost_part(
    block: NDArray[Any],
    start: int,
    points: Points,
    first: int,
    weights: NDArray[np.float64] | None = None,
    sq_distances: NDArray[np.float64] | None = None,
    nearest: NDArray[np.int64] | None = None,
) -> tuple[_CostPart, RowCosts]:
    before = None
    if sq_distances is not None and nearest is not None:
        before = RowCosts(sq_distances, nearest)
    served = row_costs(block, points, first, before)
    masses = np.ones(len(block)) if weights is None else weights
    part = _CostPart(
        float((masses * served.sq_distances).sum()),
        np.bincount(served.nearest, masses, first + len(points.raw)).astype(np.float64),
    )
    return part, served


def _kept(found: tuple[_CostPart, RowCosts], name: str) -> NDArray[Any]:
    column: NDArray[Any] = getattr(found[1], name)[:, None]
    return column


def _summed(found: tuple[_CostPart, RowCosts]) -> _CostPart:
    return found[0]


def _merge_costs(a: _CostPart, b: _CostPart) -> _CostPart:
    return _CostPart(a.potential + b.potential, a.masses + b.masses)


def _draw_part(
    block: NDArray[Any],
    start: int,
    sq_distances: NDArray[np.float64],
    mean_draws: float,
    potential: float,
    seed: int,
    turn: int,
    weights: NDArray[np.float64] | None = None,
) -> DrawnRows:
    masses = sq_distances if weights is None else weights * sq_distances
    uniforms = row_uniforms(seed, Purpose.INIT_ROUNDS, start, start + len(block), turn)
    return draw_rows(block, start, uniforms, masses, mean_draws, potential)
