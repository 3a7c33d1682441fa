"""The centers that k-means begins with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.config import KMeansConfig
from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.features import Features
from scrlm_dask.engine.threads import pinned_threads
from scrlm_dask.kernels.distances.points import prepare_points
from scrlm_dask.kernels.distances.preprocessing import AffineMap, fit_map, needs_moments
from scrlm_dask.kernels.kmeans import init
from scrlm_dask.kernels.randomness.sampling import Purpose, stream
from scrlm_dask.passes import seeding
from scrlm_dask.passes.survey import moments_of, survey_pass


@dataclass(frozen=True)
class Seeding:
    """Centers to begin with, the map they were found under, and what was looked at."""

    centers: NDArray[np.float64]  # (k, p) in input units
    affine: AffineMap
    record: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Gathered:
    """Random rows, with the workers, and the preprocessing map from the same read."""

    survey: Delayed
    affine: AffineMap
    n_rows: int


def seed_centers(
    execution: Execution,
    features: Features,
    config: KMeansConfig,
    given: NDArray[Any] | None,
    weights: da.Array | None,
) -> Seeding:
    """Centers by the way that the config names; `given` are those that the caller brings."""
    if given is not None:
        affine = _gather(execution, features, config, 0, weights).affine
        return Seeding(given.astype(np.float64), affine)
    ways: dict[str, Callable[..., Seeding]] = {
        "random": _random,
        "k-means++": _plus_plus,
        "k-means||": _parallel_init,
        "scrlm": _scrlm,
    }
    return ways[config.init](execution, features, config, weights)


def _random(
    execution: Execution, features: Features, config: KMeansConfig, weights: da.Array | None
) -> Seeding:
    gathered = _gather(execution, features, config, config.n_clusters, weights)
    return Seeding(
        _filled(seeding.gather_rows(gathered.survey), config.n_clusters), gathered.affine
    )


def _plus_plus(
    execution: Execution, features: Features, config: KMeansConfig, weights: da.Array | None
) -> Seeding:
    """k-means++ on a sample of rows."""
    wanted = init.plus_plus_sample_rows(features.n_rows, config.n_clusters)
    gathered = _gather(execution, features, config, wanted, weights)
    with execution.phase("init", 1, gathered.n_rows, 0):
        centers = seeding.plus_plus_centers(
            gathered.survey, gathered.affine, config.n_clusters, config.seed
        )
    centers = _filled(centers, config.n_clusters)
    return Seeding(centers, gathered.affine, {"sampled_rows": gathered.n_rows})


def _scrlm(
    execution: Execution, features: Features, config: KMeansConfig, weights: da.Array | None
) -> Seeding:
    """SCRLM on a sample of rows for a ladder of radii; the best on rows held out wins."""
    sizes = init.scrlm_sample_sizes(features.n_rows, features.n_features, config.n_clusters)
    gathered = _gather(execution, features, config, sizes.judged + sizes.held_out, weights)
    with execution.phase("init", 1, gathered.n_rows, 0):
        starts = seeding.scrlm_starts(
            gathered.survey, gathered.affine, config.n_clusters, sizes, config.seed
        )
        if not starts:  # rows that are all alike have no scale to choose a radius by
            centers = seeding.plus_plus_centers(
                gathered.survey, gathered.affine, config.n_clusters, config.seed
            )
            return Seeding(_filled(centers, config.n_clusters), gathered.affine)
    best = min(starts, key=lambda start: start.mean_sq_distance)
    record = {
        "sampled_rows": gathered.n_rows,
        "rho": best.rho,
        "extracted": best.extracted,
        "ladder": [
            {"rho": s.rho, "extracted": s.extracted, "mean_sq_distance": s.mean_sq_distance}
            for s in starts
        ],
    }
    return Seeding(_filled(best.centers, config.n_clusters), gathered.affine, record)


def _parallel_init(
    execution: Execution, features: Features, config: KMeansConfig, weights: da.Array | None
) -> Seeding:
    """k-means||: rounds of rows drawn by how badly they are served, then weighted k-means++."""
    gathered = _gather(execution, features, config, 1, weights)
    affine, points = gathered.affine, seeding.gather_rows(gathered.survey)
    service = seeding.cost_pass(execution, features, points, affine, 0, None, weights)
    rounds = 0
    for turn in range(init.ROUNDS):
        if not service.total_cost > 0.0:
            break
        rounds += 1
        mean_draws = float(init.OVERSAMPLING * config.n_clusters)
        drawn = seeding.draw_pass(
            execution, features, service, mean_draws, weights, config.seed, turn
        )
        if len(drawn.numbers) == 0:
            continue
        service = seeding.cost_pass(
            execution, features, drawn.raw, affine, len(points), service, weights
        )
        points = np.concatenate([points, drawn.raw])
    record = {"drawn_rows": len(points), "rounds": rounds}
    if len(points) <= config.n_clusters:
        return Seeding(_filled(points, config.n_clusters), affine, record)
    candidates = prepare_points(points, affine)
    rng = stream(config.seed, Purpose.INIT_CHOICES)
    with pinned_threads():  # the same bits, whatever the cores of this machine
        picks = init.plus_plus(candidates, config.n_clusters, rng, service.masses)
    return Seeding(points[picks].astype(np.float64), affine, record)


def _gather(
    execution: Execution,
    features: Features,
    config: KMeansConfig,
    n_rows: int,
    weights: da.Array | None,
) -> _Gathered:
    """One read: random rows, and the moments where the preprocessing needs them."""
    with_moments = needs_moments(config.preprocess)
    if n_rows == 0 and not with_moments:
        return _Gathered(None, fit_map(config.preprocess, features.n_features, None), 0)
    rows = seeding.choose_rows(config.seed, features.n_rows, n_rows, weights)
    survey = survey_pass(execution, features, rows, with_moments)
    moments = moments_of(survey) if with_moments else None
    return _Gathered(survey, fit_map(config.preprocess, features.n_features, moments), len(rows))


def _filled(centers: NDArray[Any], n_clusters: int) -> NDArray[np.float64]:
    """As many centers as asked for: where rows are too few, some twice; the second stays empty."""
    return np.resize(centers, (n_clusters, centers.shape[1])).astype(np.float64)
