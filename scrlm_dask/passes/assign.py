"""The assignment pass: a label for every row, written by the workers, and the clusters' sums."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.features import Features
from scrlm_dask.engine.read_ahead import compute_slot
from scrlm_dask.engine.threads import pinned_threads
from scrlm_dask.engine.tree_reduce import fan_in_for
from scrlm_dask.errors import InputError, NonFiniteRowError
from scrlm_dask.kernels import OUTLIER
from scrlm_dask.kernels.distances.assignment import assign_and_sum, assign_rows
from scrlm_dask.kernels.distances.cluster_sums import ClusterSums, merge_sums
from scrlm_dask.kernels.distances.points import Points
from scrlm_dask.kernels.distances.pruning import Prune, Pruned, merge_pruned
from scrlm_dask.storage.label_store import labels_complete, write_labels_block
from scrlm_dask.storage.locations import Location


@dataclass(frozen=True)
class AssignedPart:
    """What a block adds: its clusters' sums, and its labels if they are collected."""

    sums: ClusterSums
    pruned: Pruned
    labels: tuple[NDArray[np.int32], ...]  # one array a block, joined by the client


@dataclass(frozen=True)
class LabelledPart:
    """What a block adds when its clusters' sums are not wanted."""

    counts: NDArray[np.int64]  # (k,)
    n_rows: int
    labels: tuple[NDArray[np.int32], ...]


def assign_pass(
    execution: Execution,
    features: Features,
    centers: Delayed,
    sq_radius: float,
    *,
    n_clusters: int,
    prune: Prune,
    labels_url: Location | None,
    margins: bool,
    collect: bool,
    of: str,
    weights: da.Array | None = None,
) -> AssignedPart:
    """Label every row. Labels go to the store at `labels_url`, to the client, both or nowhere.

    Margins are only for the store. `of` tells these centers from others.
    """
    features = features.in_blocks_for(n_clusters)
    check = None
    if labels_url is not None:
        check = partial(_are_written, labels_url, features.block_rows, features.n_rows)
    assigned: AssignedPart = execution.map_reduce(
        "assign",
        features,
        _assign_part,
        _merge,
        fan_in=fan_in_for(8 * n_clusters * features.n_features),
        columns={} if weights is None else {"weights": weights},
        kinds=(AssignedPart, ClusterSums, Pruned),
        check=check,
        of=of,
        centers=centers,
        sq_radius=sq_radius,
        prune=prune,
        labels_url=labels_url,
        margins=margins and labels_url is not None,
        collect=collect,
    )
    execution.pruned["assign"] = assigned.pruned.record()
    return assigned


def label_pass(
    execution: Execution,
    features: Features,
    centers: Delayed,
    sq_radius: float,
    *,
    labels_url: Location | None,
    margins: bool,
    collect: bool,
) -> LabelledPart:
    """`assign_pass` for those who have their model already and need no sums."""
    labelled: LabelledPart = execution.map_reduce(
        "assign",
        features,
        _label_part,
        _merge_labelled,
        centers=centers,
        sq_radius=sq_radius,
        labels_url=labels_url,
        margins=margins and labels_url is not None,
        collect=collect,
    )
    return labelled


def lazy_labels(features: da.Array, centers: Delayed, sq_radius: float) -> da.Array:
    """Labels of a Dask array of features as a Dask array, computed when asked for."""
    return features.rechunk({1: -1}).map_blocks(
        _label_block, centers=centers, sq_radius=sq_radius, dtype=np.int32, drop_axis=1
    )


def _assign_part(
    block: NDArray[Any],
    start: int,
    centers: Points,
    sq_radius: float,
    prune: Prune,
    labels_url: Location | None,
    margins: bool,
    collect: bool,
    weights: NDArray[np.float64] | None = None,
) -> AssignedPart:
    found = assign_and_sum(block, centers, sq_radius, weights, margins=margins, prune=prune)
    assignment = found.assignment
    if labels_url is not None:
        write_labels_block(labels_url, start, assignment)
    return AssignedPart(found.sums, assignment.pruned, (assignment.labels,) if collect else ())


def _are_written(labels_url: Location, block_rows: int, n_rows: int, blocks: range) -> bool:
    """Whether the labels of these blocks, which an earlier attempt wrote, can be read."""
    end = min(n_rows, blocks.stop * block_rows)
    return labels_complete(labels_url, blocks.start * block_rows, end)


def _label_part(
    block: NDArray[Any],
    start: int,
    centers: Points,
    sq_radius: float,
    labels_url: Location | None,
    margins: bool,
    collect: bool,
) -> LabelledPart:
    found = assign_rows(block, centers, sq_radius, margins=margins)
    if labels_url is not None:
        write_labels_block(labels_url, start, found)
    inside = found.labels[found.labels != OUTLIER]
    counts = np.bincount(inside, minlength=len(centers.raw)).astype(np.int64)
    return LabelledPart(counts, len(block), (found.labels,) if collect else ())


def _merge_labelled(a: LabelledPart, b: LabelledPart) -> LabelledPart:
    return LabelledPart(a.counts + b.counts, a.n_rows + b.n_rows, a.labels + b.labels)


def _merge(a: AssignedPart, b: AssignedPart) -> AssignedPart:
    pruned = merge_pruned(a.pruned, b.pruned)
    return AssignedPart(merge_sums(a.sums, b.sums), pruned, a.labels + b.labels)


def _label_block(block: NDArray[Any], centers: Points, sq_radius: float) -> NDArray[np.int32]:
    try:
        with compute_slot(), pinned_threads():
            return assign_rows(block, centers, sq_radius).labels
    except NonFiniteRowError as error:
        raise InputError(
            f"row {error.row} of a block of the Dask array holds NaN, infinity or a value too "
            "large for float32; clean or drop the row"
        ) from error
