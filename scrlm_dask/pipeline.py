"""SCRLM from features to labels, in the paper's order."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.config import ASSUMED_CLUSTERS, FitConfig, ResolvedConfig
from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.events import Listener, Note, warn
from scrlm_dask.kernels.metrics import Scores, scores
from scrlm_dask.kernels.mixture import mixture_parameters
from scrlm_dask.kernels.points import Points, prepare_points, radius, squared_radius
from scrlm_dask.kernels.preprocessing import AffineMap, fit_map, needs_moments
from scrlm_dask.kernels.recovery import Recovery, recovery
from scrlm_dask.kernels.sampling import Purpose, sample_rows
from scrlm_dask.kernels.synthesis import STRATUM_ROWS, MixtureSpec, true_mixture
from scrlm_dask.kernels.theory import MIN_WEIGHT, missed_cluster_risk, required
from scrlm_dask.model import Model
from scrlm_dask.passes.assign import AssignedPart, assign_pass, centers_among, label_pass
from scrlm_dask.passes.evaluate import Labels, contingency_pass
from scrlm_dask.passes.execution import Execution, persist, task
from scrlm_dask.passes.features import Features, FeaturesLike, as_features
from scrlm_dask.passes.loss import ExtractedCenters, extract, loss_pass
from scrlm_dask.passes.survey import candidates_from, moments_of, survey_pass
from scrlm_dask.passes.synth import synth_pass
from scrlm_dask.storage.arrays import absolute, add_array
from scrlm_dask.storage.features import (
    TARGET_BLOCK_BYTES,
    TRUE,
    block_rows_for,
    create_features_store,
    has_truth,
    mark_complete,
    read_true_sigmas,
)
from scrlm_dask.storage.labels import (
    check_labels_like,
    create_labels_store,
    open_labels,
    open_truth,
)
from scrlm_dask.storage.models import load_model, package_versions, save_model
from scrlm_dask.storage.outputs import (
    FEATURES_KIND,
    LABELS_KIND,
    RUN_KIND,
    check_apart,
    check_way,
    discard,
    make_way,
)
from scrlm_dask.storage.runs import RunDirectory

_NOTABLE_RISK = 0.05


@dataclass(frozen=True)
class Fit:
    """A fitted model and the record of its run (what `run.json` holds)."""

    model: Model
    labels: NDArray[np.int32] | None  # (N,) if they were collected
    record: dict[str, Any]


@dataclass(frozen=True)
class Prediction:
    """Labels of new rows."""

    labels: NDArray[np.int32] | None  # (N,) if they were collected
    n_rows: int
    n_outliers: int
    counts: NDArray[np.int64]  # (k,)


def fit(
    source: FeaturesLike,
    config: FitConfig,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    collect_labels: bool = False,
    block_rows: int | None = None,
    listener: Listener = warn,
) -> Fit:
    """Fit SCRLM to features. With `out`, model, labels and record go to that run directory."""
    features = as_features(source, block_rows)
    resolved = config.resolve(features.n_rows)
    record = _opening_record(features, resolved)
    with ExitStack() as undo, Execution(listener) as execution:
        run = _begin_run(features, out, overwrite, record, undo)
        _announce(execution, resolved)
        begin = time.perf_counter()
        labels_url = None
        if run is not None:
            labels_url = create_labels_store(run.labels, features.n_rows, features.block_rows)
        found = _algorithm(execution, features, resolved, labels_url, collect_labels)
        record |= _closing_record(found.model, execution, time.perf_counter() - begin)
        if run is not None:
            mark_complete(run.labels)
            save_model(found.model, run.model)
            run.finish(record)
        undo.pop_all()
        _comment(execution, found.model)
    return Fit(found.model, _joined(found.assigned, collect_labels), record)


def check_fit(
    source: FeaturesLike,
    config: FitConfig,
    out: str | Path,
    overwrite: bool = False,
    block_rows: int | None = None,
) -> None:
    """Raise what `fit` would raise before it reads a row: for those who pay to start a cluster."""
    features = as_features(source, block_rows)
    config.resolve(features.n_rows)
    check_apart(absolute(out), features.path)
    check_way(absolute(out), overwrite, RUN_KIND)


def check_predict(
    model: Model | str | Path,
    source: FeaturesLike,
    out: str | Path,
    overwrite: bool = False,
    block_rows: int | None = None,
) -> None:
    """Raise what `predict` would raise before it reads a row."""
    features = as_features(source, block_rows)
    fitted = load_model(model) if isinstance(model, str | Path) else model
    check_width(fitted, features.n_features, features.what)
    check_apart(absolute(out), features.path)
    check_way(absolute(out), overwrite, LABELS_KIND)


@dataclass(frozen=True)
class _Found:
    model: Model
    assigned: AssignedPart


def _algorithm(
    execution: Execution,
    features: Features,
    config: ResolvedConfig,
    labels_url: str | None,
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
    extracted: ExtractedCenters,
    assigned: AssignedPart,
    affine: AffineMap,
    config: ResolvedConfig,
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


def predict(
    model: Model | str | Path,
    source: FeaturesLike,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    collect_labels: bool = False,
    block_rows: int | None = None,
    listener: Listener = warn,
) -> Prediction:
    """Label rows with a model, or with the one in a run directory, which the workers then load."""
    fitted = load_model(model) if isinstance(model, str | Path) else model
    features = as_features(source, block_rows)
    check_width(fitted, features.n_features, features.what)
    with ExitStack() as undo, Execution(listener) as execution:
        labels_url = None
        if out is not None:
            labels_url = absolute(out)
            check_apart(labels_url, features.path)
            make_way(labels_url, overwrite, LABELS_KIND)
            undo.callback(discard, labels_url)
            create_labels_store(labels_url, features.n_rows, features.block_rows)
        found = label_pass(
            execution,
            features,
            persist(center_points(model)),
            fitted.sq_radius,
            labels_url=labels_url,
            collect=collect_labels,
        )
        if labels_url is not None:
            mark_complete(labels_url)
        undo.pop_all()
    labels = np.concatenate(found.labels) if collect_labels else None
    return Prediction(labels, found.n_rows, found.n_rows - int(found.counts.sum()), found.counts)


def center_points(model: Model | str | Path) -> Delayed:
    """A task that gives the model's centers, read by the worker where the model has a path."""
    if isinstance(model, str | Path):
        return task("centers", _load_points, absolute(model))
    return task("centers", prepare_points, model.centers, model.affine)


def check_width(model: Model, n_features: int, what: str) -> None:
    if n_features != model.n_features:
        raise InputError(
            f"{what} has {n_features} features, but the model was fitted on {model.n_features}; "
            "give features of the same encoder"
        )


TruthLike: TypeAlias = str | Path | NDArray[Any] | None


@dataclass(frozen=True)
class Evaluation:
    """Labels against the truth, and the mixture against the one that rows were drawn from."""

    scores: Scores
    recovery: Recovery | None  # where the features store knows its mixture


def evaluate_run(
    path: str | Path, truth: TruthLike = None, *, listener: Listener = warn
) -> Evaluation:
    """Score a run's labels against the truth: an array, labels at a path (.npy or Zarr), or by
    default those of the run's features store."""
    run = RunDirectory(absolute(path))
    source = run.check_complete()["features"]["path"]
    labels = open_labels(run.labels, "the labels")
    with Execution(listener) as execution:
        table = contingency_pass(execution, _truth(truth, source), labels)
    found = scores(table)
    true_sigmas = read_true_sigmas(source) if truth is None else None
    if true_sigmas is None:
        return Evaluation(found, None)
    model = load_model(run.path)
    errors = recovery(table, found, model.weights, model.sigmas, true_sigmas)
    return Evaluation(found, errors)


def _truth(truth: TruthLike, source: str | None) -> Labels:
    if isinstance(truth, np.ndarray):
        check_labels_like(truth.shape, truth.dtype, "the truth")
        return truth
    if truth is not None:
        return open_truth(truth)
    way_out = "give the truth with --truth FILE (.npy or Zarr)"
    if source is None:
        raise InputError(f"the features of this run have no path; {way_out}")
    try:
        known = has_truth(source)
    except StoreError as error:
        raise StoreError(f"{error}, or {way_out}") from error
    if not known:
        raise InputError(f"the features {source} hold no labels; {way_out}")
    return open_labels(source, "the truth")


def check_synth(path: str | Path, n_rows: int, overwrite: bool = False) -> None:
    """Raise what `synth` would raise before it draws a row."""
    if n_rows < 1:
        raise InputError(f"{n_rows} rows cannot be drawn; ask for at least 1")
    check_way(absolute(path), overwrite, FEATURES_KIND)


def synth(
    path: str | Path,
    n_rows: int,
    spec: MixtureSpec,
    *,
    chunk_bytes: int = TARGET_BLOCK_BYTES,
    overwrite: bool = False,
    listener: Listener = warn,
) -> str:
    """Write a sample of the paper's mixture, with its truth, as a features store."""
    check_synth(path, n_rows, overwrite)
    url = absolute(path)
    make_way(url, overwrite, FEATURES_KIND)
    # whole strata: none is drawn twice
    shape = (n_rows, spec.n_features)
    fitting = block_rows_for(shape, np.dtype(np.float32), None, chunk_bytes)
    block_rows = min(n_rows, -(-fitting // STRATUM_ROWS) * STRATUM_ROWS)
    with ExitStack() as undo, Execution(listener) as execution:
        undo.callback(discard, url)
        create_features_store(url, n_rows, spec.n_features, block_rows, {"mixture": asdict(spec)})
        synth_pass(execution, spec, url, n_rows, block_rows)
        truth = true_mixture(spec)
        for name in ("weights", "means", "sigmas"):
            add_array(f"{url}/{TRUE}{name}", getattr(truth, name))
        mark_complete(url)
        undo.pop_all()
    return url


def _begin_run(
    features: Features,
    out: str | Path | None,
    overwrite: bool,
    record: dict[str, Any],
    undo: ExitStack,
) -> RunDirectory | None:
    if out is None:
        return None
    run = RunDirectory(absolute(out))
    check_apart(run.path, features.path)
    run.begin(overwrite, record)
    undo.callback(discard, run.path)
    return run


def _opening_record(features: Features, config: ResolvedConfig) -> dict[str, Any]:
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "features": {
            "source": features.what,
            "path": features.path,
            "rows": features.n_rows,
            "features": features.n_features,
            "dtype": str(features.array.dtype),
            "blocks": features.n_blocks,
            "block_rows": features.block_rows,
        },
        "config": {
            **asdict(config.asked),
            "n_candidates": config.n_candidates,
            "loss_rows": config.loss_rows,
        },
        "versions": package_versions(),
    }


def _closing_record(model: Model, execution: Execution, seconds: float) -> dict[str, Any]:
    return {
        "seconds": seconds,
        "phases": [asdict(phase) for phase in execution.phases],
        "workers": execution.reports,
        "radius": model.radius,
        "clusters": model.n_clusters,
        "outliers": model.n_outliers,
        "outlier_share": model.n_outliers / model.n_rows,
        "outlier_weight": model.outlier_weight,
        "counts": model.counts.tolist(),
    }


def _announce(execution: Execution, config: ResolvedConfig) -> None:
    asked = config.asked
    if asked.n_candidates == "auto" and asked.n_clusters is None:
        execution.tell(
            Note(
                f"number of clusters not given: {config.n_candidates} candidates, enough to find "
                f"{ASSUMED_CLUSTERS} clusters"
                if config.n_candidates < config.n_rows
                else f"number of clusters not given: all {config.n_rows} rows are candidates"
            )
        )


def _comment(execution: Execution, model: Model) -> None:
    """Say what a person should know about the result."""
    if model.n_clusters == 0:
        execution.tell(
            Note(
                f"no cluster found: no candidate has {model.config.min_neighbors} other row(s) "
                f"closer than the radius {model.radius:.4g}; try a larger rho than "
                f"{model.config.rho:g}, more candidates or fewer min_neighbors",
                warning=True,
            )
        )
        return
    if model.n_clusters == 1 and model.n_outliers == 0 and model.n_rows > 1:
        hint = " (rows of unit length are at most 2 apart)" if model.affine.unit_length else ""
        execution.tell(
            Note(
                f"one cluster holds all rows: the radius {model.radius:.4g} reaches everything"
                f"{hint}; try a smaller rho than {model.config.rho:g}",
                warning=True,
            )
        )
        return
    # outliers among the candidates leave fewer for the clusters
    inliers = 1.0 - model.n_outliers / model.n_rows
    risk = missed_cluster_risk(model.n_clusters, model.n_candidates, MIN_WEIGHT * inliers)
    if risk > _NOTABLE_RISK and model.n_candidates < model.n_rows:
        enough = required(model.n_clusters, min_weight=MIN_WEIGHT * inliers).n_candidates
        execution.tell(
            Note(
                f"{model.n_candidates} candidates are few for {model.n_clusters} clusters beside "
                f"{1.0 - inliers:.0%} outliers: the risk of having missed a cluster is up to "
                f"{risk:.0%}; with n_candidates (--candidates) {enough} it is negligible",
                warning=True,
            )
        )


def _joined(assigned: AssignedPart, collect: bool) -> NDArray[np.int32] | None:
    return np.concatenate(assigned.labels) if collect else None


def _load_points(path: str) -> Points:
    model = load_model(path)
    return prepare_points(model.centers, model.affine)
