"""Blocks that are labelled again, and compared with what a run has stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.config import FitConfig
from scrlm_dask.engine.execution import Execution, Pass
from scrlm_dask.engine.features import Features, as_features
from scrlm_dask.errors import StoreError
from scrlm_dask.events import Listener, warn
from scrlm_dask.kernels.distances.assignment import assign_and_sum
from scrlm_dask.kernels.distances.points import Points
from scrlm_dask.kernels.distances.pruning import Prune
from scrlm_dask.kernels.randomness.sampling import Purpose, stream
from scrlm_dask.model import Model
from scrlm_dask.passes.lloyd import send_centers
from scrlm_dask.passes.loss import loss_pass
from scrlm_dask.passes.survey import candidates_from, survey_pass
from scrlm_dask.storage.label_store import read_labels_block
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.model_store import load_model
from scrlm_dask.storage.run_directory import RunDirectory
from scrlm_dask.storage.store_info import features_digest

# of a distance: a CPU with other instructions rounds otherwise
_DISTANCE_TOLERANCE = 1e-5


@dataclass(frozen=True)
class LabelComparison:
    """What some rows say: a mergeable part."""

    rows: int
    wrong_labels: int
    wrong_distances: int
    first_wrong: int | None  # row number


def compare_labels_pass(
    execution: Execution,
    features: Features,
    centers: Delayed,
    sq_radius: float,
    labels_url: Location,
    *,
    prune: Prune,
    margins: bool,
    blocks: list[int],
) -> LabelComparison:
    """Label the blocks as the run did, and compare with its labels store."""
    broadcast = {
        "centers": centers,
        "sq_radius": sq_radius,
        "labels_url": labels_url,
        "prune": prune,
        "margins": margins,
    }
    found: LabelComparison = execution.run(_COMPARE_LABELS, features, broadcast, blocks=blocks)
    return found


def _compare_labels_part(
    block: NDArray[Any],
    start: int,
    centers: Points,
    sq_radius: float,
    labels_url: Location,
    prune: Prune,
    margins: bool,
) -> LabelComparison:
    found = assign_and_sum(block, centers, sq_radius, margins=margins, prune=prune).assignment
    labels, distances = read_labels_block(labels_url, start, start + len(block))
    other = labels != found.labels
    far = ~np.isclose(
        distances, found.distances, rtol=_DISTANCE_TOLERANCE, atol=0.0, equal_nan=True
    )
    wrong = np.flatnonzero(other | far)
    first = start + int(wrong[0]) if len(wrong) else None
    return LabelComparison(len(block), int(other.sum()), int(far.sum()), first)


def _merge(a: LabelComparison, b: LabelComparison) -> LabelComparison:
    first = min((n for n in (a.first_wrong, b.first_wrong) if n is not None), default=None)
    return LabelComparison(
        a.rows + b.rows,
        a.wrong_labels + b.wrong_labels,
        a.wrong_distances + b.wrong_distances,
        first,
    )


_COMPARE_LABELS = Pass("verify", _compare_labels_part, _merge)


_LOSS_TOLERANCE = 1e-5  # losses of other sets of candidates agree to this


@dataclass(frozen=True)
class Verification:
    """What was computed again, and what of it differs from what the run has stored."""

    blocks: tuple[int, ...]
    rows: int
    wrong_labels: int
    wrong_distances: int
    first_wrong_row: int | None
    clusters: tuple[int, ...]  # whose losses were taken again
    wrong_clusters: tuple[int, ...]  # those whose loss or neighbours differ

    @property
    def ok(self) -> bool:
        return self.first_wrong_row is None and not self.wrong_clusters


def verify_run(
    path: Place,
    *,
    blocks: int = 8,
    losses: int = 4,
    seed: int = 0,
    storage_options: Options | None = None,
    listener: Listener = warn,
) -> Verification:
    """Label a random sample of blocks again, and take the losses of some clusters again.

    Losses are sums over all rows that the run took them over: they are one read of the features.
    """
    run, model, features = _open(path, storage_options)
    features = features.in_blocks_for(model.n_clusters)
    rng = stream(seed, Purpose.BLOCK_SAMPLE, 1)
    chosen = sorted(int(i) for i in rng.permutation(features.n_blocks)[:blocks])
    clusters = np.sort(rng.permutation(_n_losses(model))[:losses])
    with Execution(listener) as execution:
        compared = LabelComparison(0, 0, 0, None)
        if chosen:
            compared = compare_labels_pass(
                execution,
                features,
                send_centers(model.centers, model.affine),
                model.sq_radius,
                run.labels,
                prune=model.config.prune,
                margins=model.config.margins,
                blocks=chosen,
            )
        wrong = _wrong_losses(execution, features, model, clusters) if len(clusters) else ()
    return Verification(
        tuple(chosen),
        compared.rows,
        compared.wrong_labels,
        compared.wrong_distances,
        compared.first_wrong,
        tuple(int(i) for i in clusters),
        wrong,
    )


def check_verify(path: Place, storage_options: Options | None = None) -> None:
    """Raise what `verify_run` would raise before it reads a row."""
    _open(path, storage_options)


def _open(path: Place, storage_options: Options | None) -> tuple[RunDirectory, Model, Features]:
    run = RunDirectory(locate(path, storage_options))
    record, model = run.result(), load_model(run.location)
    return run, model, _features_of(record, storage_options)


def _n_losses(model: Model) -> int:
    """How many losses there are to compare: those of a sample are not taken over all rows."""
    config = model.config
    judged = isinstance(config, FitConfig) and config.extraction == "greedy"
    return len(model.losses) if judged else 0


def _features_of(record: dict[str, Any], storage_options: Options | None) -> Features:
    """The features of the run, if they are still those."""
    features = record["features"]
    if features["path"] is None:
        raise StoreError("the run's features were an array in memory; it cannot be verified")
    place = locate(features["path"], storage_options)
    if features_digest(place) != features.get("digest"):
        raise StoreError(
            f"the features store {place} is not the one that the run read: it was written to since"
        )
    return as_features(place, features["block_rows"])


def _wrong_losses(
    execution: Execution, features: Features, model: Model, clusters: Any
) -> tuple[int, ...]:
    """The clusters whose loss, or whose neighbours, are others than the model says."""
    assert isinstance(model.config, FitConfig)  # k-means has no losses
    order = clusters[np.argsort(model.center_rows[clusters])]
    rows = model.center_rows[order]
    survey = survey_pass(execution, features, rows, with_moments=False)
    candidates = candidates_from(survey, rows, model.affine)
    config = model.config.resolve(features.n_rows)
    (found,) = loss_pass(execution, features, candidates, config, [model.config.given_rho]).losses
    far = ~np.isclose(found.losses, model.losses[order], rtol=_LOSS_TOLERANCE, atol=_LOSS_TOLERANCE)
    wrong = order[far | (found.neighbors != model.neighbors[order])]
    return tuple(sorted(int(i) for i in wrong))
