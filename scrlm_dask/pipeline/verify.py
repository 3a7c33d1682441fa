"""Recompute a random part of a run and compare it with the stored result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.config import FitConfig
from scrlm_dask.engine.execution import Execution, Pass
from scrlm_dask.engine.features import Features, as_features
from scrlm_dask.engine.workers import check_paths_visible
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
from scrlm_dask.runs.record import FeaturesRecord, read_result
from scrlm_dask.storage.arrays import trace_node
from scrlm_dask.storage.label_store import read_labels_block
from scrlm_dask.storage.locations import (
    Location,
    Options,
    Place,
    TrustedOrigins,
    locate,
    locate_recorded,
    trust,
)
from scrlm_dask.storage.model_store import load_model
from scrlm_dask.storage.run_directory import RunDirectory
from scrlm_dask.storage.store_info import features_digest
from scrlm_dask.storage.traces import InputTrace

# Relative tolerance of distances: a CPU with other instructions rounds differently.
_DISTANCE_TOLERANCE = 1e-5
_LOSS_TOLERANCE = 1e-5  # larger than rounding differences between different sets of candidates


@dataclass(frozen=True)
class Verification:
    """Result of `Run.verify`: differences between a run and a part that was computed again.

    Attributes
    ----------
    blocks : tuple of int
        Blocks whose rows were labelled again.
    rows : int
        Number of rows that were labelled again.
    wrong_labels, wrong_distances : int
        Number of rows whose label or distance differs.
    first_wrong_row : int or None
        First row that differs.
    clusters : tuple of int
        Clusters whose losses were computed again.
    wrong_clusters : tuple of int
        Clusters whose loss or number of neighbors differs.
    """

    blocks: tuple[int, ...]
    rows: int
    wrong_labels: int
    wrong_distances: int
    first_wrong_row: int | None
    clusters: tuple[int, ...]
    wrong_clusters: tuple[int, ...]

    @property
    def ok(self) -> bool:
        """True if there are no differences."""
        return self.first_wrong_row is None and not self.wrong_clusters


def verify_run(
    path: Place,
    *,
    blocks: int = 8,
    losses: int = 4,
    seed: int = 0,
    storage_options: Options | None = None,
    allow_origins: Sequence[str] = (),
    listener: Listener = warn,
) -> Verification:
    """Label a random sample of blocks again, and compute the losses of some clusters again.

    Losses are sums over all rows of the run, so computing them takes one read of all features.
    """
    job = prepare_verify(path, blocks, losses, seed, storage_options, allow_origins)
    return job.run(listener)


def prepare_verify(
    path: Place,
    blocks: int,
    losses: int,
    seed: int,
    storage_options: Options | None,
    allow_origins: Sequence[str] = (),
) -> VerifyJob:
    """Open the run of `verify_run` and its features, and draw the blocks and clusters to check."""
    run = RunDirectory(locate(path, storage_options))
    run.check_complete()
    traced = trace_node("the labels store", run.labels)
    # read after the labels are traced, because another run may replace this run
    record, model = read_result(run), load_model(run.location)
    trusted = trust([run.location], allow_origins, storage_options)
    features = _open_features(record.features, trusted).in_blocks_for(model.n_clusters)
    rng = stream(seed, Purpose.BLOCK_SAMPLE, 1)
    chosen = sorted(int(i) for i in rng.permutation(features.n_blocks)[:blocks])
    clusters = np.sort(rng.permutation(_count_losses(model))[:losses])
    traced = (*features.inputs, *traced)
    return VerifyJob(run.labels, model, features, tuple(chosen), clusters, InputTrace(traced))


@dataclass(frozen=True)
class VerifyJob:
    """A validated verification, ready to run."""

    labels_at: Location
    model: Model
    features: Features
    blocks: tuple[int, ...]  # blocks to label again
    clusters: NDArray[np.int64]  # clusters whose losses to recompute
    traced: InputTrace

    def run(self, listener: Listener = warn) -> Verification:
        """Recompute labels and losses, and count the differences."""
        # `prepare_verify` rejects runs on arrays in memory
        assert self.features.location is not None
        check_paths_visible(self.features.location)
        compared = LabelComparison(0, 0, 0, None)
        wrong: tuple[int, ...] = ()
        with Execution(listener) as execution:
            if self.blocks:
                compared = self._compare_labels(execution)
            if len(self.clusters):
                wrong = _find_wrong_losses(execution, self.features, self.model, self.clusters)
        self.traced.check()
        return Verification(
            self.blocks,
            compared.rows,
            compared.wrong_labels,
            compared.wrong_distances,
            first_wrong_row=compared.first_wrong,
            clusters=tuple(int(i) for i in self.clusters),
            wrong_clusters=wrong,
        )

    def _compare_labels(self, execution: Execution) -> LabelComparison:
        """Label the blocks as the run did, and compare with its labels store."""
        model = self.model
        broadcast = {
            "centers": send_centers(model.centers, model.affine),
            "sq_radius": model.sq_radius,
            "labels_at": self.labels_at,
            "prune": model.config.prune,
            "margins": model.config.margins,
        }
        compare = Pass("verify", _compare_labels_part, _merge)
        compared: LabelComparison = execution.run(
            compare, self.features, broadcast, blocks=list(self.blocks)
        )
        return compared


def _open_features(recorded: FeaturesRecord, trusted: TrustedOrigins) -> Features:
    """Open the features of the run; raise if they have changed."""
    if recorded.path is None:
        raise StoreError("the run cannot be verified: its features were an array in memory")
    location = locate_recorded(recorded.path, trusted)
    if features_digest(location) != recorded.digest:
        raise StoreError(
            f"the run cannot be verified: its features store {location} has changed since the run"
        )
    return as_features(location, recorded.block_rows)


def _count_losses(model: Model) -> int:
    """Return the number of losses that can be compared: 0 if they were computed on a sample."""
    config = model.config
    over_all_rows = isinstance(config, FitConfig) and config.extraction == "greedy"
    return len(model.losses) if over_all_rows else 0


def _find_wrong_losses(
    execution: Execution, features: Features, model: Model, clusters: NDArray[np.int64]
) -> tuple[int, ...]:
    """Return the clusters whose loss or number of neighbors differs from that in the model."""
    assert isinstance(model.config, FitConfig)  # k-means has no losses
    order = clusters[np.argsort(model.center_rows[clusters])]
    rows = model.center_rows[order]
    survey = survey_pass(execution, features, rows, with_moments=False)
    candidates = candidates_from(survey, rows, model.affine)
    config = model.config.resolve(features.n_rows)
    (again,) = loss_pass(execution, features, candidates, config, [model.config.given_rho]).losses
    far = ~np.isclose(again.losses, model.losses[order], rtol=_LOSS_TOLERANCE, atol=_LOSS_TOLERANCE)
    wrong = order[far | (again.neighbors != model.neighbors[order])]
    return tuple(sorted(int(i) for i in wrong))


class LabelComparison(NamedTuple):
    """Numbers of differences between stored and recomputed labels of some rows; mergeable."""

    rows: int
    wrong_labels: int
    wrong_distances: int
    first_wrong: int | None  # row number


def _compare_labels_part(
    block: NDArray[Any],
    start: int,
    centers: Points,
    sq_radius: float,
    labels_at: Location,
    prune: Prune,
    margins: bool,
) -> LabelComparison:
    again = assign_and_sum(block, centers, sq_radius, margins=margins, prune=prune).assignment
    labels, distances = read_labels_block(labels_at, start, start + len(block))
    other = labels != again.labels
    far = ~np.isclose(
        distances, again.distances, rtol=_DISTANCE_TOLERANCE, atol=0.0, equal_nan=True
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
