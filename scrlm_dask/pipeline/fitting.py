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
from scrlm_dask.kernels.mixture import mixture_parameters
from scrlm_dask.kernels.points import prepare_points, radius, squared_radius
from scrlm_dask.kernels.preprocessing import AffineMap, fit_map, needs_moments
from scrlm_dask.kernels.sampling import Purpose, sample_rows
from scrlm_dask.model import Model
from scrlm_dask.passes.assign import AssignedPart, assign_pass, centers_among
from scrlm_dask.passes.execution import Execution
from scrlm_dask.passes.features import Features, FeaturesLike, as_features
from scrlm_dask.passes.loss import ExtractedCenters, extract, loss_pass
from scrlm_dask.passes.survey import candidates_from, moments_of, survey_pass
from scrlm_dask.pipeline.notes import announce, comment
from scrlm_dask.pipeline.records import closing_record, opening_record
from scrlm_dask.storage.features import mark_complete
from scrlm_dask.storage.labels import create_labels_store
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.models import save_model
from scrlm_dask.storage.outputs import RUN_KIND, check_apart, check_way, discard
from scrlm_dask.storage.runs import RunDirectory


@dataclass(frozen=True)
class Fit:
    """A fitted model and the record of its run (what `run.json` holds)."""

    model: Model
    labels: NDArray[np.int32] | None  # (N,) if they were collected
    record: dict[str, Any]


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
    record = opening_record(features, resolved)
    with ExitStack() as undo, Execution(listener) as execution:
        run = _begin_run(features, target, overwrite, record, undo)
        announce(execution, resolved)
        begin = time.perf_counter()
        labels_url = None
        if run is not None:
            labels_url = create_labels_store(run.labels, features.n_rows, features.block_rows)
        found = _algorithm(execution, features, resolved, labels_url, collect_labels)
        record |= closing_record(found.model, execution, time.perf_counter() - begin)
        if run is not None:
            mark_complete(run.labels)
            save_model(found.model, run.model)
            run.finish(record)
        undo.pop_all()
        comment(execution, found.model)
    return Fit(found.model, _joined(found.assigned, collect_labels), record)


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


def _algorithm(
    execution: Execution,
    features: Features,
    config: ResolvedConfig,
    labels_url: Location | None,
    collect: bool,
) -> _Found:
    """Algorithm 1, and the mixture's parameters from the rows as they are labelled."""
    asked = config.asked
    affine, candidates = _candidates(execution, features, config)
    losses = loss_pass(execution, features, candidates, config)
    extracted = extract(execution, candidates, losses, config)
    centers = centers_among(candidates, extracted.extraction.picks, affine)
    sq_radius = squared_radius(asked.rho, asked.F, features.n_features)
    del candidates  # only their centers are needed from here on
    assigned = assign_pass(
        execution,
        features,
        centers,
        sq_radius,
        n_clusters=len(extracted.rows),
        labels_url=labels_url,
        collect=collect,
    )
    return _Found(_model(extracted, assigned, affine, config), assigned)


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
    extracted: ExtractedCenters, assigned: AssignedPart, affine: AffineMap, config: ResolvedConfig
) -> Model:
    sums = assigned.sums
    asked = config.asked
    points = prepare_points(extracted.centers, affine)
    centers = points.raw * points.inv_norms[:, None]
    reach = radius(asked.rho, asked.F, affine.n_features)
    mixture = mixture_parameters(sums, centers, affine.scale, reach)
    return Model(
        centers=extracted.centers,
        center_rows=extracted.rows,
        losses=extracted.extraction.losses,
        neighbors=extracted.extraction.neighbors,
        means=mixture.means,
        counts=sums.counts,
        weights=mixture.weights,
        sigmas=mixture.sigmas,
        outlier_weight=mixture.outlier_weight,
        n_outliers=sums.n_rows - int(sums.counts.sum()),
        n_rows=sums.n_rows,
        n_candidates=config.n_candidates,
        affine=affine,
        config=asked,
    )


def _begin_run(
    features: Features,
    out: Location | None,
    overwrite: bool,
    record: dict[str, Any],
    undo: ExitStack,
) -> RunDirectory | None:
    if out is None:
        return None
    run = RunDirectory(out)
    check_apart(out, features.path)
    run.begin(overwrite, record)
    undo.callback(discard, out)
    return run


def _joined(assigned: AssignedPart, collect: bool) -> NDArray[np.int32] | None:
    return np.concatenate(assigned.labels) if collect else None
