"""Fit SCRLM, from features to labels; the steps are in the order of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.config import FitConfig, LloydConfig, ResolvedConfig, as_config
from scrlm_dask.engine.execution import Execution, persist, task
from scrlm_dask.engine.features import Features, FeaturesLike, as_features
from scrlm_dask.engine.workers import WorkerMemory, worker_memories
from scrlm_dask.events import CentersFound, Listener, Note, warn
from scrlm_dask.kernels.bandwidth.search import ScanSizes
from scrlm_dask.kernels.distances.assignment import LeafPoints
from scrlm_dask.kernels.distances.nearest_center import nearest_centers
from scrlm_dask.kernels.distances.points import prepare_points, squared_radius
from scrlm_dask.kernels.distances.preprocessing import AffineMap, fit_map, needs_moments
from scrlm_dask.kernels.randomness.sampling import Purpose, sample_rows
from scrlm_dask.kernels.scrlm.extraction import Extraction
from scrlm_dask.kernels.scrlm.polish import polish_centers
from scrlm_dask.kernels.scrlm.ward import MergeTree, nested_tree
from scrlm_dask.model import Model
from scrlm_dask.passes.assign import AssignedPart, assign_pass
from scrlm_dask.passes.lloyd import polish_pass, send_centers
from scrlm_dask.passes.loss import ExtractedCenters, extract, loss_pass
from scrlm_dask.passes.radius import distances_pass, radius_of_share
from scrlm_dask.passes.survey import candidates_from, moments_of, survey_pass
from scrlm_dask.pipeline import results
from scrlm_dask.pipeline.cut import cut_model
from scrlm_dask.pipeline.lloyd_loop import Refinement, refine
from scrlm_dask.pipeline.rho import Chosen, choose_on_sample
from scrlm_dask.planning.memory import check_fit_memory, fit_memory, most_clusters
from scrlm_dask.planning.persist import persist_or_stream
from scrlm_dask.planning.work import RADIUS_ROWS, fit_costs, report_plan
from scrlm_dask.runs.lifecycle import ActiveRun, FitResult, RunTarget, open_run, prepare_target
from scrlm_dask.runs.record import start_record
from scrlm_dask.storage.label_store import write_coarse_labels
from scrlm_dask.storage.locations import Options, Place
from scrlm_dask.storage.manifest import short_digest


def fit(
    source: FeaturesLike,
    config: FitConfig | None = None,
    *,
    out: Place | None = None,
    overwrite: bool = False,
    collect_labels: bool = False,
    block_rows: int | None = None,
    storage_options: Options | None = None,
    listener: Listener = warn,
) -> FitResult:
    """Fit SCRLM to features: find clusters, and label rows outside every cluster -1.

    The current Dask client runs the passes; without a client, threads of this process do.

    Parameters
    ----------
    source : str, Path, FeatureStore, zarr.Array, dask.array.Array or numpy.ndarray
        Features (rows, p). A path or URL must point to a features store or a Zarr array.
    config : FitConfig or None
        Parameters of the fit; None: the defaults, which choose the bandwidth and the number of
        clusters from the data.
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
        If the features or the parameters are invalid, or if the run does not fit in the memory of
        the workers.
    StoreError
        If the features cannot be read, or if `out` exists and can be neither resumed nor
        overwritten.
    ClusterError
        If the scheduler or its workers are lost.

    Examples
    --------
    >>> import scrlm_dask
    >>> config = scrlm_dask.FitConfig(rho=0.5, n_clusters=6)
    >>> result = scrlm_dask.fit("features.zarr", config, collect_labels=True)
    >>> result.model.n_clusters, result.labels.shape
    (6, (2000,))
    """
    job = prepare_fit(
        source,
        as_config(config, FitConfig),
        out=out,
        overwrite=overwrite,
        collect_labels=collect_labels,
        block_rows=block_rows,
        storage_options=storage_options,
    )
    return job.run(listener)


def prepare_fit(
    source: FeaturesLike,
    config: FitConfig,
    *,
    out: Place | None = None,
    overwrite: bool = False,
    collect_labels: bool = False,
    block_rows: int | None = None,
    storage_options: Options | None = None,
    workers: Sequence[WorkerMemory] = (),
) -> FitJob:
    """Validate a fit before workers are started or rows are read.

    `workers` describes the workers of the run, if they are already known, to check their memory.
    """
    features = as_features(source, block_rows, storage_options)
    resolved = config.resolve(features.n_rows)
    record = start_record(
        features,
        config,
        numbers=_resolved_numbers(resolved),
        inputs={},
        block_rows=block_rows,
    )
    target = prepare_target(features, record, out, overwrite, collect_labels, storage_options)
    check_fit_memory(features.layout, resolved, most_clusters(resolved), workers)
    return FitJob(target, resolved)


@dataclass(frozen=True)
class FitJob:
    """A validated fit, ready to run."""

    target: RunTarget
    config: ResolvedConfig

    def run(self, listener: Listener = warn) -> FitResult:
        """Run the fit in the workers of the current client, or in threads of this process."""
        config, request = self.config, self.config.asked
        layout, workers = self.target.features.layout, worker_memories()
        n_clusters = most_clusters(config)
        plan = check_fit_memory(layout, config, n_clusters, workers)
        with open_run(self.target, "SCRLM", listener) as run:
            report_plan(run.execution, fit_costs(layout, config, n_clusters), plan, workers)
            if run.is_resumed:
                run.report_resumed()
            if n_clusters is None:
                results.report_candidates(run.execution, config)
            result = _run_algorithm(run, config, workers)
            record = run.finish(result.model, result.details)
            results.warn_about_result(
                run.execution,
                result.model,
                result.config,
                chosen=request.rho == "auto",
                with_margins=request.margins and self.target.out is not None,
            )
        fine = run.gather_fine_labels(result.assigned)
        return FitResult(result.model, run.gather_labels(result.assigned), record, fine)


def _resolved_numbers(config: ResolvedConfig) -> dict[str, int]:
    """Return the numbers that replace the settings "auto" and "all"."""
    return {"n_candidates": config.n_candidates, "loss_rows": config.loss_rows}


@dataclass(frozen=True)
class _Result:
    model: Model
    assigned: AssignedPart
    config: FitConfig  # with every "auto" resolved
    details: dict[str, Any]  # for the record


def _run_algorithm(
    run: ActiveRun, config: ResolvedConfig, workers: Sequence[WorkerMemory]
) -> _Result:
    """Run Algorithm 1, then estimate the mixture from the labelled rows."""
    execution, features = run.execution, _persist_for_kmeans(run, config, workers)
    start = execution.checkpoints.load_or_compute(
        "centers", _START_TYPES, partial(_find_centers, execution, features, config)
    )
    settled, n_found = start.config.asked, len(start.extracted.rows)
    execution.emit(CentersFound(n_found))
    if config.asked.n_clusters is None:  # the number of clusters is known only now
        present = worker_memories()  # an adaptive cluster may have other workers now
        plan = check_fit_memory(features.layout, start.config, n_found, present)
        costs = fit_costs(features.layout, start.config, n_found)
        report_plan(execution, costs, plan, present)
    if config.asked.refine.max_iter == "auto":  # k-means may have been decided only now
        features = _persist_for_kmeans(run, start.config, workers)
    moved = _move_centers(
        run, features, start.extracted.centers, start.affine, _config_of_kmeans(start)
    )
    settled = _choose_radius(execution, features, moved.centers, start.affine, settled)
    leaves = _divide_clusters(moved.centers, start.fine, start.affine)
    assigned = _assign_rows(run, features, moved.centers, start.affine, settled, leaves)
    start = replace(start, config=replace(start.config, asked=settled))
    model = _build_model(start, moved, assigned, leaves)
    if settled.levels:
        _write_coarse_level(run, model, start)
    n_planned = most_clusters(config) or model.n_clusters
    planned = replace(config, asked=settled)
    plan = fit_memory(run.target.features.layout, planned, n_planned, len(workers))
    pruning = {"loss": start.pruned} if start.pruned else {}
    if moved.stopped:  # k-means has run
        pruning["kmeans-step"] = moved.pruned.record()
    pruning["assign"] = assigned.pruned.record()
    details = start.record | {
        "pruning": pruning,
        **({"kmeans": moved.record()} if settled.refine.max_iter else {}),
        "config": asdict(settled) | _resolved_numbers(start.config),
        "plan": plan.record(workers),
    }
    return _Result(model, assigned, settled, details)


@dataclass(frozen=True)
class _Start:
    """State after the extraction: the centers, and other results that later steps need."""

    config: ResolvedConfig  # with every "auto" resolved
    affine: AffineMap
    extracted: ExtractedCenters
    tree: MergeTree | None
    fine: NDArray[np.float64] | None  # (f, p) centers of the fine level
    record: dict[str, Any]
    pruned: dict[str, Any]


_START_TYPES = (
    *(_Start, AffineMap, ExtractedCenters, Extraction, MergeTree),
    *(ResolvedConfig, FitConfig, LloydConfig, ScanSizes),
)


def _find_centers(execution: Execution, features: Features, config: ResolvedConfig) -> _Start:
    """Find centers on a sample of rows if that is sufficient, otherwise with a loss pass."""
    samples = config.asked.samples
    chosen = choose_on_sample(execution, features, config) if samples else Chosen(config)
    affine, extracted, pruned = chosen.affine, chosen.extracted, dict[str, Any]()
    if affine is None or extracted is None:
        if samples:  # the sample may have shown that more candidates are needed
            check_fit_memory(features.layout, chosen.config, None, worker_memories())
        affine, extracted, pruned = _extract_by_loss(execution, features, chosen.config)
    return _Start(chosen.config, affine, extracted, chosen.tree, chosen.fine, chosen.record, pruned)


def _extract_by_loss(
    execution: Execution, features: Features, config: ResolvedConfig
) -> tuple[AffineMap, ExtractedCenters, dict[str, Any]]:
    """Compute the losses of the candidates over the rows, then extract centers greedily.

    Returns the preprocessing map, the centers, and the pruning record of the loss pass.
    """
    affine, candidates = _draw_candidates(execution, features, config)
    result = loss_pass(execution, features, candidates, config, [config.asked.given_rho])
    (losses,) = result.losses
    results.report_losses(execution, losses.losses)
    extracted = extract(execution, candidates, losses, config)
    return affine, extracted, result.pruned.record()


def _persist_for_kmeans(
    run: ActiveRun, config: ResolvedConfig, workers: Sequence[WorkerMemory]
) -> Features:
    """Persist the features for k-means in the workers' memory, if requested or if they fit."""
    features, refine = run.target.features, config.asked.refine
    if refine.limit(0) == 0:  # with "auto", called again when the scan has decided
        return features
    # if the number of clusters is unknown, the number of candidates is an upper bound
    most = most_clusters(config) or config.n_candidates
    plan = fit_memory(features.layout, config, most, len(workers))
    reads = 3 + refine.limit(0)
    return persist_or_stream(run.execution, features, plan, workers, refine.persist, reads)


def _move_centers(
    run: ActiveRun, features: Features, centers: NDArray[Any], affine: AffineMap, config: FitConfig
) -> Refinement:
    """Move the extracted centers by polishing and by k-means, each only if configured."""
    if len(centers) == 0 or not (config.polish or config.refine.max_iter):
        return Refinement(centers)
    features = features.in_blocks_for(len(centers))
    if config.polish:
        reach = squared_radius(config.given_rho, config.F, features.n_features)
        sent = send_centers(centers, affine)
        inside = polish_pass(run.execution, features, sent, reach, len(centers))
        centers = polish_centers(centers, inside, affine.unit_length)
    if not config.refine.max_iter:
        return Refinement(centers)
    return refine(
        run.execution,
        features,
        centers.astype(np.float64),
        affine,
        config.refine,
        sq_radius=config.kmeans_sq_radius(features.n_features),
        prune=config.prune,
        seed=config.seed,
        began=run.began,
    )


def _config_of_kmeans(start: _Start) -> FitConfig:
    """Return the config for k-means: robust k-means of merged clusters uses the null's radius.

    The radius of a share of outliers is known only after k-means.
    """
    config, null = start.config.asked, start.record.get("scan", {}).get("null")
    if null and config.robust and config.extraction == "merge" and config.radius is None:
        return replace(config, radius=null["radius"], outlier_share=None)
    return config


def _choose_radius(
    execution: Execution,
    features: Features,
    centers: NDArray[Any],
    affine: AffineMap,
    config: FitConfig,
) -> FitConfig:
    """Return the config with the radius outside which the requested share of the rows is."""
    share = config.outlier_share
    if not isinstance(share, float) or len(centers) == 0:
        return config
    n_rows = features.n_rows
    rows = sample_rows(config.seed, Purpose.RADIUS_ROWS, n_rows, min(n_rows, RADIUS_ROWS))
    sent = send_centers(centers, affine)
    sq_distances = distances_pass(execution, features, sent, rows, len(centers))
    radius = radius_of_share(sq_distances, share)
    execution.emit(
        Note(
            f"radius {radius:.4g}: {share:.2%} of {len(rows)} random rows are farther from every "
            "center"
        )
    )
    return replace(config, radius=radius, outlier_share=None)


@dataclass(frozen=True)
class _Leaves:
    """Centers of the fine level, sorted by their clusters of the default level."""

    centers: NDArray[np.float64]  # (L, p)
    parents: NDArray[np.int64]  # (L,) ascending
    affine: AffineMap

    def points(self) -> LeafPoints:
        """Prepare the leaves of each cluster to be compared with rows."""
        n_clusters = int(self.parents[-1]) + 1
        children = (self.centers[self.parents == k] for k in range(n_clusters))
        return LeafPoints(
            tuple(prepare_points(some, self.affine) for some in children),
            np.searchsorted(self.parents, np.arange(n_clusters)),
        )

    def tree(self, counts: NDArray[np.int64]) -> MergeTree:
        """Return the tree that joins the leaves into the clusters, and these into one."""
        weights = counts.astype(np.float64)
        mapped = prepare_points(self.centers, self.affine).mapped
        # an empty leaf is merged like a leaf with one row
        tree = nested_tree(self.centers, np.maximum(weights, 1.0), mapped, self.parents)
        return replace(tree, weights=weights)


def _divide_clusters(
    centers: NDArray[Any], fine: NDArray[np.float64] | None, affine: AffineMap
) -> _Leaves | None:
    """Give each center of the fine level to its nearest cluster; None without a fine level.

    A cluster without such a center is its own leaf.
    """
    if fine is None:
        return None
    parents = nearest_centers(fine, prepare_points(centers, affine)).labels.astype(np.int64)
    childless = np.setdiff1d(np.arange(len(centers)), parents)
    leaves = np.concatenate([fine, centers[childless]])
    parents = np.concatenate([parents, childless])
    order = np.argsort(parents, kind="stable")
    return _Leaves(leaves[order], parents[order], affine)


def _write_coarse_level(run: ActiveRun, model: Model, start: _Start) -> None:
    """Add the labels of the coarse level to the labels store, if there are both."""
    levels = start.record.get("scan", {}).get("levels") or {}
    directory, coarse = run.opened.directory, levels.get("coarse")
    if coarse is None:
        run.execution.emit(Note("there is no coarse level, so --levels (levels) has no effect"))
    elif directory is not None:
        write_coarse_labels(directory.labels, cut_model(model, coarse).groups)


def _assign_rows(
    run: ActiveRun,
    features: Features,
    centers: NDArray[Any],
    affine: AffineMap,
    config: FitConfig,
    leaves: _Leaves | None,
) -> AssignedPart:
    """Label all rows, and sum the rows of each cluster."""
    sq_radius = config.sq_radius(features.n_features)
    fine = () if leaves is None else (leaves.centers, leaves.parents)
    assigned = assign_pass(
        run.execution,
        features,
        send_centers(centers, affine, quick_check=not config.margins),
        sq_radius,
        n_clusters=len(centers),
        prune=config.prune,
        labels_at=run.open_labels_output(len(centers), config.margins, leaves is not None),
        margins=config.margins,
        collect=run.collects_labels,
        input_digest=short_digest(centers, np.array(sq_radius), *fine),
        leaves=None if leaves is None else persist(task("leaves", leaves.points)),
    )
    results.report_sizes(run.execution, assigned.sums, sq_radius)
    results.warn_about_zero_rows(run.execution, assigned.zero_rows, features.n_rows)
    return assigned


def _draw_candidates(
    execution: Execution, features: Features, config: ResolvedConfig
) -> tuple[AffineMap, Delayed]:
    """Fit the preprocessing map and draw the candidates; the workers free the survey on return."""
    asked = config.asked
    rows = sample_rows(asked.seed, Purpose.CANDIDATES, config.n_rows, config.n_candidates)
    kind = asked.first_preprocess
    survey = survey_pass(execution, features, rows, needs_moments(kind))
    affine = fit_map(kind, features.n_features, moments_of(survey))
    return affine, candidates_from(survey, rows, affine)


def _build_model(
    start: _Start, moved: Refinement, assigned: AssignedPart, leaves: _Leaves | None
) -> Model:
    model = results.build_model(
        moved.centers,
        assigned.sums,
        start.affine,
        start.config.asked,
        center_rows=start.extracted.rows,
        losses=start.extracted.extraction.losses,
        neighbors=start.extracted.extraction.neighbors,
        n_candidates=start.config.n_candidates,
    )
    if leaves is not None and assigned.leaf_counts is not None:
        return replace(model, tree=leaves.tree(assigned.leaf_counts), has_fine_level=True)
    # k-means moves rows between clusters, which invalidates the tree
    return replace(model, tree=None if moved.iterations else start.tree)
