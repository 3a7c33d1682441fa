"""The k-means passes: one read of the features per iteration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.engine.checkpointing import SavedGroups, load_per_block
from scrlm_dask.engine.execution import Execution, Pass, batch_groups, persist, task
from scrlm_dask.engine.features import Features, column_of
from scrlm_dask.engine.tree_reduce import fan_in_for
from scrlm_dask.kernels.distances.cluster_sums import ClusterSums
from scrlm_dask.kernels.distances.points import Points, project_rows
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.kernels.distances.pruning import Prune, Pruned, points_frame, prepare_centers
from scrlm_dask.kernels.kmeans import lloyd
from scrlm_dask.kernels.scrlm.polish import PolishPart, merge_polish, polish_part


@dataclass(frozen=True)
class LloydStep:
    """The result of an iteration; the labels stay on the workers for the next iteration."""

    part: lloyd.LloydPart
    labels: da.Array  # (rows, 1) int32


def send_centers(
    centers: NDArray[np.float64],
    affine: AffineMap,
    frame: Delayed | None = None,
    quick_check: bool = False,
) -> Delayed:
    """Prepare centers (k, p), given in input units, on the workers.

    `frame` has the axes of earlier centers (`make_frame`), which are reused. With `quick_check`,
    distances between all centers are computed for the quick check of labels. The Dask graph
    contains the centers, so that they survive the loss of workers.
    """
    # Without this setting, Dask warns about the size of the graph.
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "100GB"}):
        return persist(task("centers", prepare_centers, centers, affine, frame, quick_check))


def make_frame(centers: Delayed) -> Delayed:
    """Return the principal axes of the centers, to be reused for centers of later iterations."""
    return persist(task("axes", points_frame, centers))


def persist_coordinates(
    execution: Execution, features: Features, centers: Delayed, n_axes: int
) -> da.Array:
    """Project rows onto the centers' first axes; persist coordinates (rows, n_axes) on workers."""
    broadcast = {"centers": centers, "n_axes": n_axes}
    coordinates = execution.map("project", _project_part, features, broadcast)
    return column_of(coordinates, features, None, np.float32, n_axes)


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
    coordinates: da.Array | None = None,
    saved: SavedGroups | None = None,
) -> LloydStep:
    """Run one iteration over all blocks, or over `blocks`; `previous` are the previous labels.

    `coordinates` come from `persist_coordinates` for centers of the same frame; they require that
    all blocks are read. With `saved`, the labels are also checkpointed, because a resumed run needs
    them in its next iteration.
    """
    if weights is not None and blocks is not None:
        weights = features.choose(weights, blocks)
    columns = {"weights": weights, "coordinates": coordinates}
    result = execution.run_per_block(
        replace(LLOYD, fan_in=fan_in_for(8 * n_clusters * features.n_features)),
        features,
        {"centers": centers, "sq_radius": sq_radius, "prune": prune},
        blocks=blocks,
        columns={name: column for name, column in columns.items() if column is not None},
        summary_columns={} if previous is None else {"previous": previous},
        saved=saved,
    )
    labels = column_of(result.per_block["labels"], features, blocks, np.int32)
    return LloydStep(result.total, labels)


def load_labels(
    saved: SavedGroups, features: Features, blocks: list[int] | None
) -> da.Array | None:
    """Load the labels that an earlier attempt saved for an iteration; None if incomplete."""
    numbers = range(features.n_blocks) if blocks is None else blocks
    saved = batch_groups(saved, features, len(numbers))
    labels = load_per_block(saved, len(features.tasks_of(numbers)), LLOYD.name)
    return None if labels is None else column_of(labels, features, blocks, np.int32)


def polish_pass(
    execution: Execution, features: Features, centers: Delayed, sq_radius: float, n_clusters: int
) -> PolishPart:
    """Sum the rows inside each center's radius, over all blocks."""
    fan_in = fan_in_for(8 * n_clusters * features.n_features)
    sums: PolishPart = execution.run(
        replace(_POLISH, fan_in=fan_in), features, {"centers": centers, "sq_radius": sq_radius}
    )
    return sums


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
    coordinates: NDArray[np.float32] | None = None,
) -> lloyd.LloydBlock:
    return lloyd.lloyd_part(block, start, centers, sq_radius, weights, prune, coordinates)


def _compare(block: lloyd.LloydBlock, previous: NDArray[np.int32] | None = None) -> lloyd.LloydPart:
    return block.part if previous is None else lloyd.compare_labels(block, previous)


def _polish_part(block: NDArray[Any], start: int, centers: Points, sq_radius: float) -> PolishPart:
    return polish_part(block, centers, sq_radius)


LLOYD = Pass(
    "kmeans-step",
    _lloyd_part,
    lloyd.merge_lloyd,
    checkpoint_types=(lloyd.LloydPart, ClusterSums, lloyd.WorstRows, Pruned),
    per_block=("labels",),
    summarize=_compare,
)
_POLISH = Pass("polish", _polish_part, merge_polish, checkpoint_types=(PolishPart,))
