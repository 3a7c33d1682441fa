"""What a fit gives back, and the run directory that it is written to."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.model import Model
from scrlm_dask.passes.assign import AssignedPart
from scrlm_dask.passes.features import Features
from scrlm_dask.storage.features import mark_complete
from scrlm_dask.storage.locations import Location
from scrlm_dask.storage.models import save_model
from scrlm_dask.storage.outputs import check_apart, discard
from scrlm_dask.storage.runs import RunDirectory


@dataclass(frozen=True)
class Fit:
    """A fitted model and the record of its run (what `run.json` holds)."""

    model: Model
    labels: NDArray[np.int32] | None  # (N,) if they were collected
    record: dict[str, Any]


def begin_run(
    features: Features,
    out: Location | None,
    overwrite: bool,
    record: dict[str, Any],
    undo: ExitStack,
) -> RunDirectory | None:
    """An empty run directory, if one is asked for; `undo` takes it back."""
    if out is None:
        return None
    run = RunDirectory(out)
    check_apart(out, features.path)
    run.begin(overwrite, record)
    undo.callback(discard, out)
    return run


def finish_run(run: RunDirectory, model: Model, record: dict[str, Any]) -> None:
    mark_complete(run.labels)
    save_model(model, run.model)
    run.finish(record)


def joined_labels(assigned: AssignedPart, collect: bool) -> NDArray[np.int32] | None:
    return np.concatenate(assigned.labels) if collect else None
