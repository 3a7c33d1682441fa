"""What a run tells those who watch it, beside its phases."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.features import Features
from scrlm_dask.events import CandidatesJudged, RowsLabelled, RunStarted
from scrlm_dask.kernels.distances.cluster_sums import ClusterSums
from scrlm_dask.kernels.kmeans.lloyd import inertia
from scrlm_dask.model import Model
from scrlm_dask.monitoring.html import run_html
from scrlm_dask.monitoring.json_log import JsonLines
from scrlm_dask.passes.assign import AssignedPart
from scrlm_dask.runs.resume import OpenRun
from scrlm_dask.settings import monitoring_enabled
from scrlm_dask.storage.arrays import read_rows
from scrlm_dask.storage.feature_store import mark_complete
from scrlm_dask.storage.label_store import create_labels_store, open_labels, resume_labels_store
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.model_store import load_model, save_model
from scrlm_dask.storage.outputs import discard
from scrlm_dask.storage.run_directory import EventLog, RunDirectory

_CURVE_POINTS = 100


def report_start(
    execution: Execution, method: str, features: Features, run: RunDirectory | None
) -> None:
    """What is run on what. From here on the run directory, if there is one, keeps the events."""
    if run is not None and monitoring_enabled():
        execution.add_listener(JsonLines(EventLog(run.events).write))
    source = features.path or features.label
    out = None if run is None else run.location.url
    shape = features.n_rows, features.n_features
    execution.emit(RunStarted(method, source, *shape, out))


def report_losses(execution: Execution, losses: NDArray[np.float64]) -> None:
    """The losses (n,) of all candidates."""
    rising = np.sort(losses)
    ranks = np.unique(np.linspace(0, len(rising) - 1, _CURVE_POINTS).astype(np.int64))
    curve = tuple(float(loss) for loss in rising[ranks])
    execution.emit(CandidatesJudged(len(losses), tuple(int(rank) + 1 for rank in ranks), curve))


def report_sizes(execution: Execution, sums: ClusterSums, sq_radius: float) -> None:
    """How the rows fell to the clusters in the pass that took these sums."""
    counts = sums.counts
    outliers = sums.n_rows - int(counts.sum())
    filled = counts[counts > 0]
    sizes = tuple(int(n) for n in np.bincount(np.frexp(filled)[1] - 1)) if len(filled) else ()
    empty = len(counts) - len(filled)
    execution.emit(RowsLabelled(sums.n_rows, outliers, inertia(sums, sq_radius), sizes, empty))


@dataclass(frozen=True)
class Fit:
    """A fitted model and the record of its run (what `run.json` holds)."""

    model: Model
    labels: NDArray[np.int32] | None  # (N,) if they were collected
    record: dict[str, Any] = field(repr=False)

    def _repr_html_(self) -> str:
        return run_html(self.model, self.record)


def open_labels_output(run: OpenRun, features: Features, margins: bool) -> Location | None:
    """Where the labels go, if there is a run to write; one that goes on has some already."""
    if run.directory is None:
        return None
    lay_out = resume_labels_store if run.resumed else create_labels_store
    return lay_out(run.directory.labels, features.n_rows, features.block_rows, margins)


def finish_run(run: RunDirectory, model: Model, record: dict[str, Any]) -> None:
    mark_complete(run.labels)
    discard(run.model)  # an earlier attempt may have come as far as this
    save_model(model, run.model)
    run.finish(record)


def load_fit(path: Place, storage_options: Options | None = None) -> Fit:
    """What a complete run found, but for its labels, which stay where they are."""
    run = locate(path, storage_options)
    return Fit(load_model(run), None, RunDirectory(run).result())


def gather_labels(assigned: AssignedPart, stored: Location | None) -> NDArray[np.int32]:
    """Labels of all rows (N,): from the store, where an earlier attempt wrote some, or the pass."""
    if stored is None:
        return np.concatenate(assigned.labels)
    labels = open_labels(stored, "the labels")
    return read_rows(labels, 0, labels.shape[0], "the labels")
