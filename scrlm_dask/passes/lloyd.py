"""The k-means passes: one read of the features an iteration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import dask
import dask.array as da
import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.kernels.lloyd import LloydBlock, LloydPart, compared, lloyd_part, merge_lloyd
from scrlm_dask.kernels.points import Points, prepare_points
from scrlm_dask.kernels.polish import PolishPart, merge_polish, polish_part
from scrlm_dask.kernels.preprocessing import AffineMap
from scrlm_dask.passes.columns import column_of
from scrlm_dask.passes.execution import Execution, fan_in_for, persist, task, tree_reduce
from scrlm_dask.passes.features import Features


@dataclass(frozen=True)
class LloydStep:
    """What an iteration found; the labels stay with the workers, for the next one."""

    part: LloydPart
    labels: da.Array  # (rows, 1) int32


def send_centers(centers: NDArray[np.float64], affine: AffineMap) -> Delayed:
    """Centers (k, p), in input units, for the workers.

    They travel inside the task: whichever worker is lost, they are there again. Dask warns of
    graphs that carry data, which this one does on purpose.
    """
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "100GB"}):
        return persist(task("centers", prepare_points, centers, affine))


def lloyd_pass(
    execution: Execution,
    features: Features,
    centers: Delayed,
    sq_radius: float,
    *,
    n_clusters: int,
    weights: da.Array | None,
    previous: da.Array | None,
    blocks: list[int] | None,
) -> LloydStep:
    """One iteration over all blocks, or over `blocks`; `previous` are the labels before it."""
    if weights is not None and blocks is not None:
        weights = weights.blocks[blocks]
    columns = {} if weights is None else {"weights": weights}
    shared = {"centers": centers, "sq_radius": sq_radius}
    parts = execution.parts("kmeans-step", features, _lloyd_part, blocks, columns, shared)
    token = uuid4().hex
    labels = [
        dask.delayed(_labels_of, pure=False)(part, dask_key_name=(f"kmeans-labels-{token}", i))
        for i, part in enumerate(parts)
    ]
    fan_in = fan_in_for(8 * n_clusters * features.n_features)
    # what compares with the labels before is done when the sums are: nothing that is kept needs
    # an earlier iteration, so the scheduler forgets it, and a lost worker brings none back
    before = [None] * len(parts) if previous is None else list(previous.to_delayed().ravel())
    sums = [
        dask.delayed(_part_of, pure=False)(part, old, dask_key_name=(f"kmeans-sums-{token}", i))
        for i, (part, old) in enumerate(zip(parts, before, strict=True))
    ]
    total = tree_reduce(sums, merge_lloyd, "kmeans-step", fan_in)
    with execution.reading("kmeans-step", features, blocks):
        # in one go: the labels are kept while the sums are combined and dropped
        total, *labels = dask.persist(total, *labels)
        found: LloydPart = total.compute()
    return LloydStep(found, column_of(labels, features, blocks, np.int32))


def polish_pass(
    execution: Execution, features: Features, centers: Delayed, sq_radius: float, n_clusters: int
) -> PolishPart:
    """Sums of the rows inside each center's radius."""
    found: PolishPart = execution.map_reduce(
        "polish",
        features,
        _polish_part,
        merge_polish,
        fan_in=fan_in_for(8 * n_clusters * features.n_features),
        centers=centers,
        sq_radius=sq_radius,
    )
    return found


def _lloyd_part(
    block: NDArray[Any],
    start: int,
    centers: Points,
    sq_radius: float,
    weights: NDArray[np.float64] | None = None,
) -> LloydBlock:
    return lloyd_part(block, start, centers, sq_radius, weights)


def _labels_of(block: LloydBlock) -> NDArray[np.int32]:
    return block.labels[:, None]


def _part_of(block: LloydBlock, previous: NDArray[np.int32] | None) -> LloydPart:
    return block.part if previous is None else compared(block, previous[:, 0])


def _polish_part(block: NDArray[Any], start: int, centers: Points, sq_radius: float) -> PolishPart:
    return polish_part(block, centers, sq_radius)
