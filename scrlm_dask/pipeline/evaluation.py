"""Labels against the truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.events import Listener, warn
from scrlm_dask.kernels.metrics import Scores, scores
from scrlm_dask.kernels.recovery import Recovery, recovery
from scrlm_dask.passes.evaluate import Labels, contingency_pass
from scrlm_dask.passes.execution import Execution
from scrlm_dask.storage.features import has_truth, read_true_sigmas
from scrlm_dask.storage.labels import check_labels_like, open_labels, open_truth
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.models import load_model
from scrlm_dask.storage.runs import RunDirectory

TruthLike: TypeAlias = Place | NDArray[Any] | None


@dataclass(frozen=True)
class Evaluation:
    """Labels against the truth, and the mixture against the one that rows were drawn from."""

    scores: Scores
    recovery: Recovery | None  # where the features store knows its mixture


def evaluate_run(
    path: Place,
    truth: TruthLike = None,
    *,
    storage_options: Options | None = None,
    listener: Listener = warn,
) -> Evaluation:
    """Score a run's labels against the truth: an array, labels at a path or URL (.npy or Zarr), or
    by default those of the run's features store. `storage_options` open URLs."""
    run = RunDirectory(locate(path, storage_options))
    recorded = run.check_complete()["features"]["path"]
    source = None if recorded is None else locate(recorded, storage_options)
    if truth is not None and not isinstance(truth, np.ndarray):
        truth = locate(truth, storage_options)
    labels = open_labels(run.labels, "the labels")
    with Execution(listener) as execution:
        table = contingency_pass(execution, _truth(truth, source), labels)
    found = scores(table)
    true_sigmas = read_true_sigmas(source) if truth is None and source is not None else None
    if true_sigmas is None:
        return Evaluation(found, None)
    model = load_model(run.path)
    errors = recovery(table, found, model.weights, model.sigmas, true_sigmas)
    return Evaluation(found, errors)


def _truth(truth: TruthLike, source: Location | None) -> Labels:
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
