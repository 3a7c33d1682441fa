"""Build the model of a run, and warn about results that may not be intended."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.config import ASSUMED_CLUSTERS, FitConfig, KMeansConfig, ResolvedConfig
from scrlm_dask.engine.execution import Execution
from scrlm_dask.events import CandidatesJudged, Note, RowsLabelled
from scrlm_dask.kernels.distances.cluster_sums import ClusterSums
from scrlm_dask.kernels.distances.points import prepare_points, radius
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.kernels.kmeans.lloyd import inertia
from scrlm_dask.kernels.scrlm.mixture import mixture_parameters
from scrlm_dask.kernels.scrlm.theory import MIN_WEIGHT, missed_cluster_risk, required_sizes
from scrlm_dask.model import Model

_NO_ROWS = np.empty(0, np.int64)


def build_model(
    centers: NDArray[Any],
    sums: ClusterSums,
    affine: AffineMap,
    config: FitConfig | KMeansConfig,
    *,
    center_rows: NDArray[np.int64] = _NO_ROWS,
    losses: NDArray[np.float64] | None = None,
    neighbors: NDArray[np.int64] = _NO_ROWS,
    n_candidates: int = 0,
) -> Model:
    """Build a model from centers (k, p), in input units, and sums over the rows of each cluster."""
    points = prepare_points(centers, affine)
    sq_radius = config.sq_radius(affine.n_features)
    mixture = mixture_parameters(
        sums, points.raw * points.inv_norms[:, None], affine.scale, math.sqrt(sq_radius)
    )
    return Model(
        centers=centers,
        center_rows=center_rows,
        losses=np.empty(0) if losses is None else losses,
        neighbors=neighbors,
        means=mixture.means,
        counts=sums.counts,
        weights=mixture.weights,
        sigmas=mixture.sigmas,
        outlier_weight=mixture.outlier_weight,
        n_outliers=sums.n_rows - int(sums.counts.sum()),
        n_rows=sums.n_rows,
        n_candidates=n_candidates,
        inertia=inertia(sums, sq_radius),
        affine=affine,
        config=config,
    )


_NOTABLE_RISK = 0.05
_CURVE_POINTS = 100


def report_losses(execution: Execution, losses: NDArray[np.float64]) -> None:
    """Report the sorted losses (n,) of the candidates as a curve of at most 100 points."""
    rising = np.sort(losses)
    ranks = np.unique(np.linspace(0, len(rising) - 1, _CURVE_POINTS).astype(np.int64))
    curve = tuple(float(loss) for loss in rising[ranks])
    execution.emit(CandidatesJudged(len(losses), tuple(int(rank) + 1 for rank in ranks), curve))


def report_sizes(execution: Execution, sums: ClusterSums, sq_radius: float) -> None:
    """Report the number of outliers and the sizes of the clusters, from the sums of a pass."""
    counts, outliers = sums.counts, sums.n_rows - int(sums.counts.sum())
    filled = counts[counts > 0]
    sizes = tuple(int(n) for n in np.bincount(np.frexp(filled)[1] - 1)) if len(filled) else ()
    empty = len(counts) - len(filled)
    execution.emit(RowsLabelled(sums.n_rows, outliers, inertia(sums, sq_radius), sizes, empty))


def warn_about_zero_rows(execution: Execution, zero_rows: int, n_rows: int) -> None:
    """Warn if some of the labelled rows contain only zeros; `zero_rows` is their number."""
    if zero_rows:
        execution.emit(
            Note(
                f"{zero_rows} of {n_rows} rows contain only zeros, for example because their "
                "encoding failed: they have no direction, so l2 cannot scale them, and their "
                "labels are arbitrary or they are a cluster of their own; remove them with "
                "scrlm ingest --zeros drop (zeros)",
                warning=True,
            )
        )


def warn_about_order(execution: Execution, shuffled: str, what: str) -> None:
    """Warn that `what`, values given per row, may be in another order than the rows.

    `shuffled` is the path of a features store whose rows were shuffled.
    """
    execution.emit(
        Note(
            f"the rows of {shuffled} were shuffled during ingest, so check the order of {what}: "
            "value i must belong to row i of the features store that was clustered or labelled, "
            "not of its source; the arrays 'source_row' and 'source_file' of the shuffled store "
            "contain the source row of each row, and the number of its file",
            warning=True,
        )
    )


def report_candidates(execution: Execution, config: ResolvedConfig) -> None:
    """Report the number of candidates if the user gave neither it nor the number of clusters."""
    asked, text = config.asked, f"all {config.n_rows} rows are candidates"
    if asked.n_candidates == "auto" and not asked.samples:
        if config.n_candidates < config.n_rows:
            text = f"{config.n_candidates} candidates, enough to find {ASSUMED_CLUSTERS} clusters"
        execution.emit(Note(f"number of clusters not given: {text}"))


def warn_about_result(
    execution: Execution, model: Model, config: FitConfig, *, chosen: bool, with_margins: bool
) -> None:
    """Warn about results that may not be intended; `chosen` is true if rho was not given."""
    rho = config.given_rho
    reach = radius(rho, config.F, model.n_features)
    if config.prune != "auto" and not _can_prune(config, with_margins):
        _warn(execution, _describe_idle_prune(config))
    if model.n_clusters == 0:
        _warn(
            execution,
            f"no cluster found: no candidate has {config.min_neighbors} other row(s) closer than "
            f"the radius {reach:.4g}; try a larger rho than {rho:g}, more candidates or fewer "
            "min_neighbors",
        )
        return
    alone = model.n_clusters == 1 and model.n_outliers == 0 and model.n_rows > 1
    if alone and config.robust and not chosen:
        hint = " (rows of unit length are at most 2 apart)" if model.affine.unit_length else ""
        _warn(
            execution,
            f"one cluster contains all rows: the radius {reach:.4g} includes everything{hint}; try "
            f"a smaller rho than {rho:g}",
        )
        return
    n_empty = int(np.count_nonzero(model.counts == 0))
    if n_empty and math.isfinite(model.radius):
        text = f"{n_empty} of {model.n_clusters} clusters are empty: all of their rows are outliers"
        execution.emit(Note(text))
    if config.extraction == "merge":
        return  # the theory does not cover merging, and the scan has reported missing clusters
    if config.n_clusters is not None and model.n_clusters < config.n_clusters:
        text = f"{model.n_clusters} clusters found; {config.n_clusters} were requested"
        execution.emit(Note(text))
    # candidates that are outliers do not find clusters
    inliers = 1.0 - model.n_outliers / model.n_rows
    risk = missed_cluster_risk(model.n_clusters, model.n_candidates, MIN_WEIGHT * inliers)
    if risk > _NOTABLE_RISK and model.n_candidates < model.n_rows:
        enough = required_sizes(model.n_clusters, min_weight=MIN_WEIGHT * inliers).n_candidates
        effect = "it is negligible" if enough <= model.n_rows else "all rows are tried"
        _warn(
            execution,
            f"{model.n_candidates} candidates are few for {model.n_clusters} clusters and "
            f"{1.0 - inliers:.0%} outliers: the risk of having missed a cluster is up to "
            f"{risk:.0%}; with --candidates {min(enough, model.n_rows)} (n_candidates) {effect}",
        )


def _warn(execution: Execution, text: str) -> None:
    execution.emit(Note(text, warning=True))


def _can_prune(config: FitConfig, with_margins: bool) -> bool:
    """Return whether any pass of the fit can use pruning."""
    return config.extraction == "greedy" or bool(config.refine.max_iter) or not with_margins


def _describe_idle_prune(config: FitConfig) -> str:
    return (
        f"--prune {config.prune} (prune) had no effect: the centers were found on a sample, there "
        "were no k-means iterations, and margins require comparing every row with every center; "
        "omit --prune, or use --no-margins (margins=False)"
    )
