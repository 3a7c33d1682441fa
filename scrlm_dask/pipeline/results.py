"""What a fit gives back, and the run directory that it is written to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.model import Model
from scrlm_dask.passes.assign import AssignedPart
from scrlm_dask.passes.features import Features
from scrlm_dask.pipeline.resuming import OpenRun
from scrlm_dask.storage.arrays import read_rows
from scrlm_dask.storage.features import mark_complete
from scrlm_dask.storage.labels import (
    continued_labels_store,
    create_labels_store,
    open_labels,
)
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.models import load_model, save_model
from scrlm_dask.storage.outputs import discard
from scrlm_dask.storage.runs import RunDirectory
from scrlm_dask.watching.cells import run_html


@dataclass(frozen=True)
class Fit:
    """A fitted model and the record of its run (what `run.json` holds)."""

    model: Model
    labels: NDArray[np.int32] | None  # (N,) if they were collected
    record: dict[str, Any] = field(repr=False)

    def _repr_html_(self) -> str:
        return run_html(self.model, self.record)


def labels_store_of(run: OpenRun, features: Features, margins: bool) -> Location | None:
    """Where the labels go, if there is a run to write; one that goes on has some already."""
    if run.directory is None:
        return None
    lay_out = continued_labels_store if run.resumed else create_labels_store
    return lay_out(run.directory.labels, features.n_rows, features.block_rows, margins)


def finish_run(run: RunDirectory, model: Model, record: dict[str, Any]) -> None:
    mark_complete(run.labels)
    discard(run.model)  # an earlier attempt may have come as far as this
    save_model(model, run.model)
    run.finish(record)


def finished_fit(path: Place, storage_options: Options | None = None) -> Fit:
    """What a complete run found, but for its labels, which stay where they are."""
    run = locate(path, storage_options)
    return Fit(load_model(run), None, RunDirectory(run).result())


def found_labels(assigned: AssignedPart, stored: Location | None) -> NDArray[np.int32]:
    """Labels of all rows (N,): from the store, where an earlier attempt wrote some, or the pass."""
    if stored is None:
        return np.concatenate(assigned.labels)
    labels = open_labels(stored, "the labels")
    return read_rows(labels, 0, labels.shape[0], "the labels")
