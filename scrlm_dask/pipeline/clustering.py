"""k-means from features to labels: seed, iterate, label."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from scrlm_dask.config import KMeansConfig
from scrlm_dask.errors import InputError
from scrlm_dask.events import Listener, Note, warn
from scrlm_dask.kernels.points import LARGEST_SQ_NORM
from scrlm_dask.model import Model
from scrlm_dask.passes.assign import AssignedPart, assign_pass
from scrlm_dask.passes.columns import WeightsLike, as_weights, check_weights
from scrlm_dask.passes.execution import Execution
from scrlm_dask.passes.features import Features, FeaturesLike, as_features
from scrlm_dask.passes.lloyd import send_centers
from scrlm_dask.pipeline.memory import check_memory, place_features, plan_memory
from scrlm_dask.pipeline.models import model_from
from scrlm_dask.pipeline.records import closing_record, opening_record
from scrlm_dask.pipeline.refinement import refine
from scrlm_dask.pipeline.results import Fit, begin_run, finish_run, joined_labels
from scrlm_dask.pipeline.seeding import seed_centers
from scrlm_dask.storage.labels import create_labels_store
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.models import load_model
from scrlm_dask.storage.npy import read_npy
from scrlm_dask.storage.outputs import RUN_KIND, check_apart, check_way

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
    record = opening_record(features, asdict(config))
    with ExitStack() as undo, Execution(listener) as execution:
        run = begin_run(features, target, overwrite, record, undo)
        begin = time.perf_counter()
        labels_url = None
        if run is not None:
            labels_url = create_labels_store(run.labels, features.n_rows, features.block_rows)
        model, assigned, details = _algorithm(
            execution, features, config, given, weights, labels_url, collect_labels, begin
        )
        record |= closing_record(model, execution, time.perf_counter() - begin) | details
        if run is not None:
            finish_run(run, model, record)
        undo.pop_all()
        _comment(execution, model)
    return Fit(model, joined_labels(assigned, collect_labels), record)


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
) -> None:
    """Raise what `kmeans` would raise before it reads a row."""
    features = as_features(source, block_rows, storage_options)
    target = locate(out, storage_options)
    given_centers(centers, config, features, storage_options)
    check_weights(sample_weight, features, storage_options)
    check_apart(target, features.path)
    check_way(target, overwrite, RUN_KIND)


def read_centers(path: Place, *, storage_options: Options | None = None) -> NDArray[Any]:
    """Centers (k, p) to begin with: those of a run or a model, or an array in a .npy file."""
    location = locate(path, storage_options)
    if location.url.endswith(".npy"):
        return read_npy(location, "the centers")
    return load_model(location).centers


def given_centers(
    centers: CentersLike,
    config: KMeansConfig,
    features: Features,
    storage_options: Options | None,
) -> NDArray[np.float64] | None:
    """The centers that the caller brings, checked against the config and the features."""
    if config.n_clusters > features.n_rows:
        raise InputError(
            f"{config.n_clusters} clusters are asked of {features.what}, which has "
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
) -> tuple[Model, AssignedPart, dict[str, Any]]:
    """Seed, iterate, and read once more, so that labels and centers agree."""
    plan = plan_memory(features, config.n_clusters)
    check_memory(plan, config.n_clusters)
    reads = 2 + config.lloyd.max_iter
    features = place_features(execution, features, plan, config.lloyd.persist, reads)
    seeding = seed_centers(execution, features, config, given, weights)
    sq_radius = config.sq_radius(features.n_features)
    refined = refine(
        execution,
        features,
        seeding.centers,
        seeding.affine,
        config.lloyd,
        sq_radius=sq_radius,
        seed=config.seed,
        began=began,
        weights=weights,
    )
    assigned = assign_pass(
        execution,
        features,
        send_centers(refined.centers, seeding.affine),
        sq_radius,
        n_clusters=config.n_clusters,
        labels_url=labels_url,
        collect=collect,
        weights=weights,
    )
    model = model_from(refined.centers, assigned.sums, seeding.affine, config)
    details = {"init": seeding.record, "kmeans": refined.record(), "plan": asdict(plan)}
    return model, assigned, details


def _comment(execution: Execution, model: Model) -> None:
    empty = int(np.count_nonzero(model.counts == 0))
    if empty:
        execution.tell(
            Note(
                f"{empty} of {model.n_clusters} clusters are empty: more iterations would move "
                "them to badly served rows, unless fewer rows differ than there are clusters",
                warning=True,
            )
        )
