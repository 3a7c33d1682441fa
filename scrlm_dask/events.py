"""What a run tells those who watch it: small events that bars, logs and reports listen to."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

from scrlm_dask.errors import ScrlmWarning


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


Event = PhaseStarted | BlockDone | PhaseFinished | IterationDone | Note
Listener = Callable[[Event], None]


def warn(event: Event) -> None:
    """The listener of those who do not watch: they still hear warnings."""
    if isinstance(event, Note) and event.warning:
        warnings.warn(event.text, ScrlmWarning, stacklevel=2)
