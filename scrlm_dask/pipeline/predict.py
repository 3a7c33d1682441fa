"""Labels for rows, from a model."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.engine.execution import Execution, persist, task
from scrlm_dask.engine.features import FeaturesLike, as_features
from scrlm_dask.engine.workers import check_paths_visible
from scrlm_dask.errors import InputError
from scrlm_dask.events import Listener, warn
from scrlm_dask.kernels.distances.points import Points
from scrlm_dask.kernels.distances.pruning import prepare_centers
from scrlm_dask.model import Model
from scrlm_dask.passes.assign import label_pass
from scrlm_dask.storage.feature_store import mark_complete
from scrlm_dask.storage.label_store import create_labels_store
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.model_store import load_model
from scrlm_dask.storage.outputs import (
    LABELS_KIND,
    check_not_inside,
    check_output_free,
    clear_output,
    discard,
)


@dataclass(frozen=True)
class Prediction:
    """Labels of new rows."""

    labels: NDArray[np.int32] | None  # (N,) if they were collected
    n_rows: int
    n_outliers: int
    counts: NDArray[np.int64]  # (k,)


def check_predict(
    model: Model | Place,
    source: FeaturesLike,
    out: Place,
    overwrite: bool = False,
    block_rows: int | None = None,
    storage_options: Options | None = None,
) -> None:
    """Raise what `predict` would raise before it reads a row."""
    features = as_features(source, block_rows, storage_options)
    fitted = model if isinstance(model, Model) else load_model(model, storage_options)
    check_width(fitted, features.n_features, features.label)
    target = locate(out, storage_options)
    check_not_inside(target, features.path)
    check_output_free(target, overwrite, LABELS_KIND)


def predict(
    model: Model | Place,
    source: FeaturesLike,
    *,
    out: Place | None = None,
    overwrite: bool = False,
    margins: bool = True,
    collect_labels: bool = False,
    block_rows: int | None = None,
    storage_options: Options | None = None,
    listener: Listener = warn,
) -> Prediction:
    """Label rows with a model, or with the one in a run directory, which the workers then load.

    Without `margins` what goes to `out` has no margins, and no distances of outliers: faster.
    `storage_options` open URLs, of the run, of features and of `out`.
    """
    if not isinstance(model, Model):
        model = locate(model, storage_options)
    fitted = model if isinstance(model, Model) else load_model(model)
    features = as_features(source, block_rows, storage_options)
    check_width(fitted, features.n_features, features.label)
    with ExitStack() as undo, Execution(listener) as execution:
        labels_url = None
        if out is not None:
            labels_url = locate(out, storage_options)
            check_not_inside(labels_url, features.path)
            clear_output(labels_url, overwrite, LABELS_KIND)
            undo.callback(discard, labels_url)
            create_labels_store(
                labels_url, features.n_rows, features.block_rows, margins, features.path
            )
            check_paths_visible(labels_url)
        found = label_pass(
            execution,
            features,
            persist(center_points(model)),
            fitted.sq_radius,
            labels_at=labels_url,
            margins=margins,
            collect=collect_labels,
        )
        if labels_url is not None:
            mark_complete(labels_url)
        undo.pop_all()
    labels = np.concatenate(found.labels) if collect_labels else None
    return Prediction(labels, found.n_rows, found.n_rows - int(found.counts.sum()), found.counts)


def center_points(model: Model | Place) -> Delayed:
    """A task that gives the model's centers, read by the worker where the model has a path."""
    if not isinstance(model, Model):
        return task("centers", _load_points, locate(model))
    return task("centers", prepare_centers, model.centers, model.affine)


def check_width(model: Model, n_features: int, what: str) -> None:
    if n_features != model.n_features:
        raise InputError(
            f"{what} has {n_features} features, but the model was fitted on {model.n_features}; "
            "give features of the same encoder"
        )


def _load_points(location: Location) -> Points:
    model = load_model(location)
    return prepare_centers(model.centers, model.affine)
