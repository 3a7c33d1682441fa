"""The life of a run: prepare, open or resume its directory, finish it, load its result."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.features import Features
from scrlm_dask.engine.workers import check_paths_visible
from scrlm_dask.events import Listener, Note, RunStarted
from scrlm_dask.model import Model
from scrlm_dask.monitoring.html import run_html
from scrlm_dask.monitoring.json_log import JsonLines
from scrlm_dask.passes.assign import AssignedPart
from scrlm_dask.runs import resume
from scrlm_dask.runs.record import RunRecord, result_record
from scrlm_dask.settings import monitoring_enabled
from scrlm_dask.storage.arrays import read_rows
from scrlm_dask.storage.feature_store import mark_complete
from scrlm_dask.storage.label_store import create_labels_store, open_labels, resume_labels_store
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.model_store import load_model, save_model
from scrlm_dask.storage.outputs import discard
from scrlm_dask.storage.run_directory import EventLog, RunDirectory
from scrlm_dask.storage.store_info import features_mtimes_digest


@dataclass(frozen=True)
class RunTarget:
    """The features and the output of a run that was prepared; neither was read or written yet."""

    features: Features
    features_at: Location | None  # None: an array without a path
    record: RunRecord
    out: Location | None = None
    overwrite: bool = False
    collect_labels: bool = False


def prepare_target(
    features: Features,
    record: RunRecord,
    out: Place | None,
    overwrite: bool,
    collect_labels: bool,
    storage_options: Options | None,
) -> RunTarget:
    """Raise what the output directory would raise when the run opens it."""
    out_at = None if out is None else locate(out, storage_options)
    features_at = None if features.path is None else locate(features.path, storage_options)
    if out_at is not None:
        resume.check_directory(out_at, overwrite, record)
    return RunTarget(features, features_at, record, out_at, overwrite, collect_labels)


@dataclass(frozen=True)
class Run:
    """A run that is being executed."""

    execution: Execution
    opened: resume.OpenRun
    target: RunTarget
    labels_at: Location | None  # where the labels are written, if the run has an output
    began: float  # by the performance counter

    @property
    def collects_labels(self) -> bool:
        """Whether the assignment pass returns the labels, as no store has them."""
        return self.target.collect_labels and self.labels_at is None

    def report_resumed(self) -> None:
        if self.opened.state is not resume.RunState.NEW:
            self.execution.emit(Note("going on with a run that was stopped"))

    def finish(self, model: Model, details: dict[str, Any]) -> dict[str, Any]:
        """Verify that the features are unchanged, write the result and return its record."""
        seconds = time.perf_counter() - self.began
        start, directory = self.opened.record, self.opened.directory
        record = result_record(start, model, self.execution, seconds, details)
        if directory is not None:
            resume.check_unchanged(start, self.target.features_at)
            resume.check_still_owner(directory, start)
            mark_complete(directory.labels)
            discard(directory.model)  # an earlier attempt may have come as far as this
            save_model(model, directory.model)
            directory.finish(record)
        return record

    def gather_labels(self, assigned: AssignedPart) -> NDArray[np.int32] | None:
        """Return the labels (N,) if they are to be collected.

        An earlier attempt may have computed some of them: a store has all, the pass only its own.
        """
        if not self.target.collect_labels:
            return None
        if self.labels_at is None:
            return np.concatenate(assigned.labels)
        labels = open_labels(self.labels_at, "the labels")
        return read_rows(labels, 0, labels.shape[0], "the labels")


@contextmanager
def open_run(target: RunTarget, method: str, margins: bool, listener: Listener) -> Iterator[Run]:
    """Open or resume the run directory, start the execution and report both.

    From here on the directory, if there is one, logs the events.
    """
    features, features_at, record = target.features, target.features_at, target.record
    if features_at is not None:
        check_paths_visible(features_at)
        resume.check_prepared(record, features_at)
        record = replace(record, features_written=features_mtimes_digest(features_at))
    record = replace(record, started=datetime.now(UTC).isoformat(timespec="seconds"))
    with (
        resume.open_directory(target.out, target.overwrite, record, features_at) as opened,
        Execution(listener, opened.checkpoint) as execution,
    ):
        if opened.directory is not None and monitoring_enabled():
            execution.listeners.append(JsonLines(EventLog(opened.directory.events).write))
        source, out = features.path or features.label, target.out
        shape = features.n_rows, features.n_features
        execution.emit(RunStarted(method, source, *shape, None if out is None else out.url))
        resume.check_rewritten_features(execution, opened, features_at)
        began = time.perf_counter()
        labels_at = _open_labels_output(opened, features, margins)
        yield Run(execution, opened, target, labels_at, began)


def _open_labels_output(run: resume.OpenRun, features: Features, margins: bool) -> Location | None:
    """Create the labels store, or reuse that of an earlier attempt."""
    if run.directory is None:
        return None
    create = create_labels_store if run.state is resume.RunState.NEW else resume_labels_store
    return create(run.directory.labels, features.n_rows, features.block_rows, margins)


@dataclass(frozen=True)
class Fit:
    """A fitted model and the record of its run (the content of `run.json`)."""

    model: Model
    labels: NDArray[np.int32] | None  # (N,) if they were collected
    record: dict[str, Any] = field(repr=False)

    def _repr_html_(self) -> str:
        return run_html(self.model, self.record)


def load_fit(path: Place, storage_options: Options | None = None) -> Fit:
    """Load model and record of a complete run; its labels stay in their store."""
    run = locate(path, storage_options)
    return Fit(load_model(run), None, RunDirectory(run).result())
