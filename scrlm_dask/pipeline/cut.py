"""Join the clusters of a run into fewer clusters, along a tree of merges.

The tree is the merge tree of the model if it contains all clusters, otherwise a new Ward tree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.choices import LEVELS, Level
from scrlm_dask.engine.workers import machine_memory
from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.events import Listener, Note, warn
from scrlm_dask.kernels.bandwidth.modularity import Levels
from scrlm_dask.kernels.distances.points import prepare_points
from scrlm_dask.kernels.scrlm.ward import (
    MergeTree,
    cut_tree,
    means_bytes,
    tree_bytes,
    tree_multiplications,
    ward_tree,
    weighted_means,
)
from scrlm_dask.model import Model
from scrlm_dask.runs.record import read_result
from scrlm_dask.storage.arrays import trace_node
from scrlm_dask.storage.feature_store import LABELS, mark_complete
from scrlm_dask.storage.label_store import FINE, copy_joined, create_labels_store, open_labels
from scrlm_dask.storage.locations import Options, Place, locate
from scrlm_dask.storage.model_store import load_model
from scrlm_dask.storage.outputs import (
    LABELS_KIND,
    check_not_inside,
    check_output_free,
    replacing,
)
from scrlm_dask.storage.run_directory import RunDirectory
from scrlm_dask.storage.store_info import features_in
from scrlm_dask.storage.traces import InputTrace

_USABLE_SHARE = 0.5  # share of the machine's memory that building a tree may use
_MULTIPLICATIONS_PER_SECOND = 4e8  # measured for trees of 10 000 clusters, 4 to 64 features


@dataclass(frozen=True)
class ClusterCut:
    """The clusters of a run, joined into fewer clusters; outliers stay outliers.

    Attributes
    ----------
    groups : numpy.ndarray of shape (k,)
        Number of the joined cluster to which each cluster of the run belongs. If the cut has more
        clusters than the run, `groups` has shape (L,) and joins the leaves of the fine level.
    centers : numpy.ndarray of shape (g, p)
        Means of the joined clusters, in input units.
    counts : numpy.ndarray of shape (g,)
        Number of rows of each joined cluster.
    n_outliers : int
        Number of outliers.
    parents : numpy.ndarray of shape (g,) or None
        If the cut has more clusters than the run, the cluster of the run that contains each of
        them; otherwise None.
    """

    groups: NDArray[np.int64]
    centers: NDArray[np.float64]
    counts: NDArray[np.int64]
    n_outliers: int
    parents: NDArray[np.int64] | None = None


def cut_model(model: Model, n_clusters: int, listener: Listener = warn) -> ClusterCut:
    """Join the clusters of a model into `n_clusters`, along its merge tree or a Ward tree.

    If the model has a fine level, its leaves can be joined to more clusters than the model has.
    """
    leaves = _fine_leaves(model)
    most = model.n_clusters if leaves is None else leaves.n_leaves
    if not 1 <= n_clusters <= most:
        raise InputError(
            f"--clusters (n_clusters) must be from 1 to {most}, the number of clusters of the "
            f"model{'' if leaves is None else ' at its fine level'}, got {n_clusters}; for more "
            "clusters, fit again"
        )
    if leaves is not None and n_clusters > model.n_clusters:
        groups = cut_tree(leaves, n_clusters)
        counts = np.bincount(groups, leaves.weights).astype(np.int64)
        parents = np.empty(n_clusters, np.int64)
        parents[groups] = cut_tree(leaves, model.n_clusters)
        means = weighted_means(leaves.leaves, np.maximum(leaves.weights, 1.0), groups)
        return ClusterCut(groups, means, counts, model.n_outliers, parents)
    groups = _join_clusters(model, n_clusters, listener)
    counts = np.bincount(groups, model.counts).astype(np.int64)
    means = weighted_means(model.means, _masses(model), groups)
    return ClusterCut(groups, means, counts, model.n_outliers)


def _fine_leaves(model: Model) -> MergeTree | None:
    """Return the tree of the fine level, whose labels are stored; None without a fine level."""
    return model.tree if model.has_fine_level else None


def cut_run(
    run: Place,
    n_clusters: int | None = None,
    *,
    level: Level | None = None,
    out: Place | None = None,
    overwrite: bool = False,
    storage_options: Options | None = None,
    listener: Listener = warn,
) -> ClusterCut:
    """Join the clusters of a run into `n_clusters`; with `out`, write a labels store of the cut.

    Instead of `n_clusters`, a `level` of the run can be given. Features are not read: every joined
    cluster is a union of clusters of the run, or of leaves of its fine level.
    """
    location = locate(run, storage_options)
    directory = RunDirectory(location)
    read_result(directory)  # raises if there is no complete run
    target = None if out is None else locate(out, storage_options)
    if target is not None:  # checked first, because a large tree takes minutes
        check_not_inside(target, location, "the run")
        check_output_free(target, overwrite, LABELS_KIND)
    traced = trace_node("the model", directory.model)
    model = load_model(location)
    record = read_result(directory)  # of the run whose model was traced
    scan = record.read_scan()
    levels = None if scan is None else scan.levels
    cut = cut_model(model, clusters_at(n_clusters, level, levels, model), listener)
    if target is None:
        InputTrace(traced).check()
        return cut
    finer = len(cut.groups) > model.n_clusters
    stored = open_labels(directory.labels, "the labels store", FINE if finer else LABELS)
    inputs = InputTrace((*traced, *trace_node("the labels store", stored.location)))
    n_rows, block_rows = stored.shape[0], stored.chunks[0]
    if n_rows != record.features.rows:
        raise StoreError(
            f"the labels store {stored.location} has {n_rows} rows, but the run has "
            f"{record.features.rows}; restore its metadata, or run the fit again"
        )
    with replacing(target, overwrite, LABELS_KIND) as at:
        features = features_in(directory.check_complete())
        create_labels_store(at, n_rows, block_rows, False, features, distances=False)
        copy_joined(stored, cut.groups, at, LABELS)
        inputs.check()
        mark_complete(at)
    return cut


def clusters_at(
    n_clusters: int | None, level: Level | None, levels: Levels | None, model: Model
) -> int:
    """Return the number of clusters of a cut: as given, or that of a level of the run.

    The fine level of the model can have more clusters than the sample suggested.
    """
    if (n_clusters is None) == (level is None):
        raise InputError("give either --clusters (n_clusters) or --level (level)")
    if n_clusters is not None:
        if not isinstance(n_clusters, Integral) or isinstance(n_clusters, bool):
            raise InputError(f"n_clusters must be an integer, got {n_clusters!r}")
        return int(n_clusters)
    leaves = _fine_leaves(model)
    if level == "fine" and leaves is not None:
        return leaves.n_leaves
    found: int | None = getattr(levels, str(level), None) if level in LEVELS else None
    if found is None:
        names = [name for name in LEVELS if getattr(levels, name, None) is not None]
        has = f"has only the level {' and '.join(names)}" if names else "has no levels"
        raise InputError(
            f"the run has no level {level!r}: it {has}; give the number of clusters instead "
            "(--clusters, n_clusters)"
        )
    return found


def _join_clusters(model: Model, n_clusters: int, listener: Listener) -> NDArray[np.int64]:
    """Return the joined cluster (k,) to which each cluster of the model belongs."""
    tree = model.tree
    if tree is None or tree.n_leaves < model.n_clusters:
        tree = _build_tree(model, n_clusters, listener)
    fine, coarse = cut_tree(tree, model.n_clusters), cut_tree(tree, n_clusters)
    groups = np.empty(model.n_clusters, np.int64)
    groups[fine] = coarse
    return groups


def _build_tree(model: Model, n_clusters: int, listener: Listener) -> MergeTree:
    """Build a Ward tree of all clusters, for a model without a merge tree that contains them."""
    need, here = _memory_of_tree(model, n_clusters), machine_memory()
    if need > _USABLE_SHARE * here:
        raise InputError(
            f"a cut of {model.n_clusters} clusters without a merge tree needs {need / 1e9:.2f} GB, "
            f"but this process may use only {_USABLE_SHARE:.0%} of the {here / 1e9:.2f} GB of this "
            "machine; use a machine with more memory, or fit again with fewer clusters"
        )
    minutes = (
        tree_multiplications(model.n_clusters, model.n_features)
        / _MULTIPLICATIONS_PER_SECOND
        / 60.0
    )
    if minutes > 1.0:
        text = f"a merge tree of {model.n_clusters} clusters takes about {minutes:.0f} minute(s)"
        listener(Note(text, warning=True))
    mapped = prepare_points(model.means, model.affine).mapped
    return ward_tree(model.means, _masses(model), mapped)


def _memory_of_tree(model: Model, n_clusters: int) -> int:
    """Return the peak memory of building and cutting a tree, including the model, in bytes."""
    n, p = model.means.shape
    points = model.means.nbytes + model.centers.nbytes
    return points + max(tree_bytes(n, p), means_bytes(n, p, n_clusters))


def _masses(model: Model) -> NDArray[np.float64]:
    """Return the weight of each cluster: the sum of the sample weights of its rows.

    A model with a radius has no sample weights: its `model.weights` are mixture weights, which also
    include rows outside the radius. Its counts are used instead. An empty cluster gets weight 1.
    """
    has_radius = math.isfinite(model.radius)
    masses = model.counts.astype(np.float64) if has_radius else model.weights * model.n_rows
    return np.where(masses > 0.0, masses, 1.0)
