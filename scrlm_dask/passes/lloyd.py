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

from scrlm_dask.engine.checkpointing import Saved, saved_per_block
from scrlm_dask.engine.execution import Execution, persist, task, wait
from scrlm_dask.engine.features import Features, column_of
from scrlm_dask.engine.tree_reduce import fan_in_for
from scrlm_dask.kernels.distances.cluster_sums import ClusterSums
from scrlm_dask.kernels.distances.points import Points, project_rows
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.kernels.distances.pruning import Prune, Pruned, points_frame, prepare_centers
from scrlm_dask.kernels.kmeans.lloyd import (
    LloydBlock,
    LloydPart,
    WorstRows,
    compare_labels,
    lloyd_part,
    merge_lloyd,
)
from scrlm_dask.kernels.scrlm.polish import PolishPart, merge_polish, polish_part

LLOYD_KINDS = (LloydPart, ClusterSums, WorstRows, Pruned)  # what is saved of an iteration


@dataclass(frozen=True)
class LloydStep:
    """What an iteration found; the labels stay with the workers, for the next one."""

    part: LloydPart
    labels: da.Array  # (rows, 1) int32


def send_centers(
    centers: NDArray[np.float64],
    affine: AffineMap,
    frame: Delayed | None = None,
    glance: bool = False,
) -> Delayed:
    """Centers (k, p), in input units, for the workers; `frame` is that of earlier ones, if any.

    With `glance` they are prepared for one, which takes all distances between them. They travel
    inside the task: whichever worker is lost, they are there again. Dask warns of graphs that carry
    data, which this one does on purpose.
    """
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "100GB"}):
        return persist(task("centers", prepare_centers, centers, affine, frame, glance))


def make_frame(centers: Delayed) -> Delayed:
    """The principal axes of centers that were sent, for those that come of them."""
    return persist(task("axes", points_frame, centers))


def keep_coordinates(
    execution: Execution, features: Features, centers: Delayed, n_axes: int
) -> da.Array:
    """Where rows lie along the centers' first axes (rows, n_axes), kept by the workers."""
    shared = {"centers": centers, "n_axes": n_axes}
    parts = execution.parts("project", features, _project_part, None, {}, shared)
    with execution.reading("project", features, None):
        held = [wait(part) for part in dask.persist(*parts)]
    return column_of(held, features, None, np.float32, n_axes)


def lloyd_pass(
    execution: Execution,
    features: Features,
    centers: Delayed,
    sq_radius: float,
    *,
    n_clusters: int,
    prune: Prune,
    weights: da.Array | None,
    previous: da.Array | None,
    blocks: list[int] | None,
    held: da.Array | None = None,
    saved: Saved | None = None,
) -> LloydStep:
    """One iteration over all blocks, or over `blocks`; `previous` are the labels before it.

    `held` is what `hold_coordinates` gave for centers of the same frame, where all blocks are read.
    Where it is `saved`, labels are, too: a run that goes on needs them for its next iteration.
    """
    if weights is not None and blocks is not None:
        weights = weights.blocks[blocks]
    columns = {"weights": weights, "held": held}
    columns = {name: column for name, column in columns.items() if column is not None}
    shared = {"centers": centers, "sq_radius": sq_radius, "prune": prune}
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
    step = execution.keeper.reduce(sums, merge_lloyd, "kmeans-step", fan_in, saved, labels)
    with execution.reading("kmeans-step", features, blocks, step.taken):
        # in one go: the labels are kept while the sums are combined and dropped
        total, *labels = dask.persist(step.total, *step.beside)
        found: LloydPart = total.compute()
    return LloydStep(found, column_of(labels, features, blocks, np.int32))


def saved_labels(saved: Saved, features: Features, blocks: list[int] | None) -> da.Array | None:
    """The labels that an iteration of an earlier attempt left; None if they are not whole."""
    n_blocks = features.n_blocks if blocks is None else len(blocks)
    found = saved_per_block(saved, n_blocks, "kmeans-step")
    return None if found is None else column_of(found, features, blocks, np.int32)


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
        kinds=(PolishPart,),
        centers=centers,
        sq_radius=sq_radius,
    )
    return found


def _project_part(
    block: NDArray[Any], start: int, centers: Points, n_axes: int
) -> NDArray[np.float32]:
    return project_rows(block, centers, n_axes)


def _lloyd_part(
    block: NDArray[Any],
    start: int,
    centers: Points,
    sq_radius: float,
    prune: Prune,
    weights: NDArray[np.float64] | None = None,
    held: NDArray[np.float32] | None = None,
) -> LloydBlock:
    return lloyd_part(block, start, centers, sq_radius, weights, prune, held)


def _labels_of(block: LloydBlock) -> NDArray[np.int32]:
    return block.labels[:, None]


def _part_of(block: LloydBlock, previous: NDArray[np.int32] | None) -> LloydPart:
    return block.part if previous is None else compare_labels(block, previous[:, 0])


def _polish_part(block: NDArray[Any], start: int, centers: Points, sq_radius: float) -> PolishPart:
    return polish_part(block, centers, sq_radius)
