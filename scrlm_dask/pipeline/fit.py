"""SCRLM from features to labels, in the paper's order."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.config import FitConfig, LloydConfig, ResolvedConfig
from scrlm_dask.engine.block_layout import Layout
from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.features import Features, FeaturesLike, as_features
from scrlm_dask.engine.workers import WorkerMemory, worker_memories
from scrlm_dask.events import CentersFound, Listener, warn
from scrlm_dask.kernels.bandwidth.search import ScanSizes
from scrlm_dask.kernels.distances.points import squared_radius
from scrlm_dask.kernels.distances.preprocessing import AffineMap, fit_map, needs_moments
from scrlm_dask.kernels.randomness.sampling import Purpose, sample_rows
from scrlm_dask.kernels.scrlm.extraction import Extraction
from scrlm_dask.kernels.scrlm.polish import polish_centers
from scrlm_dask.kernels.scrlm.ward import MergeTree
from scrlm_dask.model import Model
from scrlm_dask.passes.assign import AssignedPart, assign_pass
from scrlm_dask.passes.lloyd import polish_pass, send_centers
from scrlm_dask.passes.loss import ExtractedCenters, extract, loss_pass
from scrlm_dask.passes.survey import candidates_from, moments_of, survey_pass
from scrlm_dask.pipeline.lloyd_loop import Refinement, refine
from scrlm_dask.pipeline.results import announce_fit, build_model, warn_about_result
from scrlm_dask.pipeline.rho import Chosen, choose_on_sample
from scrlm_dask.planning.memory import check_fit_memory, fit_memory, most_clusters
from scrlm_dask.planning.persist import place_features
from scrlm_dask.planning.work import report_fit_plan
from scrlm_dask.runs.lifecycle import (
    Fit,
    finish_run,
    gather_labels,
    open_labels_output,
    report_losses,
    report_sizes,
    report_start,
)
from scrlm_dask.runs.record import closing_record, opening_record
from scrlm_dask.runs.resume import (
    check_rewritten_features,
    check_run,
    check_still_owner,
    check_unchanged,
    open_run,
)
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.manifest import short_digest


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
    workers = worker_memories()
    check_fit_memory(features.layout, resolved, most_clusters(resolved), workers)
    record = _opening_record(features, resolved, block_rows, storage_options)
    with (
        open_run(features, target, overwrite, record, storage_options) as run,
        Execution(listener, run.checkpoint) as execution,
    ):
        report_start(execution, "SCRLM", features, run.directory)
        check_rewritten_features(execution, run, record, storage_options)
        report_fit_plan(execution, features.layout, resolved, most_clusters(resolved), workers)
        announce_fit(execution, resolved, run.resumed)
        begin = time.perf_counter()
        labels_url = open_labels_output(run, features, config.margins)
        collect = collect_labels and labels_url is None
        found = _algorithm(execution, features, resolved, labels_url, collect, begin)
        record |= closing_record(found.model, execution, time.perf_counter() - begin, found.pruning)
        record |= found.record | {"config": asdict(found.config.asked) | _numbers(found.config)}
        record["plan"] = _plan_record(features.layout, resolved, found.model.n_clusters, workers)
        if run.directory is not None:
            check_unchanged(record, storage_options)
            check_still_owner(run.directory, record)
            finish_run(run.directory, found.model, record)
        warn_about_result(
            execution,
            found.model,
            found.config.asked,
            chosen=config.rho == "auto",
            with_margins=config.margins and labels_url is not None,
        )
    labels = gather_labels(found.assigned, labels_url) if collect_labels else None
    return Fit(found.model, labels, record)


def check_fit(
    source: FeaturesLike,
    config: FitConfig,
    out: Place,
    overwrite: bool = False,
    block_rows: int | None = None,
    storage_options: Options | None = None,
    workers: Sequence[WorkerMemory] = (),
) -> None:
    """Raise what `fit` would raise before it reads a row: for those who pay to start a cluster.

    `workers` are those that it would have, as far as they are known.
    """
    features = as_features(source, block_rows, storage_options)
    resolved = config.resolve(features.n_rows)
    record = _opening_record(features, resolved, block_rows, storage_options)
    check_run(features, locate(out, storage_options), overwrite, record)
    check_fit_memory(features.layout, resolved, most_clusters(resolved), workers)


def _opening_record(
    features: Features,
    config: ResolvedConfig,
    block_rows: int | None,
    storage_options: Options | None,
) -> dict[str, Any]:
    return opening_record(
        features,
        config.asked,
        _numbers(config),
        block_rows=block_rows,
        storage_options=storage_options,
        inputs={},
    )


def _numbers(config: ResolvedConfig) -> dict[str, int]:
    """What words of the config stand for."""
    return {"n_candidates": config.n_candidates, "loss_rows": config.loss_rows}


@dataclass(frozen=True)
class _Found:
    model: Model
    assigned: AssignedPart
    config: ResolvedConfig  # with what was chosen
    record: dict[str, Any]
    pruning: dict[str, Any]  # by pass


def _algorithm(
    execution: Execution,
    features: Features,
    config: ResolvedConfig,
    labels_url: Location | None,
    collect: bool,
    began: float,
) -> _Found:
    """Algorithm 1, and the mixture's parameters from the rows as they are labelled."""
    features = _placed(execution, features, config)
    start = execution.checkpoints.load_or_compute(
        "centers", _START_TYPES, partial(_start, execution, features, config)
    )
    config, affine, extracted = start.config, start.affine, start.extracted
    asked = config.asked
    execution.emit(CentersFound(len(extracted.rows)))
    if asked.n_clusters is None:  # now it is known how many there are
        workers, n_found = worker_memories(), len(extracted.rows)
        check_fit_memory(features.layout, config, n_found, workers)
        report_fit_plan(execution, features.layout, config, n_found, workers)
    moved = _moved(execution, features, extracted.centers, affine, asked, began)
    sq_radius = asked.sq_radius(features.n_features)
    assigned = assign_pass(
        execution,
        features,
        send_centers(moved.centers, affine, quick_check=not asked.margins),
        sq_radius,
        n_clusters=len(moved.centers),
        prune=asked.prune,
        labels_at=labels_url,
        margins=asked.margins,
        collect=collect,
        input_digest=short_digest(moved.centers, np.array(sq_radius)),
    )
    report_sizes(execution, assigned.sums, sq_radius)
    model = _model(extracted, moved.centers, assigned, affine, config)
    # k-means moves rows between clusters, and the tree knows nothing of it
    model = replace(model, tree=None if moved.iterations else start.tree)
    record = start.record | ({"kmeans": moved.record()} if asked.refine.max_iter else {})
    pruning = {"loss": start.pruned} if start.pruned else {}
    if moved.stopped:  # k-means has run
        pruning["kmeans-step"] = moved.pruned.record()
    pruning["assign"] = assigned.pruned.record()
    return _Found(model, assigned, config, record, pruning)


@dataclass(frozen=True)
class _Start:
    """What the sample and the loss found; neither is needed any more."""

    config: ResolvedConfig  # with every "auto" settled
    affine: AffineMap
    extracted: ExtractedCenters
    tree: MergeTree | None
    record: dict[str, Any]
    pruned: dict[str, Any]


_START_TYPES = (
    *(_Start, AffineMap, ExtractedCenters, Extraction, MergeTree),
    *(ResolvedConfig, FitConfig, LloydConfig, ScanSizes),
)


def _start(execution: Execution, features: Features, config: ResolvedConfig) -> _Start:
    """Centers from a sample where it settles them, else from the losses of the candidates."""
    samples = config.asked.samples
    chosen = choose_on_sample(execution, features, config) if samples else Chosen(config)
    affine, extracted, pruned = chosen.affine, chosen.extracted, dict[str, Any]()
    if affine is None or extracted is None:
        if samples:  # more candidates may be needed than anybody knew before
            check_fit_memory(features.layout, chosen.config, None, worker_memories())
        affine, extracted, pruned = _judged_by_loss(execution, features, chosen.config)
    return _Start(chosen.config, affine, extracted, chosen.tree, chosen.record, pruned)


def _judged_by_loss(
    execution: Execution, features: Features, config: ResolvedConfig
) -> tuple[AffineMap, ExtractedCenters, dict[str, Any]]:
    """Extract centers greedily by the candidates' losses, as in the paper; also return what the
    loss pass pruned."""
    affine, candidates = _candidates(execution, features, config)
    result = loss_pass(execution, features, candidates, config, [config.asked.given_rho])
    (losses,) = result.losses
    report_losses(execution, losses.losses)
    extracted = extract(execution, candidates, losses, config)
    return affine, extracted, result.pruned.record()


def _plan_record(
    layout: Layout, config: ResolvedConfig, n_clusters: int, workers: Sequence[WorkerMemory]
) -> dict[str, Any]:
    """What was planned for the worker with most threads, now that the clusters are counted."""
    most = max(workers, key=lambda worker: worker.n_threads)
    plan = fit_memory(layout, config, most_clusters(config) or n_clusters, len(workers))
    return plan.record(most.n_threads, most.n_ahead)


def _placed(execution: Execution, features: Features, config: ResolvedConfig) -> Features:
    """Features in the workers' memory, where k-means reads them often and they fit."""
    refine = config.asked.refine
    if refine.max_iter == 0:
        return features
    workers = worker_memories()
    # before the fit nobody may know how many clusters there are; candidates are an upper bound
    most = most_clusters(config) or config.n_candidates
    plan = fit_memory(features.layout, config, most, len(workers))
    reads = 3 + refine.max_iter
    return place_features(execution, features, plan, workers, refine.persist, reads)


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
        reach = squared_radius(config.given_rho, config.F, features.n_features)
        here = send_centers(centers, affine)
        inside = polish_pass(execution, features, here, reach, len(centers))
        centers = polish_centers(centers, inside, affine.unit_length)
    if not config.refine.max_iter:
        return Refinement(centers)
    return refine(
        execution,
        features,
        centers.astype(np.float64),
        affine,
        config.refine,
        sq_radius=config.sq_radius(features.n_features),
        prune=config.prune,
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
    return build_model(
        centers,
        assigned.sums,
        affine,
        config.asked,
        center_rows=extracted.rows,
        losses=extracted.extraction.losses,
        neighbors=extracted.extraction.neighbors,
        n_candidates=config.n_candidates,
    )
