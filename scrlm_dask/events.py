"""Events that a run sends to listeners: progress bars, logs, the dashboard page and reports."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

from scrlm_dask.errors import ScrlmWarning
from scrlm_dask.text import printable


@dataclass(frozen=True)
class RunStarted:
    """Event at the start of a run: its method, features and output."""

    method: str
    features: str
    rows: int
    n_features: int
    out: str | None


@dataclass(frozen=True)
class Planned:
    """Predicted work and memory of a run; sent again when the number of clusters is known."""

    flops: dict[str, int]  # by phase, over all iterations, without pruning
    row_flops: dict[str, float]  # by phase, per row that is read
    worker_bytes: int  # upper bound per worker
    client_bytes: int


@dataclass(frozen=True)
class PhaseStarted:
    """Event at the start of a phase, with the work that the phase has to do."""

    name: str
    blocks: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class BlockDone:
    """Event after a block of a phase is finished."""

    name: str  # name of the phase
    rows: int
    bytes: int


@dataclass(frozen=True)
class PhaseFinished:
    """Event at the end of a phase, with the time, work and memory of the phase."""

    name: str
    seconds: float
    rows: int
    bytes: int
    blocks: int
    peak_worker_bytes: int  # largest resident memory of any worker so far
    read_seconds: float  # summed over the threads of all workers


@dataclass(frozen=True)
class CandidatesJudged:
    """Event after the loss pass: a curve of the sorted losses of the candidates."""

    candidates: int  # number of all candidates
    ranks: tuple[int, ...]  # ranks of some candidates; the lowest loss has rank 1
    losses: tuple[float, ...]  # losses of these candidates, ascending


@dataclass(frozen=True)
class CentersFound:
    """Event after centers were extracted or initial centers were chosen: their number."""

    centers: int


@dataclass(frozen=True)
class RowsLabelled:
    """Event after rows were labelled: outliers, inertia and a histogram of the cluster sizes."""

    rows: int
    outliers: int
    inertia: float
    # element b is the number of clusters with 2^b to 2^(b+1) - 1 rows
    sizes: tuple[int, ...]
    empty: int  # number of clusters without rows


@dataclass(frozen=True)
class IterationDone:
    """Event after an iteration of k-means; labels and inertia refer to the centers at its start."""

    number: int
    rows: int
    sampled: bool  # True if the iteration used only a sample of blocks
    inertia: float  # sum of squared distances; for an outlier, the squared radius
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
    """Event at the end of a run."""

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
        warnings.warn(printable(event.text), ScrlmWarning, stacklevel=_levels_to_caller())


def _levels_to_caller() -> int:
    """Return the stack level of the first caller outside this package."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").startswith("scrlm_dask"):
        frame, level = frame.f_back, level + 1
    return level
