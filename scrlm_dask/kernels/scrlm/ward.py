"""Ward's method for weighted points, and the resulting merge tree.

Other libraries merge points of equal weight. Here the weight of a point is the number of rows that
it represents. Joining two groups of weights v and w, whose means have the distance d, increases the
sum of the rows' squared distances to their means by v w / (v + w) d^2. The pair with the least
increase is joined first.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels.jit import jit

_MATRIX_LEAVES = 5000  # more leaves are joined without the matrix of all costs
_SEGMENT = 16  # features between two comparisons of a partial distance with the least cost
_PAIR_MULTIPLICATIONS = 4  # a pair takes as long as these, in addition to its features
_CALL_MULTIPLICATIONS = 4e7  # per call of a kernel, about 0.1 s
_MAX_SHARE_BYTES = 2**27  # a larger matrix of shares is not built


@dataclass(frozen=True)
class MergeTree:
    """Tree that joins L leaves; the cheapest merges come first.

    Merge t joins two groups into group L + t; groups 0..L-1 are the leaves.
    """

    leaves: NDArray[np.float64]  # (L, p) in input units
    weights: NDArray[np.float64]  # (L,) number of rows that each leaf represents
    merges: NDArray[np.int64]  # (L - 1, 2) numbers of the joined groups
    costs: NDArray[np.float64]  # (L - 1,) increase of the sum of squared distances, in model units

    @property
    def n_leaves(self) -> int:
        """Number of leaves."""
        return len(self.leaves)


def ward_tree(
    leaves: NDArray[np.float64], weights: NDArray[np.float64], mapped: NDArray[np.floating]
) -> MergeTree:
    """Return the tree of leaves (L, p) in input units; `mapped` (L, p) are their model coordinates.

    The nearest-neighbor chain algorithm needs O(L^2) time and memory. For more than 5000 leaves it
    computes costs when it needs them, in O(L^2 p) time and O(L p) memory (`tree_bytes`). A chain
    ends in two groups that are each nearest to the other, so every order of merging would join
    them. Ties go to the lower number.
    """
    joined, costs = _merge_order(mapped.astype(np.float64), weights)
    return MergeTree(leaves, weights, _number_nodes(joined, len(leaves)), costs)


def tree_of_distances(
    leaves: NDArray[np.floating], sq_distances: NDArray[np.floating]
) -> MergeTree:
    """Return the tree of leaves (L, p) of weight 1, from their squared distances (L, L)."""
    costs, weights = sq_distances.astype(np.float64), np.ones(len(leaves))
    _halve(costs)
    joined, costs = _ordered(*_merge_by_matrix(costs, weights.copy()))
    return MergeTree(leaves.astype(np.float64), weights, _number_nodes(joined, len(leaves)), costs)


def nested_tree(
    leaves: NDArray[np.float64],
    weights: NDArray[np.float64],
    mapped: NDArray[np.floating],
    parents: NDArray[np.int64],
) -> MergeTree:
    """Return a tree whose cut into `parents.max() + 1` groups has the given group for each leaf.

    `parents` (L,) are the ascending groups of the leaves. The leaves of each group are merged
    first, then the groups. In both parts the cheapest merges come first.
    """
    points, n_groups = mapped.astype(np.float64), int(parents.max()) + 1
    means = weighted_means(points, weights, parents)  # first, because merging overwrites the points
    firsts = np.searchsorted(parents, np.arange(n_groups + 1))
    inner, inner_costs = [np.empty((0, 2), np.int64)], [np.empty(0)]
    for first, end in pairwise(firsts):
        if end - first > 1:
            merges, costs = _merge_order(points[first:end], weights[first:end])
            inner.append(first + merges)
            inner_costs.append(costs)
    lower, lower_costs = np.concatenate(inner), np.concatenate(inner_costs)
    sums = np.bincount(parents, weights).astype(np.float64)
    joined, costs = _merge_order(means, sums)
    order = np.argsort(lower_costs, kind="stable")
    merges = _number_nodes(np.concatenate([lower[order], firsts[joined]]), len(leaves))
    return MergeTree(leaves, weights, merges, np.concatenate([lower_costs[order], costs]))


def _merge_order(
    points: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Merge the points; return a point of each of the two joined groups, and the costs.

    The points may be overwritten.
    """
    masses = weights.astype(np.float64)  # a copy, because chains overwrite them
    if len(points) <= _MATRIX_LEAVES:
        return _ordered(*_merge_by_matrix(_costs(points, weights), masses))
    return _ordered(*_merge_by_points(points, masses))


def _merge_by_matrix(
    costs: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the merges as `_chains` finds them; `costs` and `weights` are overwritten."""
    joined, merge_costs = _empty_merges(len(weights))
    _chains(costs, weights, joined, merge_costs)
    return joined, merge_costs


def _merge_by_points(
    points: NDArray[np.float64], weights: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the merges of `_merge_by_matrix`; `points` and `weights` are overwritten.

    The kernel is called many times, because Python handles signals only between the calls.
    """
    n = len(weights)
    joined, merge_costs = _empty_merges(n)
    chains = _Chains(
        groups=np.arange(n),
        chain=np.empty(n, np.int64),
        in_chain=np.zeros(n, np.bool_),
        floors=np.zeros(n),
        progress=np.zeros(2, np.int64),
    )
    scan = n * (points.shape[1] + _PAIR_MULTIPLICATIONS)
    n_scans = max(1, int(_CALL_MULTIPLICATIONS / scan))
    while chains.progress[0] < n - 1:
        _extend_chains(points, weights, chains, n_scans, joined, merge_costs)
    return joined, merge_costs


def _empty_merges(n: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return arrays for the merges of n leaves: (n - 1, 2), and their costs (n - 1,).

    Kernels fill them and return no array. While Numba converts an array that a kernel returns,
    Python may handle a signal, and an error of its handler then ends the process.
    """
    n_merges = max(n - 1, 0)
    return np.empty((n_merges, 2), np.int64), np.empty(n_merges)


def _ordered(
    joined: NDArray[np.int64], costs: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return merges and their costs; the cheapest come first."""
    order = np.argsort(costs, kind="stable")
    return joined[order], costs[order]


def tree_bytes(n_leaves: int, n_features: int) -> int:
    """Return the peak memory of `ward_tree` in bytes, with `mapped`, but without the leaves."""
    size = n_leaves * n_features
    points = (4 + 8) * size  # `mapped`, and a copy in float64
    if n_leaves <= _MATRIX_LEAVES:
        return points + max(8 * n_leaves**2, 8 * size)  # costs of all pairs, or squares
    return points + 8 * 16 * n_leaves  # weights, chain, merges and their order


def means_bytes(n_points: int, n_features: int, n_groups: int) -> int:
    """Return the peak memory of `weighted_means` in bytes: a matrix of shares, or sorted points."""
    shares = 8 * n_groups * n_points
    if shares <= _MAX_SHARE_BYTES:
        return shares + 8 * 2 * n_groups * n_features
    return 8 * (n_points + max(n_points, 2 * n_groups)) * n_features + 8 * 6 * n_points


def tree_multiplications(n_leaves: int, n_features: int) -> float:
    """Return the work of `ward_tree`, at most: three scans per leaf, in multiplications."""
    n_pairs = 1.5 * float(n_leaves) ** 2
    with_points = n_features + _PAIR_MULTIPLICATIONS
    return n_pairs * (1 if n_leaves <= _MATRIX_LEAVES else with_points)


def cut_tree(tree: MergeTree, n_groups: int) -> NDArray[np.int64]:
    """Return the group (L,) of each leaf after merging to `n_groups`.

    Groups are numbered in the order of their first leaves.
    """
    n = tree.n_leaves
    groups = np.empty(n, np.int64)
    _label_groups(tree.merges[: max(0, n - max(n_groups, 1))], groups)
    return groups


@jit()
def _label_groups(merges, groups):  # type: ignore[no-untyped-def]
    """Label each leaf with its group after the merges, in the order of the first leaves."""
    n = len(groups)
    parents = np.arange(n + len(merges))
    for t in range(len(merges)):
        parents[merges[t, 0]] = parents[merges[t, 1]] = n + t
    for node in range(len(parents) - 1, -1, -1):  # a parent has a larger number than its children
        parents[node] = parents[parents[node]]
    numbers = np.full(len(parents), -1)
    n_groups = 0
    for leaf in range(n):
        root = parents[leaf]
        if numbers[root] == -1:
            numbers[root] = n_groups
            n_groups += 1
        groups[leaf] = numbers[root]


def group_means(tree: MergeTree, groups: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the weighted means (k, p) of the leaves of each group."""
    return weighted_means(tree.leaves, tree.weights, groups)


def weighted_means(
    points: NDArray[np.float64], weights: NDArray[np.float64], groups: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the weighted means (k, p) of the points (L, p) of each group."""
    n_groups = int(groups.max()) + 1
    if 8 * n_groups * len(points) > _MAX_SHARE_BYTES:
        return _sorted_means(points, weights, groups)
    share = np.zeros((n_groups, len(points)))
    share[groups, np.arange(len(points))] = weights
    return np.asarray(share @ points / share.sum(axis=1, keepdims=True))


def _sorted_means(
    points: NDArray[np.float64], weights: NDArray[np.float64], groups: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the weighted means as `weighted_means` does, without a matrix (k, L)."""
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(int(groups.max()) + 1))
    weighted = points[order] * weights[order, None]
    sums = np.add.reduceat(weights[order], starts)
    return np.asarray(np.add.reduceat(weighted, starts) / sums[:, None])


def _costs(points: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cost of joining each pair (L, L); infinite on the diagonal.

    The matrix is symmetric to the last bit. Otherwise a chain could follow a cycle without end.
    """
    sq_norms = np.square(points).sum(axis=1)
    costs = points @ points.T
    _fill_costs(costs, sq_norms, weights)
    return np.asarray(costs)


@jit()
def _fill_costs(costs, sq_norms, weights):  # type: ignore[no-untyped-def]
    """Replace products by costs; each pair is computed once, so the result is symmetric."""
    n = len(weights)
    for i in range(n):
        costs[i, i] = np.inf
        for k in range(i):
            sq_dist = max(sq_norms[i] + sq_norms[k] - 2.0 * costs[i, k], 0.0)
            w = weights[i] * weights[k] / (weights[i] + weights[k])
            costs[i, k] = costs[k, i] = sq_dist * w


@jit()
def _halve(costs):  # type: ignore[no-untyped-def]
    """Replace squared distances by the costs of joining leaves of weight 1, symmetric."""
    for i in range(len(costs)):
        costs[i, i] = np.inf
        for k in range(i):
            costs[i, k] = costs[k, i] = 0.5 * max(costs[i, k], 0.0)


def _number_nodes(joined: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Convert merges from a leaf of each of the two groups to the numbers of the groups."""
    merges = np.empty((n - 1, 2), np.int64)
    _fill_merges(joined, np.arange(n), np.arange(n), merges)
    return merges


@jit()
def _fill_merges(joined, group, parents, merges):  # type: ignore[no-untyped-def]
    """Fill the merges; `group` is the number of the group that each leaf represents."""
    n = len(group)
    for t in range(len(merges)):
        a, b = _find(parents, joined[t, 0]), _find(parents, joined[t, 1])
        merges[t, 0], merges[t, 1] = min(group[a], group[b]), max(group[a], group[b])
        parents[b], group[a] = a, n + t


@jit()
def _find(parents, leaf):  # type: ignore[no-untyped-def]
    while parents[leaf] != leaf:
        parents[leaf] = parents[parents[leaf]]
        leaf = parents[leaf]
    return leaf


@jit()
def _chains(costs, weights, joined, merge_costs):  # type: ignore[no-untyped-def]
    """Fill the merges (L - 1, 2), as a leaf of each of the two groups, and their costs (L - 1,).

    Merges are in the order in which chains find them. A chain never visits a leaf twice: costs are
    symmetric and decrease from step to step, and joining a group never costs less than joining the
    cheaper of its two parts.
    """
    n = len(weights)
    alive = np.ones(n, np.bool_)
    chain = np.empty(n, np.int64)
    length = 0
    for t in range(n - 1):
        if length == 0:
            chain[0] = np.argmax(alive)
            length = 1
        while True:
            current = chain[length - 1]
            # Prefer the previous leaf if costs tie, so that a chain cannot enter a cycle.
            near = chain[length - 2] if length > 1 else -1
            least = costs[current, near] if length > 1 else np.inf
            for k in range(n):
                if alive[k] and costs[current, k] < least:
                    near, least = k, costs[current, k]
            if length == n:  # no other leaf is left, so the chain ends here
                near = chain[length - 2]
            if length > 1 and near == chain[length - 2]:
                break
            if near == -1:  # all other costs are infinite
                near = _other(alive, current)
            chain[length] = near
            length += 1
        length -= 2
        a, b = min(current, near), max(current, near)
        joined[t, 0], joined[t, 1], merge_costs[t] = a, b, costs[a, b]
        alive[b] = False
        w, v = weights[a], weights[b]
        for k in range(n):
            if alive[k] and k != a:
                u = weights[k]
                cost = (w + u) * costs[a, k] + (v + u) * costs[b, k] - u * merge_costs[t]
                # The cost is never less than this bound; rounding must not change that.
                least = min(costs[a, k], costs[b, k])
                costs[a, k] = costs[k, a] = max(least, cost / (w + v + u))
        weights[a] = w + v


@jit()
def _other(alive, current):  # type: ignore[no-untyped-def]
    for k in range(len(alive)):
        if alive[k] and k != current:
            return k
    return current


class _Chains(NamedTuple):
    """State of the search for merges, between two calls of the kernel."""

    groups: NDArray[np.int64]  # the first leaf of each group, ascending; then unused places
    chain: NDArray[np.int64]
    in_chain: NDArray[np.bool_]  # for each leaf
    floors: NDArray[np.float64]  # cost of the last merge of each group
    progress: NDArray[np.int64]  # (2,) number of merges, length of the chain


@jit()
def _extend_chains(points, weights, chains, n_scans, joined, merge_costs):  # type: ignore[no-untyped-def]
    """Continue to fill the merges of `_chains`, and their costs, for `n_scans` steps of a chain.

    A group is its mean and weight, in `points` and `weights`. Rounding could make a group in the
    chain cheaper than the previous one, so only the previous one is compared. A merge never costs
    less than the merges of its parts.
    """
    n, (groups, chain, in_chain, floors, progress) = len(weights), chains
    t, length = progress[0], progress[1]
    for _ in range(n_scans):
        if t == n - 1:
            break
        if length == 0:
            chain[0], length = groups[0], 1
            in_chain[groups[0]] = True
        current, previous = chain[length - 1], chain[length - 2] if length > 1 else -1
        near, least = _nearest(points, weights, groups[: n - t], in_chain, current, previous)
        if near != previous:
            chain[length], in_chain[near] = near, True
            length += 1
            continue
        length -= 2
        in_chain[current] = in_chain[near] = False
        a, b = min(current, near), max(current, near)
        floors[a] = max(least, floors[a], floors[b])
        joined[t, 0], joined[t, 1], merge_costs[t] = a, b, floors[a]
        share = weights[b] / (weights[a] + weights[b])
        for j in range(points.shape[1]):
            points[a, j] += share * (points[b, j] - points[a, j])
        weights[a] += weights[b]
        place = np.searchsorted(groups[: n - t], b)
        groups[place : n - t - 1] = groups[place + 1 : n - t].copy()
        t += 1
    progress[0], progress[1] = t, length


@jit()
def _nearest(points, weights, groups, in_chain, current, previous):  # type: ignore[no-untyped-def]
    """Return the cheapest partner of a group, and the cost; ties go to the previous group."""
    near, least = previous, np.inf
    if previous >= 0:
        least = _cost(points, weights, current, previous, np.inf)
    for k in groups:
        if in_chain[k]:
            continue
        cost = _cost(points, weights, current, k, least)
        if cost < least or near == -1:
            near, least = k, cost
    return near, least


@jit("reassoc", "contract")
def _cost(points, weights, i, k, limit):  # type: ignore[no-untyped-def]
    """Return the cost of joining two groups; at least `limit` if it is not less than `limit`."""
    w = weights[i] * weights[k] / (weights[i] + weights[k])
    n_features, sq_dist, start = points.shape[1], 0.0, 0
    while start < n_features:
        part = 0.0
        for j in range(start, min(start + _SEGMENT, n_features)):
            difference = points[i, j] - points[k, j]
            part += difference * difference
        sq_dist += part
        start += _SEGMENT
        if w * sq_dist >= limit:
            break
    return w * sq_dist
