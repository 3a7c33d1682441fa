"""What a run tells those who watch it, beside its phases."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.events import CandidatesJudged, RowsLabelled, RunStarted
from scrlm_dask.kernels.lloyd import inertia
from scrlm_dask.kernels.mixture import ClusterSums
from scrlm_dask.passes.execution import Execution
from scrlm_dask.passes.features import Features
from scrlm_dask.storage.eventlog import EventLog
from scrlm_dask.storage.runs import RunDirectory
from scrlm_dask.watching import wanted
from scrlm_dask.watching.lines import JsonLines

_CURVE_POINTS = 100


def tell_start(
    execution: Execution, method: str, features: Features, run: RunDirectory | None
) -> None:
    """What is run on what. From here on the run directory, if there is one, keeps the events."""
    if run is not None and wanted():
        execution.add_listener(JsonLines(EventLog(run.events).write))
    source = features.path or features.what
    out = None if run is None else run.location.url
    shape = features.n_rows, features.n_features
    execution.tell(RunStarted(method, source, *shape, out))


def tell_losses(execution: Execution, losses: NDArray[np.float64]) -> None:
    """The losses (n,) of all candidates."""
    rising = np.sort(losses)
    ranks = np.unique(np.linspace(0, len(rising) - 1, _CURVE_POINTS).astype(np.int64))
    curve = tuple(float(loss) for loss in rising[ranks])
    execution.tell(CandidatesJudged(len(losses), tuple(int(rank) + 1 for rank in ranks), curve))


def tell_sizes(execution: Execution, sums: ClusterSums, sq_radius: float) -> None:
    """How the rows fell to the clusters in the pass that took these sums."""
    counts = sums.counts
    outliers = sums.n_rows - int(counts.sum())
    filled = counts[counts > 0]
    sizes = tuple(int(n) for n in np.bincount(np.frexp(filled)[1] - 1)) if len(filled) else ()
    empty = len(counts) - len(filled)
    execution.tell(RowsLabelled(sums.n_rows, outliers, inertia(sums, sq_radius), sizes, empty))
