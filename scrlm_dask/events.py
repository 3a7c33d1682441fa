"""What a run tells those who watch it: small events that bars, logs and reports listen to."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from scrlm_dask.errors import ScrlmWarning


@dataclass(frozen=True)
class RunStarted:
    """What is run on what."""

    method: str
    features: str
    rows: int
    n_features: int
    out: str | None


@dataclass(frozen=True)
class Planned:
    """What is to be done, told again when the number of clusters is known."""

    flops: dict[str, int]  # by phase, all its iterations together, if nothing is pruned
    row_flops: dict[str, float]  # by phase, of a row that is read
    worker_bytes: int  # that a worker needs at most
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
    read_seconds: float  # that threads spent reading, all workers together


@dataclass(frozen=True)
class CandidatesJudged:
    """Losses of the candidates, lowest first: a few points of the curve."""

    candidates: int
    ranks: tuple[int, ...]
    losses: tuple[float, ...]


@dataclass(frozen=True)
class CentersFound:
    centers: int


@dataclass(frozen=True)
class RowsLabelled:
    """How many rows the clusters have now, and how many have none."""

    rows: int
    outliers: int
    inertia: float
    # clusters by size: element b counts those of 2^b to 2^(b+1) - 1 rows
    sizes: tuple[int, ...]
    empty: int


@dataclass(frozen=True)
class IterationDone:
    """An iteration of k-means. What it says of rows holds for the centers that it began with."""

    number: int
    rows: int
    sampled: bool  # on a sample of blocks
    inertia: float  # sum of squared distances; a row left out counts as if on the radius
    shift: float  # how far the centers moved, relative to the rows' distance to them
    moved: int | None  # rows whose label changed; None where there was none before
    empty: int
    reseeded: int
    seconds: float


@dataclass(frozen=True)
class Note:
    """Something a person should read: a choice that was made, or a doubt."""

    text: str
    warning: bool = False


@dataclass(frozen=True)
class RunEnded:
    seconds: float
    error: str | None = None  # what ended it before its time


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
    """The listener of those who do not watch: they still hear warnings."""
    if isinstance(event, Note) and event.warning:
        warnings.warn(event.text, ScrlmWarning, stacklevel=_levels_to_caller())


def _levels_to_caller() -> int:
    """How far up the first line lies that is not of this package: a warning is about that one."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").startswith("scrlm_dask"):
        frame, level = frame.f_back, level + 1
    return level
