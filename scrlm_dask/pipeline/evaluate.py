"""Labels against the truth, block by block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias
from uuid import uuid4

import dask
import numpy as np
from numpy.typing import NDArray

from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.tree_reduce import tree_reduce
from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.events import Listener, warn
from scrlm_dask.kernels.evaluation.metrics import (
    Contingency,
    Recovery,
    Scores,
    contingency,
    merge_contingency,
    recovery,
    scores,
)
from scrlm_dask.storage.arrays import StoredArray, read_rows
from scrlm_dask.storage.feature_store import has_truth, read_true_sigmas
from scrlm_dask.storage.label_store import (
    check_labels_like,
    is_labels_store,
    labelled_features,
    open_labels,
    open_truth,
)
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.model_store import load_model
from scrlm_dask.storage.npy_files import NpyColumn
from scrlm_dask.storage.run_directory import RunDirectory

_BLOCK_ROWS = 2**20


Labels: TypeAlias = StoredArray | NpyColumn | NDArray[Any]


def contingency_pass(execution: Execution, truth: Labels, labels: Labels) -> Contingency:
    """How often each true class met each label."""
    n_rows = labels.shape[0]
    if truth.shape[0] != n_rows:
        raise InputError(
            f"the truth has {truth.shape[0]} rows and the labels have {n_rows}; "
            "they must describe the same rows"
        )
    starts = range(0, n_rows, _BLOCK_ROWS)
    token = uuid4().hex
    parts = [
        dask.delayed(_part, pure=False)(
            _slice(truth, start, min(start + _BLOCK_ROWS, n_rows)),
            _slice(labels, start, min(start + _BLOCK_ROWS, n_rows)),
            start,
            min(start + _BLOCK_ROWS, n_rows),
            dask_key_name=(f"evaluate-{token}", i),
        )
        for i, start in enumerate(starts)
    ]
    with execution.phase("evaluate", len(parts), n_rows, 8 * n_rows):
        table: Contingency = dask.compute(tree_reduce(parts, merge_contingency, "evaluate"))[0]
    return table


def _slice(labels: Labels, start: int, stop: int) -> Labels:
    """Arrays travel in pieces; stored ones are read where they are compared."""
    return labels[start:stop] if isinstance(labels, np.ndarray) else labels


def _part(truth: Labels, labels: Labels, start: int, stop: int) -> Contingency:
    return contingency(read_labels(truth, start, stop), read_labels(labels, start, stop))


def read_labels(labels: Labels, start: int, stop: int) -> NDArray[np.int64]:
    """Rows start..stop-1 of stored labels; of an array, all of it: it came as that piece."""
    if isinstance(labels, StoredArray):
        labels = read_rows(labels, start, stop, "the labels")
    elif isinstance(labels, NpyColumn):
        labels = labels.read(start, stop)
    return labels.astype(np.int64)


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
    """Score labels, of a run or as `predict` wrote them, against the truth: an array, labels at a
    path or URL (.npy or Zarr), or by default those of the features that were labelled.
    `storage_options` open URLs."""
    opened = _open(path, truth, storage_options)
    with Execution(listener) as execution:
        table = contingency_pass(execution, opened.truth, opened.labels)
    found = scores(table)
    run, source = opened.run, opened.source
    if run is None or truth is not None or source is None:
        return Evaluation(found, None)
    true_sigmas = read_true_sigmas(source)
    if true_sigmas is None:
        return Evaluation(found, None)
    model = load_model(run.path)
    errors = recovery(table, found, model.weights, model.sigmas, true_sigmas)
    return Evaluation(found, errors)


def check_evaluate(
    path: Place, truth: TruthLike = None, storage_options: Options | None = None
) -> None:
    """Raise what `evaluate_run` would raise before it reads a label."""
    _open(path, truth, storage_options)


@dataclass(frozen=True)
class _Opened:
    run: RunDirectory | None  # None where only labels lie
    source: Location | None  # the features that were labelled, where that is known
    truth: Labels
    labels: Labels


def _open(path: Place, truth: TruthLike, storage_options: Options | None) -> _Opened:
    place = locate(path, storage_options)
    run = None if is_labels_store(place) else RunDirectory(place)
    recorded = labelled_features(place) if run is None else _features_of(run)
    source = None if recorded is None else locate(recorded, storage_options)
    if truth is not None and not isinstance(truth, np.ndarray):
        truth = locate(truth, storage_options)
    labels = open_labels(place if run is None else run.labels, "the labels")
    return _Opened(run, source, known_truth(truth, source), labels)


def _features_of(run: RunDirectory) -> str | None:
    path: str | None = run.result()["features"]["path"]
    return path


def known_truth(truth: TruthLike, source: Location | None) -> Labels:
    """The truth that was given, or else the one that the features at `source` come with."""
    if isinstance(truth, np.ndarray):
        check_labels_like(truth.shape, truth.dtype, "the truth")
        return truth
    if truth is not None:
        return open_truth(truth)
    way_out = "give the truth with --truth FILE (.npy or Zarr)"
    if source is None:
        raise InputError(f"it is not known where the features of these labels lie; {way_out}")
    try:
        known = has_truth(source)
    except StoreError as error:
        raise StoreError(f"{error}, or {way_out}") from error
    if not known:
        raise InputError(f"the features {source} hold no labels; {way_out}")
    return open_labels(source, "the truth")
