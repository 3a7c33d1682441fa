"""k-means from features to labels: seed, iterate, label."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from scrlm_dask.config import KMeansConfig
from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.features import (
    Features,
    FeaturesLike,
    WeightsLike,
    as_features,
    as_weights,
    check_weights,
)
from scrlm_dask.engine.workers import WorkerMemory, worker_memories
from scrlm_dask.errors import InputError
from scrlm_dask.events import CentersFound, Listener, Note, warn
from scrlm_dask.kernels.distances.points import LARGEST_SQ_NORM
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.model import Model
from scrlm_dask.passes.assign import AssignedPart, assign_pass
from scrlm_dask.passes.lloyd import send_centers
from scrlm_dask.pipeline.kmeans_init import Seeding, seed_centers
from scrlm_dask.pipeline.lloyd_loop import refine
from scrlm_dask.pipeline.results import RESUMED, build_model
from scrlm_dask.planning.memory import check_kmeans_memory, kmeans_memory
from scrlm_dask.planning.persist import place_features
from scrlm_dask.planning.work import report_kmeans_plan
from scrlm_dask.runs.lifecycle import (
    Fit,
    finish_run,
    gather_labels,
    open_labels_output,
    report_sizes,
    report_start,
)
from scrlm_dask.runs.record import IN_MEMORY, closing_record, opening_record
from scrlm_dask.runs.resume import (
    check_rewritten_features,
    check_run,
    check_still_owner,
    check_unchanged,
    open_run,
)
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.manifest import digest_arrays, short_digest
from scrlm_dask.storage.model_store import load_model
from scrlm_dask.storage.npy_files import read_npy
from scrlm_dask.storage.store_info import files_digest

CentersLike: TypeAlias = NDArray[Any] | Model | Place | None


def kmeans(
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
    listener: Listener = warn,
) -> Fit:
    """k-means on features. With `out`, model, labels and record go to that run directory.

    `centers` (k, p), a model or the path of one are where it begins when `config.init` is "given".
    `sample_weight` (rows,), an array or a file, says how much each row counts.
    `storage_options` open URLs; they are neither printed nor saved.
    """
    features = as_features(source, block_rows, storage_options)
    features = features.in_blocks_for(config.n_clusters)
    target = None if out is None else locate(out, storage_options)
    given = given_centers(centers, config, features, storage_options)
    weights = as_weights(sample_weight, features, storage_options)
    inputs = _inputs(centers, given, sample_weight, storage_options)
    check_kmeans_memory(features, config, worker_memories())
    record = _opening_record(features, config, block_rows, storage_options, inputs)
    with (
        open_run(features, target, overwrite, record, storage_options) as run,
        Execution(listener, run.checkpoint) as execution,
    ):
        report_start(execution, "k-means", features, run.directory)
        check_rewritten_features(execution, run, record, storage_options)
        if run.resumed:
            execution.emit(RESUMED)
        begin = time.perf_counter()
        labels_url = open_labels_output(run, features, config.margins)
        collect = collect_labels and labels_url is None
        model, assigned, pruning, details = _algorithm(
            execution, features, config, given, weights, labels_url, collect, begin
        )
        seconds = time.perf_counter() - begin
        record |= closing_record(model, execution, seconds, pruning) | details
        if centers is not None:
            record["init"] = {"centers": _origin(centers)}
        if run.directory is not None:
            check_unchanged(record, storage_options)
            check_still_owner(run.directory, record)
            finish_run(run.directory, model, record)
        _comment(execution, model)
    labels = gather_labels(assigned, labels_url) if collect_labels else None
    return Fit(model, labels, record)


def check_kmeans(
    source: FeaturesLike,
    config: KMeansConfig,
    out: Place,
    *,
    centers: CentersLike = None,
    sample_weight: WeightsLike = None,
    overwrite: bool = False,
    block_rows: int | None = None,
    storage_options: Options | None = None,
    workers: Sequence[WorkerMemory] = (),
) -> None:
    """Raise what `kmeans` would raise before it reads a row.

    `workers` are those that it would have, as far as they are known.
    """
    features = as_features(source, block_rows, storage_options)
    features = features.in_blocks_for(config.n_clusters)
    given = given_centers(centers, config, features, storage_options)
    check_weights(sample_weight, features, storage_options)
    inputs = _inputs(centers, given, sample_weight, storage_options)
    record = _opening_record(features, config, block_rows, storage_options, inputs)
    check_run(features, locate(out, storage_options), overwrite, record)
    check_kmeans_memory(features, config, workers)


def _opening_record(
    features: Features,
    config: KMeansConfig,
    block_rows: int | None,
    storage_options: Options | None,
    inputs: dict[str, Any],
) -> dict[str, Any]:
    return opening_record(
        features,
        config,
        {},
        block_rows=block_rows,
        storage_options=storage_options,
        inputs=inputs,
    )


def _inputs(
    centers: CentersLike,
    given: NDArray[np.float64] | None,
    weights: WeightsLike,
    storage_options: Options | None,
) -> dict[str, Any]:
    """Where centers and weights come from, and what they are known again by."""
    inputs: dict[str, Any] = {}
    if centers is not None and given is not None:
        inputs |= {"centers": _origin(centers), "centers_digest": digest_arrays(given).hex()}
    if isinstance(weights, str | Path | Location):
        place = locate(weights, storage_options)
        inputs |= {"sample_weight": place.url, "weights_digest": files_digest(place)}
    elif weights is not None:
        inputs |= {"sample_weight": IN_MEMORY}
    return inputs


def read_centers(path: Place, *, storage_options: Options | None = None) -> NDArray[Any]:
    """Centers (k, p) to begin with: those of a run or a model, or an array in a .npy file."""
    location = locate(path, storage_options)
    if location.url.endswith(".npy"):
        centers = read_npy(location, "the centers")
        if centers.ndim != 2:
            raise InputError(
                f"the centers {location} have the shape {centers.shape}; they are clusters x "
                "features"
            )
        return centers
    return load_model(location).centers


def _origin(centers: NDArray[Any] | Model | Place) -> str:
    """Where centers come from, for the record."""
    if isinstance(centers, Model):
        return "model"
    return locate(centers).url if isinstance(centers, str | Path | Location) else IN_MEMORY


def given_centers(
    centers: CentersLike,
    config: KMeansConfig,
    features: Features,
    storage_options: Options | None,
) -> NDArray[np.float64] | None:
    """The centers that the caller brings, checked against the config and the features."""
    if config.n_clusters > features.n_rows:
        raise InputError(
            f"{config.n_clusters} clusters are asked of {features.label}, which has "
            f"{features.n_rows} rows; ask for {features.n_rows} or fewer"
        )
    if (centers is not None) != (config.init == "given"):
        raise InputError(
            f"init is {config.init!r} and centers are {'' if centers is not None else 'not '}given;"
            " centers go with init 'given', and with no other"
        )
    if centers is None:
        return None
    if isinstance(centers, str | Path | Location):
        centers = read_centers(centers, storage_options=storage_options)
    values = np.asarray(centers.centers if isinstance(centers, Model) else centers)
    wanted = (config.n_clusters, features.n_features)
    if values.shape != wanted or values.dtype.kind not in "fiu":
        raise InputError(
            f"the centers to begin with have the shape {values.shape} and hold {values.dtype}; "
            f"{wanted[0]} clusters in {wanted[1]} features need numbers of the shape {wanted}"
        )
    values = values.astype(np.float64)
    if not (np.square(values).sum(axis=1) < LARGEST_SQ_NORM).all():
        raise InputError(
            "the centers to begin with hold NaN or infinity, or values too large for float32; "
            "give finite numbers"
        )
    return values


def _algorithm(
    execution: Execution,
    features: Features,
    config: KMeansConfig,
    given: NDArray[np.float64] | None,
    weights: da.Array | None,
    labels_url: Location | None,
    collect: bool,
    began: float,
) -> tuple[Model, AssignedPart, dict[str, Any], dict[str, Any]]:
    """Seed, iterate, and read once more, so that labels and centers agree."""
    workers = worker_memories()
    plan = kmeans_memory(features.layout, config.n_clusters, len(workers), config.init)
    reads = 2 + config.lloyd.max_iter
    report_kmeans_plan(execution, features.layout, config, plan, workers)
    features = place_features(execution, features, plan, workers, config.lloyd.persist, reads)
    seeding = execution.checkpoints.load_or_compute(
        "seeding",
        (Seeding, AffineMap),
        partial(seed_centers, execution, features, config, given, weights),
    )
    execution.emit(CentersFound(len(seeding.centers)))
    sq_radius = config.sq_radius(features.n_features)
    refined = refine(
        execution,
        features,
        seeding.centers,
        seeding.affine,
        config.lloyd,
        sq_radius=sq_radius,
        prune=config.prune,
        seed=config.seed,
        began=began,
        weights=weights,
    )
    assigned = assign_pass(
        execution,
        features,
        send_centers(refined.centers, seeding.affine, quick_check=not config.margins),
        sq_radius,
        n_clusters=config.n_clusters,
        prune=config.prune,
        labels_at=labels_url,
        margins=config.margins,
        collect=collect,
        input_digest=short_digest(refined.centers, np.array(sq_radius)),
        weights=weights,
    )
    report_sizes(execution, assigned.sums, sq_radius)
    model = build_model(refined.centers, assigned.sums, seeding.affine, config)
    most = max(workers, key=lambda worker: worker.n_threads)
    details = {
        "init": seeding.record,
        "kmeans": refined.record(),
        "plan": plan.record(most.n_threads, most.n_ahead),
    }
    pruning = {"kmeans-step": refined.pruned.record(), "assign": assigned.pruned.record()}
    return model, assigned, pruning, details


def _comment(execution: Execution, model: Model) -> None:
    empty = int(np.count_nonzero(model.counts == 0))
    if empty:
        execution.emit(
            Note(
                f"{empty} of {model.n_clusters} clusters are empty: more iterations would move "
                "them to badly served rows, unless fewer rows differ than there are clusters",
                warning=True,
            )
        )
