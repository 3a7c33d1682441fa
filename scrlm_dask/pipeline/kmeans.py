"""Run k-means from features to labels: choose initial centers, iterate, label."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import dask.array as da
import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.config import KMEANS_ITERATIONS, KMeansConfig, as_config
from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.features import (
    Features,
    FeaturesLike,
    WeightsLike,
    as_features,
    as_weights,
    check_weights,
    replace_local_array,
)
from scrlm_dask.engine.threads import pinned_threads
from scrlm_dask.engine.workers import WorkerMemory, worker_memories
from scrlm_dask.errors import InputError
from scrlm_dask.events import CentersFound, Listener, Note, warn
from scrlm_dask.kernels.distances.points import LARGEST_SQ_NORM, prepare_points
from scrlm_dask.kernels.distances.preprocessing import AffineMap, fit_map, needs_moments
from scrlm_dask.kernels.kmeans import init
from scrlm_dask.kernels.randomness.sampling import Purpose, stream
from scrlm_dask.model import Model
from scrlm_dask.passes import seeding
from scrlm_dask.passes.assign import AssignedPart, assign_pass
from scrlm_dask.passes.lloyd import send_centers
from scrlm_dask.passes.survey import check_gathered, moments_of, survey_pass
from scrlm_dask.pipeline.lloyd_loop import refine
from scrlm_dask.pipeline.results import (
    build_model,
    report_sizes,
    warn_about_order,
    warn_about_zero_rows,
)
from scrlm_dask.planning.memory import check_kmeans_memory, kmeans_memory
from scrlm_dask.planning.persist import persist_or_stream
from scrlm_dask.planning.work import kmeans_costs, report_plan
from scrlm_dask.runs.lifecycle import ActiveRun, FitResult, RunTarget, open_run, prepare_target
from scrlm_dask.runs.record import IN_MEMORY, start_record
from scrlm_dask.storage.arrays import trace_node
from scrlm_dask.storage.feature_store import WEIGHTS
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.manifest import digest_arrays, short_digest
from scrlm_dask.storage.masks import remove_mask
from scrlm_dask.storage.model_store import files_of, load_model
from scrlm_dask.storage.npy_files import read_npy
from scrlm_dask.storage.outputs import check_not_inside
from scrlm_dask.storage.traces import Input, InputTrace, trace_array

CentersLike: TypeAlias = NDArray[Any] | Model | Place | None

# Time of k-means++ per draw and point, and in addition per feature (measured with 4 and 64).
_DRAW_SECONDS, _FEATURE_SECONDS = 1.2e-8, 1e-10


def kmeans(
    source: FeaturesLike,
    config: KMeansConfig | None = None,
    *,
    centers: CentersLike = None,
    sample_weight: WeightsLike = None,
    out: Place | None = None,
    overwrite: bool = False,
    collect_labels: bool = False,
    block_rows: int | None = None,
    storage_options: Options | None = None,
    listener: Listener = warn,
) -> FitResult:
    """Run k-means; each iteration reads the features once.

    The current Dask client runs the passes; without a client, threads of this process do.

    Parameters
    ----------
    source : str, Path, FeatureStore, zarr.Array, dask.array.Array or numpy.ndarray
        Features (rows, p). A path or URL must point to a features store or a Zarr array.
    config : KMeansConfig or None
        Number of clusters, initialization and stopping rules; None: the defaults.
    centers : numpy.ndarray of shape (k, p), Model, str, Path or None
        Initial centers for `init="given"`: an array, a model, or the path of a run, a model or a
        .npy file.
    sample_weight : array of shape (rows,), str, Path or None
        Weight of each row: an array, a .npy file or a Zarr array. None: all rows count equally.
    out : str, Path or None
        Run directory to write: model, labels and record. An unfinished run in this
        directory with the same settings is resumed. None: nothing is written.
    overwrite : bool
        Replace a run that exists at `out`.
    collect_labels : bool
        Return the labels of all rows as an array.
    block_rows : int or None
        Rows per block; None follows the chunks of the source.
    storage_options : dict or None
        fsspec options used to open URLs. They are neither printed nor saved.
    listener : callable
        Receives the events of the run (`scrlm_dask.events`); by default, warnings are emitted.

    Returns
    -------
    scrlm_dask.results.FitResult
        The model, the labels if they were collected, and the record of the run.

    Raises
    ------
    InputError
        If the features, weights, centers or parameters are invalid, or if the run does not fit in
        the memory of the workers.
    StoreError
        If an input cannot be read, or if `out` exists and can be neither resumed nor
        overwritten.
    ClusterError
        If the scheduler or its workers are lost.

    Examples
    --------
    >>> import scrlm_dask
    >>> result = scrlm_dask.kmeans("features.zarr", scrlm_dask.KMeansConfig(n_clusters=5))
    >>> result.model.centers.shape
    (5, 32)
    """
    job = prepare_kmeans(
        source,
        as_config(config, KMeansConfig),
        centers=centers,
        sample_weight=sample_weight,
        out=out,
        overwrite=overwrite,
        collect_labels=collect_labels,
        block_rows=block_rows,
        storage_options=storage_options,
    )
    return job.run(listener)


def prepare_kmeans(
    source: FeaturesLike,
    config: KMeansConfig,
    *,
    centers: CentersLike = None,
    sample_weight: WeightsLike = None,
    out: Place | None = None,
    overwrite: bool = False,
    collect_labels: bool = False,
    block_rows: int | None = None,
    storage_options: Options | None = None,
    workers: Sequence[WorkerMemory] = (),
) -> KMeansJob:
    """Validate a k-means run before workers are started or rows are read.

    `workers` describes the workers of the run, if they are already known, to check their memory.
    """
    features = as_features(source, block_rows, storage_options).in_blocks_for(config.n_clusters)
    sample_weight = replace_local_array(sample_weight)
    if out is not None:
        out = locate(out, storage_options)
        for what, place in (("the initial centers", centers), ("the weights", sample_weight)):
            if isinstance(place, str | Path | Location):
                check_not_inside(out, locate(place, storage_options), what)
    given = _read_given(centers, config, features, storage_options)
    if isinstance(sample_weight, str | Path | Location):
        sample_weight = locate(sample_weight, storage_options)
    check_weights(sample_weight, features)
    weights_at = sample_weight if isinstance(sample_weight, Location) else None
    weights_files = trace_node(WEIGHTS, weights_at)
    record = start_record(
        features,
        config,
        numbers={},
        inputs=_describe_inputs(centers, given, sample_weight, weights_files),
        block_rows=block_rows,
    )
    target = prepare_target(features, record, out, overwrite, collect_labels, storage_options)
    check_kmeans_memory(features.layout, config, workers)
    mapped = trace_array("the memory-mapped weights", sample_weight)
    inputs = InputTrace((*target.inputs.inputs, *weights_files, *mapped))
    return KMeansJob(replace(target, inputs=inputs), config, given, sample_weight)


@dataclass(frozen=True)
class KMeansJob:
    """A validated k-means run, ready to start."""

    target: RunTarget
    config: KMeansConfig
    given: NDArray[np.float64] | None  # initial centers (k, p)
    sample_weight: WeightsLike

    def run(self, listener: Listener = warn) -> FitResult:
        """Run k-means in the workers of the current client, or in threads of this process."""
        config, workers = self.config, worker_memories()
        self.target.inputs.check_at_start()
        weights = as_weights(self.sample_weight, self.target.features)
        check_kmeans_memory(self.target.features.layout, config, workers)
        with open_run(self.target, "k-means", listener) as run:
            if run.is_resumed:
                run.report_resumed()
            record = self.target.record
            if self.sample_weight is not None and record.features_shuffled:
                warn_about_order(run.execution, str(record.features.path), WEIGHTS)
            model, assigned, details = _run_algorithm(run, config, self.given, weights, workers)
            finished = run.finish(model, details)
            _warn_about_empty_clusters(run.execution, model)
        return FitResult(model, run.gather_labels(assigned), finished)


def _describe_inputs(
    centers: CentersLike,
    given: NDArray[np.float64] | None,
    weights: WeightsLike,
    weights_files: tuple[Input, ...],
) -> dict[str, Any]:
    """Return origin and digest of the initial centers and the sample weights, for the record."""
    inputs: dict[str, Any] = {}
    if centers is not None and given is not None:
        inputs |= {"centers": _origin(centers), "centers_digest": digest_arrays(given).hex()}
    for file in weights_files:  # at most one
        inputs |= {"sample_weight": file.location.url, "weights_digest": file.digest}
    if weights is not None and not weights_files:
        inputs |= {"sample_weight": IN_MEMORY}
    return inputs


def read_centers(path: Place, *, storage_options: Options | None = None) -> NDArray[Any]:
    """Read initial centers (k, p) from a run, a model or a .npy file."""
    location = locate(path, storage_options)
    is_file = location.url.endswith(".npy")
    traced = InputTrace(trace_node("the centers", location if is_file else files_of(location)))
    centers = read_npy(location, "the centers") if is_file else load_model(location).centers
    traced.check()  # a later change has no effect, because the centers are now in memory
    if centers.ndim != 2:
        raise InputError(
            f"the centers {location} must have shape (clusters, features), got {centers.shape}"
        )
    return centers


def _origin(centers: NDArray[Any] | Model | Place) -> str:
    """Return the origin of the initial centers, for the record."""
    if isinstance(centers, Model):
        return "model"
    return locate(centers).url if isinstance(centers, str | Path | Location) else IN_MEMORY


def _read_given(
    centers: CentersLike,
    config: KMeansConfig,
    features: Features,
    storage_options: Options | None,
) -> NDArray[np.float64] | None:
    """Read the given centers, if any; raise if they do not match the config or the features."""
    if config.n_clusters > features.n_rows:
        raise InputError(
            f"--clusters (n_clusters) must be at most {features.n_rows}, the number of rows of "
            f"{features.label}, got {config.n_clusters}"
        )
    if (centers is not None) != (config.init == "given"):
        given = "centers are given" if centers is not None else "no centers are given"
        raise InputError(
            f"init is {config.init!r}, but {given}; init 'given' requires centers, and no other "
            "init accepts them"
        )
    if centers is None:
        return None
    if isinstance(centers, str | Path | Location):
        centers = read_centers(centers, storage_options=storage_options)
    points = centers.centers if isinstance(centers, Model) else centers
    values = np.asarray(remove_mask(points, "the initial centers"))
    expected = (config.n_clusters, features.n_features)
    if values.shape != expected or values.dtype.kind not in "fiu":
        raise InputError(
            f"initial centers must be numbers of shape {expected}, for {expected[0]} clusters and "
            f"{expected[1]} features, got shape {values.shape} and dtype {values.dtype}"
        )
    values = values.astype(np.float64)
    if not (np.square(values).sum(axis=1) < LARGEST_SQ_NORM).all():
        raise InputError(
            "initial centers contain NaN, infinity or values whose square is too large for "
            "float32; use smaller, finite numbers"
        )
    return values


def _run_algorithm(
    run: ActiveRun,
    config: KMeansConfig,
    given: NDArray[np.float64] | None,
    weights: da.Array | None,
    workers: Sequence[WorkerMemory],
) -> tuple[Model, AssignedPart, dict[str, Any]]:
    """Choose initial centers, iterate, and label all rows once more with the final centers."""
    execution, features = run.execution, run.target.features
    plan = kmeans_memory(features.layout, config.n_clusters, len(workers), config.init)
    max_iter = config.lloyd.limit(KMEANS_ITERATIONS)
    reads = 2 + max_iter
    # the plan omits the choice of initial centers, which is cheap in comparison
    costs = kmeans_costs(features.layout, config.n_clusters, max_iter)
    report_plan(execution, costs, plan, workers)
    features = persist_or_stream(execution, features, plan, workers, config.lloyd.persist, reads)
    seeds = execution.checkpoints.load_or_compute(
        "seeding",
        (Seeding, AffineMap),
        partial(seed_centers, execution, features, config, given, weights),
    )
    execution.emit(CentersFound(len(seeds.centers)))
    sq_radius = config.sq_radius(features.n_features)
    refined = refine(
        execution,
        features,
        seeds.centers,
        seeds.affine,
        config.lloyd,
        sq_radius=sq_radius,
        prune=config.prune,
        seed=config.seed,
        began=run.began,
        weights=weights,
    )
    assigned = assign_pass(
        execution,
        features,
        send_centers(refined.centers, seeds.affine, quick_check=not config.margins),
        sq_radius,
        n_clusters=config.n_clusters,
        prune=config.prune,
        labels_at=run.open_labels_output(config.n_clusters, config.margins),
        margins=config.margins,
        collect=run.collects_labels,
        input_digest=short_digest(refined.centers, np.array(sq_radius)),
        weights=weights,
    )
    report_sizes(execution, assigned.sums, sq_radius)
    warn_about_zero_rows(execution, assigned.zero_rows, features.n_rows)
    model = build_model(refined.centers, assigned.sums, seeds.affine, config)
    origin = run.target.record.asked.inputs.get("centers")
    details = {
        "pruning": {"kmeans-step": refined.pruned.record(), "assign": assigned.pruned.record()},
        "init": seeds.record if origin is None else {"centers": origin},
        "kmeans": refined.record(),
        "plan": plan.record(workers),
    }
    return model, assigned, details


def _warn_about_empty_clusters(execution: Execution, model: Model) -> None:
    empty = int(np.count_nonzero(model.counts == 0))
    if empty:
        execution.emit(
            Note(
                f"{empty} of {model.n_clusters} clusters are empty: more iterations would move "
                "them to rows far from any center, unless there are fewer distinct rows than "
                "clusters",
                warning=True,
            )
        )


@dataclass(frozen=True)
class Seeding:
    """Initial centers, the preprocessing map used to find them, and details for the record."""

    centers: NDArray[np.float64]  # (k, p) in input units
    affine: AffineMap
    record: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Gathered:
    """Random rows, which stay on a worker, and the preprocessing map from the same pass."""

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
    """Return the `given` centers, or choose initial centers by the method in the config.

    If there are too few distinct rows, some centers are duplicates, whose clusters remain empty.
    """
    if given is not None:
        affine = _gather(execution, features, config, 0, weights).affine
        return Seeding(given.astype(np.float64), affine)
    methods: dict[str, Callable[..., Seeding]] = {
        "random": _random,
        "k-means++": _plus_plus,
        "k-means||": _parallel_init,
        "scrlm": _scrlm,
    }
    _warn_about_slow_init(execution, features, config)
    seeds = methods[config.init](execution, features, config, weights)
    shape = config.n_clusters, features.n_features
    return replace(seeds, centers=np.resize(seeds.centers, shape))


def _warn_about_slow_init(execution: Execution, features: Features, config: KMeansConfig) -> None:
    """Warn if k-means++, which every init except random uses, may take minutes."""
    n_rows, k = features.n_rows, config.n_clusters
    sizes = init.scrlm_sample_sizes(n_rows, features.n_features, k)
    n_points = {
        "k-means++": init.plus_plus_sample_rows(n_rows, k),
        "k-means||": min(n_rows, init.ROUNDS * init.OVERSAMPLING * k),
        "scrlm": len(init.RADIUS_LADDER) * sizes.candidates,
    }
    draws = init.plus_plus_draws(n_points.get(config.init, 0), k)
    minutes = draws * (_DRAW_SECONDS + features.n_features * _FEATURE_SECONDS) / 60.0
    if minutes > 1.0:
        text = (
            f"choosing {k} initial centers by {config.init} takes up to {minutes:.0f} minutes of "
            "CPU time, during which no block finishes (--stall-timeout); --init random (init) "
            "takes seconds"
        )
        execution.emit(Note(text, warning=True))


def _random(
    execution: Execution, features: Features, config: KMeansConfig, weights: da.Array | None
) -> Seeding:
    gathered = _gather(execution, features, config, config.n_clusters, weights)
    return Seeding(seeding.gather_rows(gathered.survey).astype(np.float64), gathered.affine)


def _plus_plus(
    execution: Execution, features: Features, config: KMeansConfig, weights: da.Array | None
) -> Seeding:
    """Run k-means++ on a sample of rows."""
    n_rows = init.plus_plus_sample_rows(features.n_rows, config.n_clusters)
    gathered = _gather(execution, features, config, n_rows, weights)
    with execution.phase("init", 1, gathered.n_rows, 0):
        centers = seeding.plus_plus_centers(
            gathered.survey, gathered.affine, config.n_clusters, config.seed
        )
    return Seeding(centers, gathered.affine, {"sampled_rows": gathered.n_rows})


def _scrlm(
    execution: Execution, features: Features, config: KMeansConfig, weights: da.Array | None
) -> Seeding:
    """Run SCRLM on a sample with several radii; take the centers nearest to held-out rows."""
    k, seed = config.n_clusters, config.seed
    sizes = init.scrlm_sample_sizes(features.n_rows, features.n_features, k)
    gathered = _gather(execution, features, config, sizes.rows, weights)
    survey, affine = gathered.survey, gathered.affine
    with execution.phase("init", 1, gathered.n_rows, 0):
        starts = seeding.scrlm_starts(survey, affine, k, sizes, seed)
        if not starts:  # identical rows give no scale for a radius
            return Seeding(seeding.plus_plus_centers(survey, affine, k, seed), affine)
    best = min(starts, key=lambda start: start.mean_sq_distance)
    record = {
        "sampled_rows": gathered.n_rows,
        "rho": best.rho,
        "extracted": best.extracted,
        "ladder": [start.record() for start in starts],
    }
    return Seeding(best.centers, affine, record)


def _parallel_init(
    execution: Execution, features: Features, config: KMeansConfig, weights: da.Array | None
) -> Seeding:
    """Run k-means||: draw rows by cost in a few rounds, then select k by weighted k-means++."""
    gathered = _gather(execution, features, config, 1, weights)
    affine, points = gathered.affine, seeding.gather_rows(gathered.survey)
    cover = seeding.cost_pass(execution, features, points, affine, 0, None, weights)
    rounds = 0
    for turn in range(init.ROUNDS):
        if not cover.total_cost > 0.0:
            break
        rounds += 1
        mean_draws = float(init.OVERSAMPLING * config.n_clusters)
        drawn = seeding.draw_pass(
            execution, features, cover, mean_draws, weights, config.seed, turn
        )
        if len(drawn.numbers) == 0:
            continue
        cover = seeding.cost_pass(
            execution, features, drawn.raw, affine, len(points), cover, weights
        )
        points = np.concatenate([points, drawn.raw])
    record = {"drawn_rows": len(points), "rounds": rounds}
    if len(points) <= config.n_clusters:
        return Seeding(points.astype(np.float64), affine, record)
    candidates = prepare_points(points, affine)
    rng = stream(config.seed, Purpose.INIT_CHOICES)
    with pinned_threads():  # bitwise reproducible on any number of cores
        picks = init.plus_plus(candidates, config.n_clusters, rng, cover.masses)
    return Seeding(points[picks].astype(np.float64), affine, record)


def _gather(
    execution: Execution,
    features: Features,
    config: KMeansConfig,
    n_rows: int,
    weights: da.Array | None,
) -> _Gathered:
    """Read random rows, and the moments that the preprocessing needs, if any, in one pass."""
    with_moments = needs_moments(config.preprocess)
    if n_rows == 0 and not with_moments:
        return _Gathered(None, fit_map(config.preprocess, features.n_features, None), 0)
    rows = seeding.choose_rows(config.seed, features.n_rows, n_rows, weights)
    survey = survey_pass(execution, features, rows, with_moments)
    moments = moments_of(survey) if with_moments else None
    affine = fit_map(config.preprocess, features.n_features, moments)
    check_gathered(survey, rows, affine, features.label)
    return _Gathered(survey, affine, len(rows))
