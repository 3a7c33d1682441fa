"""Label rows with a model."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.engine.execution import Execution, persist, task
from scrlm_dask.engine.features import Features, FeaturesLike, as_features
from scrlm_dask.engine.workers import check_paths_visible
from scrlm_dask.errors import InputError
from scrlm_dask.events import Listener, warn
from scrlm_dask.kernels.distances.points import Points
from scrlm_dask.kernels.distances.pruning import prepare_centers
from scrlm_dask.model import Model
from scrlm_dask.passes.assign import label_pass
from scrlm_dask.passes.digests import verify_rewritten
from scrlm_dask.pipeline.results import warn_about_zero_rows
from scrlm_dask.storage import outputs
from scrlm_dask.storage.arrays import trace_node
from scrlm_dask.storage.feature_store import is_shuffled, mark_complete
from scrlm_dask.storage.label_store import create_labels_store
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.model_store import files_of, load_model
from scrlm_dask.storage.store_info import RecordedFeatures, features_digest
from scrlm_dask.storage.traces import InputTrace


@dataclass(frozen=True)
class Prediction:
    """Labels of new rows.

    Attributes
    ----------
    labels : numpy.ndarray of shape (rows,) or None
        Label of each row, -1 for outliers; None if the labels were not collected.
    n_rows, n_outliers : int
        Number of rows and of outliers.
    counts : numpy.ndarray of shape (k,)
        Number of rows with each label.
    """

    labels: NDArray[np.int32] | None
    n_rows: int
    n_outliers: int
    counts: NDArray[np.int64]


def predict(
    model: Model | Place,
    source: FeaturesLike,
    *,
    out: Place | None = None,
    overwrite: bool = False,
    margins: bool = True,
    collect_labels: bool | None = None,
    block_rows: int | None = None,
    storage_options: Options | None = None,
    listener: Listener = warn,
) -> Prediction:
    """Label rows with a model; if it is the path of a run directory, the workers load the model.

    Without `margins`, the labels store `out` has no margins and no distances of outliers; this is
    faster. `storage_options` are used to open the URLs of the run, the features and `out`.
    """
    job = prepare_predict(
        *(model, source, out, overwrite, margins, collect_labels, block_rows, storage_options)
    )
    return job.run(listener)


def prepare_predict(
    model: Model | Place,
    source: FeaturesLike,
    out: Place | None = None,
    overwrite: bool = False,
    margins: bool = True,
    collect_labels: bool | None = None,
    block_rows: int | None = None,
    storage_options: Options | None = None,
) -> PredictJob:
    """Open the model and the features of `predict` and check its output; read no row."""
    features = as_features(source, block_rows, storage_options)
    given = model if isinstance(model, Model) else locate(model, storage_options)
    fitted = given if isinstance(given, Model) else load_model(given)
    check_width(fitted, features.n_features, features.label)
    labels_at = None if out is None else locate(out, storage_options)
    if labels_at is not None:
        outputs.check_not_inside(labels_at, features.location, "the features")
        if isinstance(given, Location):
            outputs.check_not_inside(labels_at, given, "the model")
        outputs.check_output_free(labels_at, overwrite, outputs.LABELS_KIND)
    collects = labels_at is None if collect_labels is None else collect_labels
    return PredictJob(given, features, labels_at, overwrite, margins, collects)


@dataclass(frozen=True)
class PredictJob:
    """A validated prediction, ready to run."""

    model: Model | Location
    features: Features
    labels_at: Location | None  # labels store to write
    overwrite: bool
    margins: bool
    collect_labels: bool

    def run(self, listener: Listener = warn) -> Prediction:
        """Label the rows in the workers of the current client, or in threads of this process."""
        features = self.features
        if features.location is not None:  # workers may have started after the store was opened
            check_paths_visible(features.location)
        model_at = None if isinstance(self.model, Model) else files_of(self.model)
        traced = InputTrace((*features.inputs, *trace_node("the model", model_at)))
        # load again: the run may have been replaced while a cluster was starting
        fitted = self.model if isinstance(self.model, Model) else load_model(self.model)
        check_width(fitted, features.n_features, features.label)
        with ExitStack() as stack:
            labels_at = (
                None if self.labels_at is None else self._create_labels(stack, self.labels_at)
            )
            execution = stack.enter_context(Execution(listener))
            if features.location is not None and features.files is not None:
                verify_rewritten(execution, features.location, features.files)
            labelled = label_pass(
                execution,
                features,
                persist(center_points(self.model)),
                fitted.sq_radius,
                labels_at=labels_at,
                margins=self.margins,
                collect=self.collect_labels,
            )
            warn_about_zero_rows(execution, labelled.zero_rows, labelled.n_rows)
            traced.check()
            if labels_at is not None:
                mark_complete(labels_at)
        labels = np.concatenate(labelled.labels) if self.collect_labels else None
        n_rows, counts = labelled.n_rows, labelled.counts
        return Prediction(labels, n_rows, n_rows - int(counts.sum()), counts)

    def _create_labels(self, stack: ExitStack, path: Location) -> Location:
        """Create an empty labels store, and return the location to write it to."""
        features = self.features
        at = stack.enter_context(outputs.replacing(path, self.overwrite, outputs.LABELS_KIND))
        n_rows, label_rows = features.n_rows, features.label_rows()
        recorded = None
        if features.location is not None:
            digest = features_digest(features.location, features.files)
            shuffled = is_shuffled(features.location)
            recorded = RecordedFeatures(features.location.url, digest, shuffled)
        create_labels_store(at, n_rows, label_rows, self.margins, recorded)
        check_paths_visible(at)
        return at


def center_points(model: Model | Place) -> Delayed:
    """Return a task that prepares the centers; if `model` is a path, the worker loads it."""
    if not isinstance(model, Model):
        return task("centers", _load_points, locate(model))
    return task("centers", prepare_centers, model.centers, model.affine)


def check_width(model: Model, n_features: int, source: str) -> None:
    """Raise if the source does not have the number of features of the model."""
    if n_features != model.n_features:
        raise InputError(
            f"{source} has {n_features} features, but the model was fitted on {model.n_features}; "
            "give features of the same encoder"
        )


def _load_points(location: Location) -> Points:
    model = load_model(location)
    return prepare_centers(model.centers, model.affine)
