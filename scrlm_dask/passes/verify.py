"""Blocks that are labelled again, and compared with what a run has stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.kernels.assignment import assign_and_sum
from scrlm_dask.kernels.points import Points
from scrlm_dask.kernels.pruning import Prune
from scrlm_dask.passes.execution import Execution
from scrlm_dask.passes.features import Features
from scrlm_dask.storage.labels import read_labels_block
from scrlm_dask.storage.locations import Location

# of a distance: a CPU with other instructions rounds otherwise
_CLOSE = 1e-5


@dataclass(frozen=True)
class Compared:
    """What some rows say: a mergeable part."""

    rows: int
    wrong_labels: int
    wrong_distances: int
    first_wrong: int | None  # row number


def verify_pass(
    execution: Execution,
    features: Features,
    centers: Delayed,
    sq_radius: float,
    labels_url: Location,
    *,
    prune: Prune,
    margins: bool,
    blocks: list[int],
) -> Compared:
    """Label the blocks as the run did, and compare with its labels store."""
    found: Compared = execution.map_reduce(
        "verify",
        features,
        _compared_part,
        _merge,
        blocks=blocks,
        centers=centers,
        sq_radius=sq_radius,
        labels_url=labels_url,
        prune=prune,
        margins=margins,
    )
    return found


def _compared_part(
    block: NDArray[Any],
    start: int,
    centers: Points,
    sq_radius: float,
    labels_url: Location,
    prune: Prune,
    margins: bool,
) -> Compared:
    found = assign_and_sum(block, centers, sq_radius, margins=margins, prune=prune).assignment
    labels, distances = read_labels_block(labels_url, start, start + len(block))
    other = labels != found.labels
    far = ~np.isclose(distances, found.distances, rtol=_CLOSE, atol=0.0, equal_nan=True)
    wrong = np.flatnonzero(other | far)
    first = start + int(wrong[0]) if len(wrong) else None
    return Compared(len(block), int(other.sum()), int(far.sum()), first)


def _merge(a: Compared, b: Compared) -> Compared:
    first = min((n for n in (a.first_wrong, b.first_wrong) if n is not None), default=None)
    return Compared(
        a.rows + b.rows,
        a.wrong_labels + b.wrong_labels,
        a.wrong_distances + b.wrong_distances,
        first,
    )
