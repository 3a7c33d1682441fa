"""A finished run against its features: some of it computed again, and compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from scrlm_dask.config import FitConfig
from scrlm_dask.errors import StoreError
from scrlm_dask.events import Listener, warn
from scrlm_dask.kernels.sampling import Purpose, stream
from scrlm_dask.model import Model
from scrlm_dask.passes.execution import Execution
from scrlm_dask.passes.features import Features, as_features
from scrlm_dask.passes.lloyd import send_centers
from scrlm_dask.passes.loss import loss_pass
from scrlm_dask.passes.survey import candidates_from, survey_pass
from scrlm_dask.passes.verify import Compared, verify_pass
from scrlm_dask.storage.identity import features_digest
from scrlm_dask.storage.locations import Options, Place, locate
from scrlm_dask.storage.models import load_model
from scrlm_dask.storage.runs import RunDirectory

_CLOSE = 1e-5  # losses of other sets of candidates agree to this


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
        compared = Compared(0, 0, 0, None)
        if chosen:
            compared = verify_pass(
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
    (found,) = loss_pass(execution, features, candidates, config, [model.config.given_rho])
    far = ~np.isclose(found.losses, model.losses[order], rtol=_CLOSE, atol=_CLOSE)
    wrong = order[far | (found.neighbors != model.neighbors[order])]
    return tuple(sorted(int(i) for i in wrong))
