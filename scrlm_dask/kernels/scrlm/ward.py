"""Ward's merging of weighted points, and the tree that it leaves.

Libraries merge points of equal weight. Here a point stands for as many rows as its weight says:
joining two groups of weights v and w whose means lie d apart raises the rows' squared distances to
their means by v w / (v + w) d^2, and the pair for which that is least goes first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels.jit import jit


@dataclass(frozen=True)
class MergeTree:
    """L leaves and how they join, cheapest first.

    Merge t joins two groups into group L + t; groups 0..L-1 are the leaves.
    """

    leaves: NDArray[np.float64]  # (L, p) in input units
    weights: NDArray[np.float64]  # (L,) rows that each stands for
    merges: NDArray[np.int64]  # (L - 1, 2) groups joined
    costs: NDArray[np.float64]  # (L - 1,) rise of the squared distances, in model units

    @property
    def n_leaves(self) -> int:
        return len(self.leaves)


def ward_tree(
    leaves: NDArray[np.float64], weights: NDArray[np.float64], mapped: NDArray[np.floating]
) -> MergeTree:
    """The tree of leaves (L, p), which lie at `mapped` (L, p) in the model's space.

    Memory (`tree_bytes`) is O(L^2), and so is time: chains of nearest neighbours end in pairs that
    every order of merging would join. Ties go to the lower number.
    """
    points = mapped.astype(np.float64)
    joined, costs = _chains(_costs(points, weights), weights.astype(np.float64))
    order = np.argsort(costs, kind="stable")
    return MergeTree(leaves, weights, _number_nodes(joined[order], len(leaves)), costs[order])


def tree_bytes(n_leaves: int) -> int:
    """What `ward_tree` needs at its peak: the costs of all pairs."""
    return 8 * n_leaves**2


def cut_tree(tree: MergeTree, n_groups: int) -> NDArray[np.int64]:
    """The group (L,) of each leaf when `n_groups` are left, numbered by their first leaf."""
    n = tree.n_leaves
    parents = np.arange(2 * n - 1)
    for t in range(max(0, n - max(n_groups, 1))):
        parents[tree.merges[t]] = n + t
    roots = np.arange(n)
    while not np.array_equal(parents[roots], roots):
        roots = parents[roots]
    _, first, groups = np.unique(roots, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[groups]


def group_means(tree: MergeTree, groups: NDArray[np.int64]) -> NDArray[np.float64]:
    """Weighted means (k, p) of the leaves of each group."""
    return weighted_means(tree.leaves, tree.weights, groups)


def weighted_means(
    points: NDArray[np.float64], weights: NDArray[np.float64], groups: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Means (k, p) of the points (L, p) of each group."""
    share = np.zeros((int(groups.max()) + 1, len(points)))
    share[groups, np.arange(len(points))] = weights
    return np.asarray(share @ points / share.sum(axis=1, keepdims=True))


def _costs(points: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """What joining each pair would cost (L, L); infinite on the diagonal.

    The same bits on both sides of the diagonal: a chain whose steps cost a last bit more one way
    than the other could go round for ever.
    """
    sq_norms = np.square(points).sum(axis=1)
    costs = points @ points.T
    _fill_costs(costs, sq_norms, weights)
    return np.asarray(costs)


@jit()
def _fill_costs(costs, sq_norms, weights):  # type: ignore[no-untyped-def]
    """Costs from products, each pair once."""
    n = len(weights)
    for i in range(n):
        costs[i, i] = np.inf
        for k in range(i):
            apart = max(sq_norms[i] + sq_norms[k] - 2.0 * costs[i, k], 0.0)
            w = weights[i] * weights[k] / (weights[i] + weights[k])
            costs[i, k] = costs[k, i] = apart * w


def _number_nodes(joined: NDArray[np.int64], n: int) -> NDArray[np.int64]:
    """Merges by group number, from merges by a leaf of each group."""
    group = np.arange(n)  # of the leaf that stands for it
    merges = np.empty((n - 1, 2), np.int64)
    stands = np.arange(n)
    for t, (a, b) in enumerate(joined):
        a, b = _find(stands, a), _find(stands, b)
        merges[t] = sorted((group[a], group[b]))
        stands[b], group[a] = a, n + t
    return merges


def _find(stands: NDArray[np.int64], leaf: int) -> int:
    while stands[leaf] != leaf:
        stands[leaf] = stands[stands[leaf]]
        leaf = int(stands[leaf])
    return leaf


@jit()
def _chains(costs, weights):  # type: ignore[no-untyped-def]
    """Pairs (L - 1, 2) by a leaf of each, and their costs, in the order in which chains end.

    No chain comes to a leaf twice: costs are symmetric, fall from step to step, and a group is
    never cheaper to join than the cheaper of its two parts was.
    """
    n = len(weights)
    alive = np.ones(n, np.bool_)
    joined, found = np.empty((max(n - 1, 0), 2), np.int64), np.empty(max(n - 1, 0))
    chain = np.empty(n, np.int64)
    length = 0
    for t in range(n - 1):
        if length == 0:
            chain[0] = np.argmax(alive)
            length = 1
        while True:
            here = chain[length - 1]
            # the one before first: where costs tie a chain must not go round
            near = chain[length - 2] if length > 1 else -1
            least = costs[here, near] if length > 1 else np.inf
            for k in range(n):
                if alive[k] and costs[here, k] < least:
                    near, least = k, costs[here, k]
            if length == n:  # it ends here, whatever was found: there is nobody left
                near = chain[length - 2]
            if length > 1 and near == chain[length - 2]:
                break
            if near == -1:  # all others are infinitely far
                near = _other(alive, here)
            chain[length] = near
            length += 1
        length -= 2
        a, b = min(here, near), max(here, near)
        joined[t, 0], joined[t, 1], found[t] = a, b, costs[a, b]
        alive[b] = False
        w, v = weights[a], weights[b]
        for k in range(n):
            if alive[k] and k != a:
                u = weights[k]
                apart = (w + u) * costs[a, k] + (v + u) * costs[b, k] - u * found[t]
                least = min(costs[a, k], costs[b, k])  # which rounding must not go below
                costs[a, k] = costs[k, a] = max(least, apart / (w + v + u))
        weights[a] = w + v
    return joined, found


@jit()
def _other(alive, here):  # type: ignore[no-untyped-def]
    for k in range(len(alive)):
        if alive[k] and k != here:
            return k
    return here
