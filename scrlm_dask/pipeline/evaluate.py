"""Score labels against the truth, block by block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import uuid4

import dask
import numpy as np
from numpy.typing import NDArray

from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.tree_reduce import tree_reduce
from scrlm_dask.engine.workers import compute
from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.events import Listener, warn
from scrlm_dask.kernels.evaluation import metrics
from scrlm_dask.pipeline.results import warn_about_order
from scrlm_dask.runs.record import read_result
from scrlm_dask.storage import label_store
from scrlm_dask.storage.arrays import StoredArray, read_rows, trace_node
from scrlm_dask.storage.feature_store import has_truth, read_true_sigmas
from scrlm_dask.storage.locations import (
    Location,
    Options,
    Place,
    TrustedOrigins,
    locate,
    locate_recorded,
    trust,
)
from scrlm_dask.storage.masks import remove_mask
from scrlm_dask.storage.model_store import load_model
from scrlm_dask.storage.npy_files import NpyColumn
from scrlm_dask.storage.run_directory import RunDirectory
from scrlm_dask.storage.store_info import RecordedFeatures, features_in
from scrlm_dask.storage.traces import Input, InputTrace

_BLOCK_ROWS = 2**20
_LARGEST = np.iinfo(np.int64).max
_GIVE_TRUTH = "give the true labels with --truth (truth), as a .npy file or a Zarr array"

Labels: TypeAlias = StoredArray | NpyColumn | NDArray[Any]
TruthLike: TypeAlias = Place | NDArray[Any] | None


@dataclass(frozen=True)
class Evaluation:
    """Result of `evaluate`: how well labels and mixture agree with the truth.

    Attributes
    ----------
    scores : Scores
        Agreement of the labels with the true labels.
    recovery : Recovery or None
        Errors of the estimated mixture; None if the true mixture is not known.
    """

    scores: metrics.Scores
    recovery: metrics.Recovery | None


def evaluate(
    path: Place,
    truth: TruthLike = None,
    *,
    storage_options: Options | None = None,
    allow_origins: Sequence[str] = (),
    listener: Listener = warn,
) -> Evaluation:
    """Score labels against the true labels, block by block.

    Parameters
    ----------
    path : str or Path
        A run directory, or a labels store that `predict` or `cut` wrote.
    truth : str, Path, numpy.ndarray or None
        True labels, -1 for outliers: an array, a .npy file or a Zarr store. None: the labels in the
        features store.
    storage_options : dict or None
        fsspec options used to open URLs. They are neither printed nor saved.
    allow_origins : sequence of str
        Origins, such as "s3://bucket", of recorded URLs that may also be opened. By default, only
        URLs with the scheme and the bucket or host of a given URL are opened.
    listener : callable
        Receives the events of the run (`scrlm_dask.events`); by default, warnings are emitted.

    Returns
    -------
    scrlm_dask.results.Evaluation
        `scores` (accuracy, purity, NMI, ARI, precision and recall of outliers), and `recovery` if
        the features store contains the mixture that its rows were drawn from.

    Raises
    ------
    InputError
        If there is no truth, or if it has another number of rows than the labels.
    StoreError
        If the labels or the truth cannot be read.

    Examples
    --------
    >>> import scrlm_dask
    >>> scores = scrlm_dask.evaluate("run").scores
    >>> scores.accuracy, scores.outlier_recall
    (1.0, 1.0)
    """
    return prepare_evaluate(path, truth, storage_options, allow_origins).run(listener)


def prepare_evaluate(
    path: Place,
    truth: TruthLike = None,
    storage_options: Options | None = None,
    allow_origins: Sequence[str] = (),
) -> EvaluateJob:
    """Open the labels and the true labels of `evaluate`, without reading them."""
    location = locate(path, storage_options)
    run = None if label_store.is_labels_store(location) else RunDirectory(location)
    if run is not None:
        read_result(run)  # raises if the record was changed
    labels = label_store.open_labels(location if run is None else run.labels, "the labels store")
    inputs = [*trace_labels("the labels", labels)]
    # read after the labels are traced, because others may replace these labels
    if run is None:
        recorded = label_store.labelled_features(location)
    else:
        recorded = features_in(run.check_complete())
    source = None
    trusted = trust([location], allow_origins, storage_options)
    if truth is None and recorded is not None:
        source = locate_recorded(recorded.path, trusted)
    if truth is not None and not isinstance(truth, np.ndarray):
        truth = locate(truth, storage_options)
    drawn_from = None if run is None else source
    opened = open_given_truth(truth, source)
    shuffled = None if truth is None else _find_shuffled(recorded, opened, trusted)
    inputs += trace_labels("the truth", opened)
    if source is not None and recorded is not None:
        try:
            inputs.append(recorded.open_unchanged(source))
        except StoreError as error:
            raise StoreError(f"{error}; label the rows again, or {_GIVE_TRUTH}") from error
    return EvaluateJob(labels, opened, location, drawn_from, shuffled, InputTrace(tuple(inputs)))


def _find_shuffled(
    labelled: RecordedFeatures | None, truth: Labels, trusted: TrustedOrigins
) -> str | None:
    """Return the path of shuffled features if the truth may be in another order than the labels."""
    known = label_store.features_of_labels(truth) if isinstance(truth, StoredArray) else None
    if labelled and known and known.digest is not None and labelled.digest == known.digest:
        return None
    shuffled = (each.path for each in (labelled, known) if each and each.were_shuffled(trusted))
    return next(shuffled, None)


def trace_labels(name: str, labels: Labels) -> tuple[Input, ...]:
    """Trace stored labels as an input that must not change; an array in memory has no files."""
    return () if isinstance(labels, np.ndarray) else trace_node(name, labels.location)


@dataclass(frozen=True)
class EvaluateJob:
    """A validated evaluation, ready to run."""

    labels: Labels
    truth: Labels
    location: Location  # location of the run or of the labels store
    drawn_from: Location | None  # features store of the run, if it contains the truth
    shuffled: str | None  # path of shuffled features if the truth may be in another order
    traced: InputTrace

    def run(self, listener: Listener = warn) -> Evaluation:
        """Compare labels and truth in the workers of the current client, or in local threads."""
        with Execution(listener) as execution:
            if self.shuffled is not None:
                warn_about_order(execution, self.shuffled, "the truth")
            table = contingency_pass(execution, self.truth, self.labels)
        scored = metrics.scores(table)
        true_sigmas = None if self.drawn_from is None else read_true_sigmas(self.drawn_from)
        model = None if true_sigmas is None else load_model(self.location)
        self.traced.check()  # a run that was replaced also has other labels
        if true_sigmas is None or model is None:
            return Evaluation(scored, None)
        errors = metrics.recovery(table, scored, model.weights, model.sigmas, true_sigmas)
        return Evaluation(scored, errors)


def open_given_truth(truth: TruthLike, source: Location | None) -> Labels:
    """Open the given true labels, or by default the labels in the features store at `source`."""
    if isinstance(truth, np.ndarray):
        label_store.check_labels_like(truth.shape, truth.dtype, "the truth")
        checked: NDArray[Any] = remove_mask(truth, "the truth")
        return checked
    if truth is not None:
        return label_store.open_truth(truth)
    if source is None:
        raise InputError(f"these labels do not record the path of their features; {_GIVE_TRUTH}")
    try:
        has_labels = has_truth(source)
    except StoreError as error:
        raise StoreError(f"{error}, or {_GIVE_TRUTH}") from error
    if not has_labels:
        raise InputError(f"the features store {source} contains no labels; {_GIVE_TRUTH}")
    return label_store.open_labels(source, "the truth")


def contingency_pass(execution: Execution, truth: Labels, labels: Labels) -> metrics.Contingency:
    """Count the rows with each combination of true class and label."""
    n_rows = labels.shape[0]
    if truth.shape[0] != n_rows:
        raise InputError(
            f"the truth has {truth.shape[0]} rows and the labels have {n_rows} rows; "
            "give one true label per row of the features store, without the rows that were "
            "dropped during ingest"
        )
    token = uuid4().hex
    parts = []
    for i, start in enumerate(range(0, n_rows, _BLOCK_ROWS)):
        span = (start, min(start + _BLOCK_ROWS, n_rows))
        arrays = (_slice(truth, *span), _slice(labels, *span))
        name = (f"evaluate-{token}", i)
        parts.append(dask.delayed(_part, pure=False)(*arrays, *span, dask_key_name=name))
    with execution.phase("evaluate", len(parts), n_rows, 8 * n_rows):
        table: metrics.Contingency = compute(
            tree_reduce(parts, metrics.merge_contingency, "evaluate")
        )[0]
    return table


def _slice(labels: Labels, start: int, stop: int) -> Labels:
    """Return rows start..stop-1 of an array; return stored labels whole, for the task to read."""
    return labels[start:stop] if isinstance(labels, np.ndarray) else labels


def _part(truth: Labels, labels: Labels, start: int, stop: int) -> metrics.Contingency:
    return metrics.contingency(read_labels(truth, start, stop), read_labels(labels, start, stop))


def read_labels(labels: Labels, start: int, stop: int) -> NDArray[np.int64]:
    """Read rows start..stop-1 of stored labels; an array already contains only these rows."""
    if isinstance(labels, StoredArray):
        labels = read_rows(labels, start, stop, "the labels")
    elif isinstance(labels, NpyColumn):
        labels = labels.read(start, stop)
    if labels.dtype.kind == "u" and labels.max(initial=0) > _LARGEST:
        raise InputError(  # as a signed integer, it could be -1, which marks outliers
            f"labels must be at most {_LARGEST}, got {labels.max()}; number the classes from 0"
        )
    return labels.astype(np.int64)
