"""Lifecycle of a run: prepare, open or resume its directory, finish it, load its result."""

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
from scrlm_dask.errors import StoreError
from scrlm_dask.events import Listener, Note, RunStarted
from scrlm_dask.model import Model
from scrlm_dask.monitoring.html import facts_html, model_facts
from scrlm_dask.monitoring.json_log import JsonLines
from scrlm_dask.passes.assign import AssignedPart
from scrlm_dask.passes.digests import verify_rewritten
from scrlm_dask.runs import resume
from scrlm_dask.runs.record import ResultRecord, RunRecord, result_record
from scrlm_dask.settings import monitoring_enabled
from scrlm_dask.storage.arrays import read_rows
from scrlm_dask.storage.feature_store import LABELS, mark_complete
from scrlm_dask.storage.label_store import FINE, ensure_labels_store, open_labels
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.model_store import load_model, save_model
from scrlm_dask.storage.outputs import (
    MODEL_KIND,
    RUN_KIND,
    check_not_inside,
    check_output_free,
    discard,
    locate_unfinished,
    take_over,
)
from scrlm_dask.storage.run_directory import COMPLETE, EventLog, RunDirectory
from scrlm_dask.storage.store_info import features_digest, files_of_features
from scrlm_dask.storage.traces import NO_INPUTS, InputTrace, resolve_links
from scrlm_dask.text import plural


@dataclass(frozen=True)
class RunTarget:
    """A prepared run: its features, record and output. No row is read, no file is written yet."""

    features: Features
    record: RunRecord
    out: Location | None = None
    overwrite: bool = False
    collect_labels: bool = False
    inputs: InputTrace = NO_INPUTS  # inputs other than a features store


def prepare_target(
    features: Features,
    record: RunRecord,
    out: Place | None,
    overwrite: bool,
    collect_labels: bool,
    storage_options: Options | None,
) -> RunTarget:
    """Return the target of a run; raise if its output can be neither created nor resumed."""
    out_at = None if out is None else locate(out, storage_options)
    if out_at is not None:
        check_not_inside(out_at, features.location, "the features")
        directory = RunDirectory(locate_unfinished(out_at))
        begin_again = overwrite or not record.is_resumable
        if resume.find_unfinished(directory, record, begin_again) is None:
            check_output_free(out_at, overwrite, RUN_KIND)
    mapped = InputTrace(features.mapped)
    return RunTarget(features, record, out_at, overwrite, collect_labels, mapped)


@dataclass(frozen=True)
class ActiveRun:
    """A run that is being executed."""

    execution: Execution
    opened: resume.OpenRun
    target: RunTarget
    began: float  # `time.perf_counter()` at the start
    is_resumed: bool
    features_path: str | None  # local path of the features, without links

    @property
    def collects_labels(self) -> bool:
        """True if the assignment pass must return the labels because there is no labels store."""
        return self.target.collect_labels and self.opened.directory is None

    def open_labels_output(
        self, n_clusters: int, margins: bool, fine: bool = False
    ) -> Location | None:
        """Create or reuse the labels store and return its location; None without a directory."""
        directory, features = self.opened.directory, self.target.features
        if directory is None:
            return None
        resume.check_still_owner(directory, self.opened.record)
        labels = ensure_labels_store(
            directory.labels, features.n_rows, features.label_rows(n_clusters), margins, fine
        )
        # workers of an earlier attempt that are still running must not write other labels
        owned = replace(labels, owner=self.opened.record.attempt)
        take_over(owned)
        return owned

    def report_resumed(self) -> None:
        """Report that the run is resumed."""
        self.execution.emit(Note("resuming an interrupted run"))

    def finish(self, model: Model, details: dict[str, Any]) -> dict[str, Any]:
        """Verify that all inputs are unchanged, write the result and return its record."""
        seconds = time.perf_counter() - self.began
        start, directory = self.opened.record, self.opened.directory
        record = result_record(start, model, self.execution, seconds, details)
        resume.check_unchanged(start, self.target.features.location, self.features_path)
        self.target.inputs.check()
        if directory is not None:
            resume.check_still_owner(directory, start)
            mark_complete(directory.labels)
            discard(directory.model, MODEL_KIND)  # an earlier attempt may have written a model
            save_model(model, directory.model)
            directory.write_record(record, COMPLETE)
        return record

    def gather_labels(self, assigned: AssignedPart) -> NDArray[np.int32] | None:
        """Return the labels (N,) if the caller requested them.

        They are read from the labels store, if there is one, because in a resumed run the pass
        returns only the labels of this attempt.
        """
        return self._gather(assigned.labels, LABELS)

    def gather_fine_labels(self, assigned: AssignedPart) -> NDArray[np.int32] | None:
        """Return the labels (N,) of the fine level if labels were requested and it exists."""
        return None if assigned.leaf_counts is None else self._gather(assigned.fine, FINE)

    def _gather(self, blocks: tuple[NDArray[np.int32], ...], name: str) -> NDArray[np.int32] | None:
        if not self.target.collect_labels:
            return None
        if self.target.out is None:
            return np.concatenate(blocks)
        # the run is complete, and has been moved to its output
        labels = open_labels(RunDirectory(self.target.out).labels, "the labels store", name)
        return read_rows(labels, 0, labels.shape[0], "the labels store")


@contextmanager
def open_run(target: RunTarget, method: str, listener: Listener) -> Iterator[ActiveRun]:
    """Open or resume the run directory and start the execution.

    Events are logged to a file in the directory, if there is one.
    """
    features, features_at = target.features, target.features.location
    features_path = resolve_links(features_at)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    record = replace(target.record, started=now)
    if features_at is not None:
        check_paths_visible(features_at)
        files = files_of_features(features_at)
        if features_digest(features_at, files) != record.features.digest:
            raise StoreError(
                f"the features store {features.path} changed before the run started; run the "
                "command again"
            )
        record = replace(record, features_written=files)
    with (
        resume.open_directory(target.out, target.overwrite, record, features_at) as opened,
        Execution(listener, opened.checkpoint) as execution,
    ):
        if opened.directory is not None and monitoring_enabled():
            execution.listeners.append(JsonLines(EventLog(opened.directory.events).write))
        source, out = features.path or features.label, target.out
        shape = features.n_rows, features.n_features
        execution.emit(RunStarted(method, source, *shape, None if out is None else out.url))
        if features_at is not None and opened.state in resume.REWRITTEN:
            resume.verify_rewritten_features(execution, opened, features_at)
        elif features_at is not None:
            verify_rewritten(execution, features_at, str(record.features_written))
        resumed = opened.state is not resume.RunState.NEW
        yield ActiveRun(execution, opened, target, time.perf_counter(), resumed, features_path)


@dataclass(frozen=True)
class FitResult:
    """Result of `fit` and `kmeans`.

    Attributes
    ----------
    model : Model
        The fitted model.
    labels : numpy.ndarray of shape (rows,) or None
        Label of each row, -1 for outliers; None if the labels were not collected.
    record : dict
        The record of the run, as in `run.json`.
    fine_labels : numpy.ndarray of shape (rows,) or None
        Label of each row at the fine level; None if there is no such level, or if the labels were
        not collected.
    """

    model: Model
    labels: NDArray[np.int32] | None
    record: dict[str, Any] = field(repr=False)
    fine_labels: NDArray[np.int32] | None = None

    @property
    def typed_record(self) -> ResultRecord:
        """The fields of the record that commands and reports read, with checked types."""
        return ResultRecord.from_json(self.record)

    def _repr_html_(self) -> str:
        """Return the result and the time of each phase as HTML."""
        record = self.typed_record
        times = ", ".join(f"{p.name} {p.seconds:.2f} s" for p in record.phase_totals().values())
        facts = [
            ("features", record.features.path or record.features.source),
            *model_facts(self.model),
            ("time", f"{record.seconds:.2f} s: {times}"),
        ]
        if record.kmeans is not None and record.iterations:
            steps = plural(len(record.iterations), "iteration")
            facts.append(("k-means", f"{steps}; {record.kmeans.stopped}"))
        return facts_html(f"Run of {record.method}", facts)


def load_fit(path: Place, storage_options: Options | None = None) -> FitResult:
    """Load model and record of a complete run, without its labels."""
    run = RunDirectory(locate(path, storage_options))
    loaded = FitResult(load_model(run.location), None, run.check_complete())
    ResultRecord.from_json(loaded.record, run.record)  # raises if the file was changed
    return loaded
