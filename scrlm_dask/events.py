"""Events of a run, for listeners such as bars, logs, the dashboard page and reports."""

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
    """Predicted work and memory, sent again when the number of clusters is known."""

    flops: dict[str, int]  # by phase, all its iterations together, if nothing is pruned
    row_flops: dict[str, float]  # by phase, per row that is read
    worker_bytes: int  # upper bound per worker
    client_bytes: int


@dataclass(frozen=True)
class PhaseStarted:
    name: str
    blocks: int
    rows: int
    bytes: int


@dataclass(frozen=True)
class BlockDone:
    name: str
    rows: int
    bytes: int


@dataclass(frozen=True)
class PhaseFinished:
    name: str
    seconds: float
    rows: int
    bytes: int
    blocks: int
    peak_worker_bytes: int  # largest resident memory of any worker so far
    read_seconds: float  # summed over threads of all workers


@dataclass(frozen=True)
class CandidatesJudged:
    """Losses of some candidates, sorted from the lowest, by rank."""

    candidates: int
    ranks: tuple[int, ...]
    losses: tuple[float, ...]


@dataclass(frozen=True)
class CentersFound:
    centers: int


@dataclass(frozen=True)
class RowsLabelled:
    """Rows with a label, outliers, and a histogram of the cluster sizes."""

    rows: int
    outliers: int
    inertia: float
    # clusters by size: element b counts those of 2^b to 2^(b+1) - 1 rows
    sizes: tuple[int, ...]
    empty: int


@dataclass(frozen=True)
class IterationDone:
    """An iteration of k-means; numbers of rows refer to the centers at its start."""

    number: int
    rows: int
    sampled: bool  # on a sample of blocks
    inertia: float  # sum of squared distances; a row left out counts as if on the radius
    # how far the centers moved, relative to the rows' distance to them
    shift: float = field(metadata={"null": math.inf})  # JSON has no infinity
    moved: int | None  # rows whose label changed; None in the first iteration
    empty: int
    reseeded: int
    seconds: float


@dataclass(frozen=True)
class Note:
    """A message for the user: an automatic choice, or a warning."""

    text: str
    warning: bool = False


@dataclass(frozen=True)
class RunEnded:
    seconds: float
    error: str | None = None  # that ended the run early


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
    """Emit warnings and ignore all other events: the default listener."""
    if isinstance(event, Note) and event.warning:
        warnings.warn(event.text, ScrlmWarning, stacklevel=_levels_to_caller())


def _levels_to_caller() -> int:
    """Return the stack level of the first caller outside of this package."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").startswith("scrlm_dask"):
        frame, level = frame.f_back, level + 1
    return level
