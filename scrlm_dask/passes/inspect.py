"""Looking at a store: statistics in one read, or every block against its digest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.errors import StoreError, UnreachableError
from scrlm_dask.kernels.counts import (
    Classes,
    Counts,
    classes_among,
    count_values,
    merge_counts,
)
from scrlm_dask.kernels.preprocessing import Preprocess
from scrlm_dask.kernels.sampling import Purpose, sample_rows
from scrlm_dask.kernels.statistics import (
    WIDEST_COVARIANCE,
    Statistics,
    StatisticsPart,
    finish_statistics,
    merge_statistics,
    statistics_part,
)
from scrlm_dask.passes.execution import Execution, task
from scrlm_dask.passes.features import Features, planned_blocks
from scrlm_dask.passes.trees import fan_in_for
from scrlm_dask.storage.arrays import StoredArray, open_node, read_rows
from scrlm_dask.storage.features import block_arrays
from scrlm_dask.storage.locations import Location
from scrlm_dask.storage.manifest import check_digest

_SAMPLE_ROWS = 1024
_SAMPLE_BYTES = 64 * 2**20  # of rows with very many features fewer are sampled
_SEED = 0


@dataclass(frozen=True)
class Seen:
    """What the one read of a store found."""

    statistics: Statistics
    classes: Classes | None  # where the store has labels


@dataclass(frozen=True)
class Damage:
    """A block that cannot be read, or is not what was written, and why."""

    block: int  # of the manifest; where there is none, its chunks are counted
    first_row: int
    last_row: int
    reason: str


@dataclass(frozen=True)
class _Part:
    statistics: StatisticsPart
    labels: Counts | None


def statistics_pass(
    execution: Execution,
    features: Features,
    labels: StoredArray | None,
    preprocess: Preprocess,
    radius: float | None,
) -> Seen:
    """One read of all rows. Only the result of all comes to the client: O(p)."""
    p = features.n_features
    size = min(_SAMPLE_ROWS, features.n_rows, max(2, _SAMPLE_BYTES // (8 * p)))
    sampled = sample_rows(_SEED, Purpose.INSPECTED_ROWS, features.n_rows, size)
    part: Delayed = execution.map_reduce(
        "inspect",
        features,
        _statistics_part,
        _merge,
        fan_in=fan_in_for(8 * p * p if p <= WIDEST_COVARIANCE else 0),
        keep=True,
        sampled=task("sampled-rows", np.array, sampled),
        labels=labels,
        unit_length=preprocess == "l2",
    )
    seen: Seen = task("statistics", _finish, part, preprocess, radius).compute()
    return seen


def verify_pass(
    execution: Execution, url: Location, stored: StoredArray, block_rows: int, has_digests: bool
) -> tuple[Damage, ...]:
    """Read every block again, and compare it with its digest; all that are damaged, in order."""
    n_rows, n_features = stored.shape
    damaged: tuple[Damage, ...] = execution.map_reduce(
        "verify",
        planned_blocks((n_rows, n_features), stored.dtype, block_rows),
        _verify_part,
        tuple.__add__,
        url=url,
        stored=stored,
        block_rows=block_rows,
        has_digests=has_digests,
    )
    return damaged


def _statistics_part(
    block: NDArray[Any],
    start: int,
    sampled: NDArray[np.int64],
    labels: StoredArray | None,
    unit_length: bool,
) -> _Part:
    counts = None
    if labels is not None:
        counts = count_values(read_rows(labels, start, start + len(block), "the labels"))
    return _Part(statistics_part(block, start, sampled, unit_length), counts)


def _merge(a: _Part, b: _Part) -> _Part:
    labels = None
    if a.labels is not None and b.labels is not None:
        labels = merge_counts(a.labels, b.labels)
    return _Part(merge_statistics(a.statistics, b.statistics), labels)


def _finish(part: _Part, preprocess: Preprocess, radius: float | None) -> Seen:
    classes = None if part.labels is None else classes_among(part.labels)
    return Seen(finish_statistics(part.statistics, preprocess, radius), classes)


def _verify_part(
    plan: NDArray[Any],
    start: int,
    url: Location,
    stored: StoredArray,
    block_rows: int,
    has_digests: bool,
) -> tuple[Damage, ...]:
    open_node(url, "the features store")  # a worker without the mount raises: that is no damage
    # without digests a block may be many chunks, of which each is tried
    step = block_rows if has_digests else stored.chunks[0]
    damaged = []
    for first in range(start, start + len(plan), step):
        stop = min(first + step, start + len(plan))
        try:
            if has_digests:
                check_digest(url, first // step, *block_arrays(url, first, stop))
            else:
                read_rows(stored, first, stop, "the features store")
        except UnreachableError:
            raise
        except StoreError as error:
            open_node(url, "the features store")  # raises if all of it is gone by now
            damaged.append(Damage(first // step, first, stop - 1, str(error)))
    return tuple(damaged)
