"""SCRLM from features to labels, in the paper's order."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.config import FitConfig, ResolvedConfig
from scrlm_dask.events import Listener, warn
from scrlm_dask.kernels.points import squared_radius
from scrlm_dask.kernels.polish import polished
from scrlm_dask.kernels.preprocessing import AffineMap, fit_map, needs_moments
from scrlm_dask.kernels.sampling import Purpose, sample_rows
from scrlm_dask.model import Model
from scrlm_dask.passes.assign import AssignedPart, assign_pass
from scrlm_dask.passes.execution import Execution
from scrlm_dask.passes.features import Features, FeaturesLike, as_features
from scrlm_dask.passes.lloyd import polish_pass, send_centers
from scrlm_dask.passes.loss import ExtractedCenters, extract, loss_pass
from scrlm_dask.passes.survey import candidates_from, moments_of, survey_pass
from scrlm_dask.pipeline.memory import check_memory, place_features, plan_memory
from scrlm_dask.pipeline.models import model_from
from scrlm_dask.pipeline.notes import announce, comment
from scrlm_dask.pipeline.records import closing_record, config_record, opening_record
from scrlm_dask.pipeline.refinement import Refinement, refine
from scrlm_dask.pipeline.results import Fit, begin_run, finish_run, joined_labels
from scrlm_dask.storage.labels import create_labels_store
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.outputs import RUN_KIND, check_apart, check_way


def fit(
    source: FeaturesLike,
    config: FitConfig,
    *,
    out: Place | None = None,
    overwrite: bool = False,
    collect_labels: bool = False,
    block_rows: int | None = None,
    storage_options: Options | None = None,
    listener: Listener = warn,
) -> Fit:
    """Fit SCRLM to features. With `out`, model, labels and record go to that run directory.

    `storage_options` open URLs, of features and of `out`; they are neither printed nor saved.
    """
    features = as_features(source, block_rows, storage_options)
    target = None if out is None else locate(out, storage_options)
    resolved = config.resolve(features.n_rows)
    record = opening_record(features, config_record(resolved))
    with ExitStack() as undo, Execution(listener) as execution:
        run = begin_run(features, target, overwrite, record, undo)
        announce(execution, resolved)
        begin = time.perf_counter()
        labels_url = None
        if run is not None:
            labels_url = create_labels_store(run.labels, features.n_rows, features.block_rows)
        found = _algorithm(execution, features, resolved, labels_url, collect_labels, begin)
        record |= closing_record(found.model, execution, time.perf_counter() - begin)
        record |= found.record
        if run is not None:
            finish_run(run, found.model, record)
        undo.pop_all()
        comment(execution, found.model, config)
    return Fit(found.model, joined_labels(found.assigned, collect_labels), record)


def check_fit(
    source: FeaturesLike,
    config: FitConfig,
    out: Place,
    overwrite: bool = False,
    block_rows: int | None = None,
    storage_options: Options | None = None,
) -> None:
    """Raise what `fit` would raise before it reads a row: for those who pay to start a cluster."""
    features = as_features(source, block_rows, storage_options)
    config.resolve(features.n_rows)
    target = locate(out, storage_options)
    check_apart(target, features.path)
    check_way(target, overwrite, RUN_KIND)


@dataclass(frozen=True)
class _Found:
    model: Model
    assigned: AssignedPart
    record: dict[str, Any]


def _algorithm(
    execution: Execution,
    features: Features,
    config: ResolvedConfig,
    labels_url: Location | None,
    collect: bool,
    began: float,
) -> _Found:
    """Algorithm 1, and the mixture's parameters from the rows as they are labelled."""
    asked = config.asked
    features = _placed(execution, features, config)
    affine, candidates = _candidates(execution, features, config)
    losses = loss_pass(execution, features, candidates, config)
    extracted = extract(execution, candidates, losses, config)
    del candidates  # only their centers are needed from here on
    moved = _moved(execution, features, extracted.centers, affine, asked, began)
    assigned = assign_pass(
        execution,
        features,
        send_centers(moved.centers, affine),
        asked.sq_radius(features.n_features),
        n_clusters=len(moved.centers),
        labels_url=labels_url,
        collect=collect,
    )
    model = _model(extracted, moved.centers, assigned, affine, config)
    return _Found(model, assigned, {"kmeans": moved.record()} if asked.refine.max_iter else {})


def _placed(execution: Execution, features: Features, config: ResolvedConfig) -> Features:
    """Features in the workers' memory, where k-means reads them often and they fit."""
    refine = config.asked.refine
    if refine.max_iter == 0:
        return features
    # before the fit nobody knows how many clusters there are; candidates are an upper bound
    most = min(config.asked.n_clusters or config.n_candidates, config.n_candidates)
    plan = plan_memory(features, most)
    return place_features(execution, features, plan, refine.persist, 3 + refine.max_iter)


def _moved(
    execution: Execution,
    features: Features,
    centers: NDArray[Any],
    affine: AffineMap,
    config: FitConfig,
    began: float,
) -> Refinement:
    """The centers picked, polished and refined as far as that is asked for."""
    if len(centers) == 0 or not (config.polish or config.refine.max_iter):
        return Refinement(centers)
    features = features.in_blocks_for(len(centers))
    if config.polish:
        reach = squared_radius(config.rho, config.F, features.n_features)
        here = send_centers(centers, affine)
        inside = polish_pass(execution, features, here, reach, len(centers))
        centers = polished(centers, inside, affine.unit_length)
    if not config.refine.max_iter:
        return Refinement(centers)
    check_memory(plan_memory(features, len(centers)), len(centers))
    return refine(
        execution,
        features,
        centers.astype(np.float64),
        affine,
        config.refine,
        sq_radius=config.sq_radius(features.n_features),
        seed=config.seed,
        began=began,
    )


def _candidates(
    execution: Execution, features: Features, config: ResolvedConfig
) -> tuple[AffineMap, Delayed]:
    """The preprocessing map and the candidates; the survey's memory is free when this returns."""
    asked = config.asked
    rows = sample_rows(asked.seed, Purpose.CANDIDATES, config.n_rows, config.n_candidates)
    survey = survey_pass(execution, features, rows, needs_moments(asked.preprocess))
    affine = fit_map(asked.preprocess, features.n_features, moments_of(survey))
    return affine, candidates_from(survey, rows, affine)


def _model(
    extracted: ExtractedCenters,
    centers: NDArray[Any],
    assigned: AssignedPart,
    affine: AffineMap,
    config: ResolvedConfig,
) -> Model:
    return model_from(
        centers,
        assigned.sums,
        affine,
        config.asked,
        center_rows=extracted.rows,
        losses=extracted.extraction.losses,
        neighbors=extracted.extraction.neighbors,
        n_candidates=config.n_candidates,
    )
