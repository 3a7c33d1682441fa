"""Events that a run sends to listeners: progress bars, logs, the dashboard page and reports."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

from scrlm_dask.errors import ScrlmWarning


@dataclass(frozen=True)
class RunStarted:
    """Method and input of a run."""

    method: str
    features: str
    rows: int
    n_features: int
    out: str | None


@dataclass(frozen=True)
class Planned:
    """Predicted work and memory; sent again when the number of clusters is known."""

    flops: dict[str, int]  # by phase, over all its iterations, without pruning
    row_flops: dict[str, float]  # by phase, per row that is read
    worker_bytes: int  # upper bound per worker
    client_bytes: int


@dataclass(frozen=True)
class PhaseStarted:
    """Start of a phase, with the work that it has to do."""

    name: str
    blocks: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class BlockDone:
    """A finished block of a phase."""

    name: str  # of the phase
    rows: int
    bytes: int


@dataclass(frozen=True)
class PhaseFinished:
    """End of a phase, with its time, work and memory."""

    name: str
    seconds: float
    rows: int
    bytes: int
    blocks: int
    peak_worker_bytes: int  # largest resident memory of any worker so far
    read_seconds: float  # summed over the threads of all workers


@dataclass(frozen=True)
class CandidatesJudged:
    """Losses of selected candidates, in ascending order."""

    candidates: int  # number of all candidates
    ranks: tuple[int, ...]
    losses: tuple[float, ...]


@dataclass(frozen=True)
class CentersFound:
    """Number of centers that were extracted or chosen as initial centers."""

    centers: int


@dataclass(frozen=True)
class RowsLabelled:
    """Counts of labelled rows and outliers, and a histogram of the cluster sizes."""

    rows: int
    outliers: int
    inertia: float
    # element b is the number of clusters with 2^b to 2^(b+1) - 1 rows
    sizes: tuple[int, ...]
    empty: int  # number of clusters without rows


@dataclass(frozen=True)
class IterationDone:
    """An iteration of k-means; all numbers refer to the centers at its start."""

    number: int
    rows: int
    sampled: bool  # on a sample of blocks
    inertia: float  # sum of squared distances; an outlier counts as if it were on the radius
    # movement of the centers, relative to the distance between rows and centers (RMS)
    shift: float = field(metadata={"null": math.inf})  # JSON has no infinity
    moved: int | None  # rows whose label changed; None in the first iteration
    empty: int  # number of clusters without rows
    reseeded: int  # number of empty clusters that were moved to other rows
    seconds: float


@dataclass(frozen=True)
class Note:
    """A message for the user: an automatic choice, or a warning."""

    text: str
    warning: bool = False


@dataclass(frozen=True)
class RunEnded:
    """End of a run."""

    seconds: float
    error: str | None = None  # message of the error that ended the run


Event = (
    RunStarted
    | Planned
    | PhaseStarted
    | BlockDone
    | PhaseFinished
    | CandidatesJudged
    | CentersFound
    | IterationDone
    | RowsLabelled
    | Note
    | RunEnded
)
Listener = Callable[[Event], None]


def warn(event: Event) -> None:
    """Issue warnings and ignore all other events; this is the default listener."""
    if isinstance(event, Note) and event.warning:
        warnings.warn(event.text, ScrlmWarning, stacklevel=_levels_to_caller())


def _levels_to_caller() -> int:
    """Return the stack level of the first caller outside this package."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").startswith("scrlm_dask"):
        frame, level = frame.f_back, level + 1
    return level
