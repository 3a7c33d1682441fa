"""The assignment pass: label every row on the workers, and sum the rows of each cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.engine.execution import Execution, Pass
from scrlm_dask.engine.features import Features
from scrlm_dask.engine.read_ahead import compute_slot
from scrlm_dask.engine.threads import pinned_threads
from scrlm_dask.engine.tree_reduce import fan_in_for
from scrlm_dask.errors import NonFiniteRowError
from scrlm_dask.kernels import OUTLIER
from scrlm_dask.kernels.distances.assignment import (
    Assignment,
    LeafPoints,
    assign_and_sum,
    assign_leaves,
    assign_rows,
    concatenate_assignments,
)
from scrlm_dask.kernels.distances.cluster_sums import ClusterSums, merge_sums
from scrlm_dask.kernels.distances.points import Points
from scrlm_dask.kernels.distances.preprocessing import zero_rows
from scrlm_dask.kernels.distances.pruning import Prune, Pruned, merge_pruned
from scrlm_dask.storage.label_store import labels_complete, write_labels_block
from scrlm_dask.storage.locations import Location
from scrlm_dask.storage.masks import remove_mask


@dataclass(frozen=True)
class AssignedPart:
    """Cluster sums over some blocks, and the labels of the blocks if they are collected."""

    sums: ClusterSums
    pruned: Pruned
    labels: tuple[NDArray[np.int32], ...]  # one array per block, concatenated by the client
    leaf_counts: NDArray[np.int64] | None = None  # (L,) rows of each leaf of the fine level
    fine: tuple[NDArray[np.int32], ...] = ()  # labels of the fine level, if they are collected
    zero_rows: int = 0  # rows of zeros, which have no direction; counted if rows have unit length


@dataclass(frozen=True)
class LabelledPart:
    """Cluster sizes in some blocks, and the labels of the blocks if they are collected."""

    counts: NDArray[np.int64]  # (k,)
    n_rows: int
    labels: tuple[NDArray[np.int32], ...]
    zero_rows: int  # as in `AssignedPart`


@dataclass(frozen=True)
class _BlockLabels:
    """The part of a block, and the labels to write."""

    part: AssignedPart | LabelledPart
    assignment: Assignment
    fine: NDArray[np.int32] | None = None  # (rows,) labels of the fine level


def assign_pass(
    execution: Execution,
    features: Features,
    centers: Delayed,
    sq_radius: float,
    *,
    n_clusters: int,
    prune: Prune,
    labels_at: Location | None,
    margins: bool,
    collect: bool,
    input_digest: str,
    weights: da.Array | None = None,
    leaves: Delayed | None = None,
) -> AssignedPart:
    """Label every row; labels are written to `labels_at`, if given, and returned if `collect`.

    With `leaves`, a `LeafPoints`, labels of the fine level are also written.

    Margins are written to `labels_at`, and never returned. `input_digest` identifies the centers
    and the radius, so that checkpoints from other centers are not loaded.
    """
    features = features.in_blocks_for(n_clusters)
    outputs_valid = None
    if labels_at is not None:
        outputs_valid = partial(_are_written, labels_at, features.block_rows, features.n_rows)
    fan_in = fan_in_for(8 * n_clusters * features.n_features)
    assigned: AssignedPart = execution.run(
        replace(_ASSIGN, fan_in=fan_in, outputs_valid=outputs_valid),
        features,
        {
            "centers": centers,
            "sq_radius": sq_radius,
            "prune": prune,
            "labels_at": labels_at,
            "margins": margins and labels_at is not None,
            "collect": collect,
            "leaves": leaves,
        },
        columns={} if weights is None else {"weights": weights},
        input_digest=input_digest,
    )
    return assigned


def label_pass(
    execution: Execution,
    features: Features,
    centers: Delayed,
    sq_radius: float,
    *,
    labels_at: Location | None,
    margins: bool,
    collect: bool,
) -> LabelledPart:
    """Label every row like `assign_pass`, but return only cluster sizes instead of sums."""
    labelled: LabelledPart = execution.run(
        _LABEL,
        features,
        {
            "centers": centers,
            "sq_radius": sq_radius,
            "labels_at": labels_at,
            "margins": margins and labels_at is not None,
            "collect": collect,
        },
    )
    return labelled


def lazy_labels(features: da.Array, centers: Delayed, sq_radius: float) -> da.Array:
    """Return the labels of a Dask array of features as a lazy Dask array."""
    return features.rechunk({1: -1}).map_blocks(
        _label_block, centers=centers, sq_radius=sq_radius, dtype=np.int32, drop_axis=1
    )


def _assign_part(
    block: NDArray[Any],
    start: int,
    centers: Points,
    sq_radius: float,
    prune: Prune,
    labels_at: Location | None,
    margins: bool,
    collect: bool,
    leaves: LeafPoints | None = None,
    weights: NDArray[np.float64] | None = None,
) -> _BlockLabels:
    summed = assign_and_sum(block, centers, sq_radius, weights, margins=margins, prune=prune)
    assignment, fine, leaf_counts = summed.assignment, None, None
    if leaves is not None:
        fine = assign_leaves(block, assignment.labels, leaves)
        leaf_counts = np.bincount(fine[fine != OUTLIER], minlength=leaves.n_leaves)
    labels = (assignment.labels,) if collect else ()
    fine_labels = (fine,) if collect and fine is not None else ()
    zeros = _count_zero_rows(block, centers)
    part = AssignedPart(summed.sums, assignment.pruned, labels, leaf_counts, fine_labels, zeros)
    return _BlockLabels(part, assignment, fine)


def _write_labels(
    blocks: Sequence[_BlockLabels], start: int, *, labels_at: Location | None, **_others: Any
) -> list[AssignedPart | LabelledPart]:
    """Write the labels of consecutive blocks, if there is a labels store; return their parts."""
    if labels_at is not None:
        assignment = concatenate_assignments([block.assignment for block in blocks])
        fine = [block.fine for block in blocks if block.fine is not None]
        write_labels_block(labels_at, start, assignment, np.concatenate(fine) if fine else None)
    return [block.part for block in blocks]


def _are_written(labels_at: Location, block_rows: int, n_rows: int, blocks: range) -> bool:
    """Return whether the labels that an earlier attempt wrote for these blocks can be read."""
    end = min(n_rows, blocks.stop * block_rows)
    return labels_complete(labels_at, blocks.start * block_rows, end)


def _label_part(
    block: NDArray[Any],
    start: int,
    centers: Points,
    sq_radius: float,
    labels_at: Location | None,
    margins: bool,
    collect: bool,
) -> _BlockLabels:
    assignment = assign_rows(block, centers, sq_radius, margins=margins)
    inside = assignment.labels[assignment.labels != OUTLIER]
    counts = np.bincount(inside, minlength=len(centers.raw)).astype(np.int64)
    labels = (assignment.labels,) if collect else ()
    part = LabelledPart(counts, len(block), labels, _count_zero_rows(block, centers))
    return _BlockLabels(part, assignment)


def _count_zero_rows(block: NDArray[Any], centers: Points) -> int:
    return len(zero_rows(block)) if centers.unit_length else 0


def _merge_labelled(a: LabelledPart, b: LabelledPart) -> LabelledPart:
    zeros = a.zero_rows + b.zero_rows
    return LabelledPart(a.counts + b.counts, a.n_rows + b.n_rows, a.labels + b.labels, zeros)


def _merge(a: AssignedPart, b: AssignedPart) -> AssignedPart:
    pruned, counts = merge_pruned(a.pruned, b.pruned), None
    if a.leaf_counts is not None and b.leaf_counts is not None:
        counts = a.leaf_counts + b.leaf_counts
    labels, fine = a.labels + b.labels, a.fine + b.fine
    zeros = a.zero_rows + b.zero_rows
    return AssignedPart(merge_sums(a.sums, b.sums), pruned, labels, counts, fine, zeros)


_ASSIGN = Pass(
    "assign",
    _assign_part,
    _merge,
    checkpoint_types=(AssignedPart, ClusterSums, Pruned),
    write=_write_labels,
)
_LABEL = Pass("assign", _label_part, _merge_labelled, write=_write_labels)


def _label_block(block: NDArray[Any], centers: Points, sq_radius: float) -> NDArray[np.int32]:
    try:
        with compute_slot(), pinned_threads():
            rows = remove_mask(block, "a block of the Dask array")
            return assign_rows(rows, centers, sq_radius).labels
    except NonFiniteRowError as error:
        raise error.named(f"row {error.row} of a block of the Dask array") from error
