"""Choose the number of clusters of a sample without a clear scale, by modularity.

Candidates are merged by Ward's method. Every cut of this tree gives the rows of the sample a label.
A cut is good if a row and its nearest neighbors often have the same label, more often than cluster
sizes alone explain. This is the modularity of the neighbor graph at a resolution g:

    Q_g = (share of edges with both ends in the same cluster) - g * (share expected by chance)

A larger g gives more clusters. The same measure on rows of a normal distribution with the
covariance of the sample, the null, shows how much of Q is due to clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels.distances.points import Points
from scrlm_dask.kernels.distances.preprocessing import FloatArray
from scrlm_dask.kernels.evaluation.metrics import contingency, scores
from scrlm_dask.kernels.jit import jit
from scrlm_dask.kernels.scrlm.ward import MergeTree, cut_tree, tree_of_distances

Structure = Literal["clear", "weak", "none"]

NEIGHBORS = 15
LEAST_ROWS = 32  # with fewer rows, neighbors are not informative
RESOLUTION = 1.5  # of the default level; 1 merges small clusters
_LOW, _HIGH = 1.0, 2.25  # resolutions at the ends of the interval of good numbers of clusters
_COARSE, _FINE = 0.5, 4.5
_AS_GOOD = 0.01  # difference of modularity to the default that does not matter
_LEVEL_RATIO = 1.5  # a level nearer to the default is not a level of its own
_STEPS_PER_DOUBLING, _ROWS_PER_CLUSTER = 4, 8
MOST_CUT = 1024  # largest number of clusters that is tried
_SMOOTHING = 0.4  # standard deviation of the average over numbers of clusters, in doublings
# After the grid, numbers of clusters within this factor of the best are tried, up to a limit.
_NEAR_BEST, _MOST_INTEGERS = 2.0**0.1, 12
_CLEARLY_BETTER = 0.012  # difference of modularity that does not depend on the sample
# The search stops after this many successive cuts whose modularity at the fine level is below this
# share of its maximum, if the number of clusters is at least the last number.
_FALLEN_CUTS, _FALLEN, _LEAST_TRIED = 4, 0.85, 32
CLEAR_GAP, WEAK_GAP = 0.2, 0.12
_GAP_ERROR = 0.5  # standard deviation of the gap of one row; measured on normal rows
_LEAST_AGREEMENT = 0.7
# Largest part of the sample that is compared with the null, least number of its candidates if there
# are enough rows, and number of rows whose covariance the null has.
PART_ROWS, _PART_CANDIDATES, NULL_RANK = 4096, 512, 1024
_SMALL_ROWS, _MOST_DRAWS = 2048, 8  # several draws of the null if the part has fewer rows
_NULL_SEED = 0  # the null does not depend on the seed of the run


@dataclass(frozen=True)
class CutTrial:
    """The neighbor graph of a sample, divided by one cut of the tree.

    Attributes
    ----------
    clusters : int
        Number of clusters.
    same : float
        Share of nearest neighbors that have the same label as the row.
    expected : float
        The same share if neighbors were drawn at random.
    """

    clusters: int
    same: float
    expected: float

    def modularity(self, resolution: float = RESOLUTION) -> float:
        """Return the modularity at a resolution."""
        return self.same - resolution * self.expected


@dataclass(frozen=True)
class Levels:
    """Numbers of clusters that suit a sample, and how clear its clusters are.

    Attributes
    ----------
    clusters : int
        The default number of clusters.
    low, high : int
        Numbers of clusters that suit the sample about as well.
    coarse, fine : int or None
        A number of clusters for a coarser and for a finer view; None if it would be about the same
        as the default.
    same : float
        Share of the 15 nearest neighbors that have the same label as the row, at the default.
    gap : float
        Modularity of resolution 1 at the default minus that of the null, rows of a normal
        distribution with the covariance of the sample, and minus the sampling error.
    structure : {"clear", "weak", "none"}
        The gap in words.
    agreement : float
        Adjusted Rand index between the labels from two disjoint parts of the sample. If it is less
        than 0.7, fits with different seeds have clearly different labels.
    trials : tuple of CutTrial
        All cuts that were tried.
    """

    clusters: int
    low: int
    high: int
    coarse: int | None
    fine: int | None
    same: float
    gap: float
    structure: Structure
    agreement: float
    trials: tuple[CutTrial, ...] = field(repr=False)

    @property
    def is_stable(self) -> bool:
        """True if fits with different seeds have similar labels."""
        return self.agreement >= _LEAST_AGREEMENT

    def describe(self) -> str:
        """Return the choice in words."""
        if self.structure == "none":
            return (
                "the sample does not show clearly more structure than one normal distribution "
                f"({self.gap:.2f} more, at least {WEAK_GAP:g} is required; with few features, "
                f"clusters can be missed): its division into {self.clusters} clusters is arbitrary"
            )
        others = [f"{self.low} to {self.high} would do as well"] if self.low < self.high else []
        names = (("coarse", self.coarse), ("fine", self.fine))
        levels = ", ".join(f"{name} {m}" for name, m in names if m is not None)
        return (
            f"{self.clusters} clusters{_in_brackets([*others, levels])}: {self.same:.0%} of the "
            f"{NEIGHBORS} nearest neighbors of a row are in its cluster; structure: "
            f"{self.structure} ({self.gap:.2f} more than rows of one normal distribution)"
        )


def _in_brackets(parts: Sequence[str]) -> str:
    text = "; ".join(part for part in parts if part)
    return f" ({text})" if text else ""


@dataclass(frozen=True)
class CutSearch:
    """Cuts of a tree into several numbers of clusters, ascending, and the best of them."""

    trials: tuple[CutTrial, ...]
    best: CutTrial


class SampleTree:
    """Candidates of a sample, merged by Ward's method, and their nearest neighbors.

    `leaves` (n, p) are the candidates, which are the first n rows of the sample. `sq_distances`
    (n, rows) are the squared distances of the candidates to all rows of the sample.
    """

    def __init__(self, leaves: FloatArray, sq_distances: NDArray[np.float32]) -> None:
        n, n_rows = sq_distances.shape
        self.n_rows = n_rows
        self.tree: MergeTree = tree_of_distances(leaves, sq_distances[:, :n])
        self._neighbors = nearest_rows(sq_distances, min(NEIGHBORS, n_rows - 1))
        self._labeller = CutLabels(self.tree, sq_distances, self.most_clusters)

    @property
    def most_clusters(self) -> int:
        """Largest number of clusters that is tried."""
        most = min(MOST_CUT, self.n_rows // _ROWS_PER_CLUSTER, self.tree.n_leaves)
        return max(2, int(most))

    def labels(self, n_clusters: int) -> NDArray[np.int64]:
        """Return the label (rows,) of each row: the nearest mean of a cut of the tree."""
        return self._labeller.at(n_clusters)

    def cut(self, n_clusters: int) -> CutTrial:
        """Return how a cut divides the neighbor graph."""
        labels = self.labels(n_clusters)
        own, others = labels[: len(self._neighbors)], labels[self._neighbors]
        tails = np.bincount(own, minlength=n_clusters) / len(own)
        heads = np.bincount(others.ravel(), minlength=n_clusters) / others.size
        same = float(np.mean(others == own[:, None]))
        return CutTrial(n_clusters, same, float(tails @ heads))

    def search(self) -> CutSearch:
        """Cut the tree into 2, 3, 4, ... clusters on a geometric grid, then around the best cut."""
        trials: list[CutTrial] = []
        highest, fallen = -np.inf, 0
        for m in _grid(self.most_clusters):
            trials.append(self.cut(m))
            fine = trials[-1].modularity(_FINE)
            highest = max(highest, fine)
            fallen = fallen + 1 if highest > 0.0 and fine < _FALLEN * highest else 0
            if m >= _LEAST_TRIED and fallen >= _FALLEN_CUTS:
                break
        # The best single cut is chosen only if it is clearly better than cuts near the average.
        near, other = self._near(_smoothed_best(trials)), self._near(best_cut(trials).clusters)
        tried = {trial.clusters for trial in trials}
        trials += [self.cut(m) for m in sorted({*near, *other} - tried)]
        usual = best_cut([trial for trial in trials if near[0] <= trial.clusters <= near[-1]])
        best = best_cut(trials)
        if best.modularity() < usual.modularity() + _CLEARLY_BETTER:
            best = usual
        trials.sort(key=lambda trial: trial.clusters)
        return CutSearch(tuple(trials), best)

    def _near(self, n_clusters: int) -> list[int]:
        """Return numbers of clusters near the given one, ascending."""
        low = max(2.0, min(n_clusters / _NEAR_BEST, n_clusters - 1))
        high = min(max(n_clusters * _NEAR_BEST, n_clusters + 1), self.most_clusters)
        numbers = np.linspace(low, high, _MOST_INTEGERS).round().astype(int)
        return [int(m) for m in np.unique([*numbers, n_clusters])]


def _grid(most: int) -> list[int]:
    """Return the numbers of clusters to try, in steps of a quarter of a doubling."""
    n_steps = int(_STEPS_PER_DOUBLING * np.log2(most / 2.0)) + 1
    grid = np.rint(2.0 * 2.0 ** (np.arange(n_steps) / _STEPS_PER_DOUBLING)).astype(int)
    return [int(m) for m in np.unique(np.minimum(grid, most))]


def _smoothed_best(trials: Sequence[CutTrial]) -> int:
    """Return the number of clusters with the highest modularity, averaged over similar numbers.

    The modularity of a single cut depends on the sample; the average depends less on it.
    """
    doublings = np.log2([trial.clusters for trial in trials])
    if len(trials) < 3:
        return best_cut(trials).clusters
    modularities = np.array([trial.modularity() for trial in trials])
    distances = (doublings[:, None] - doublings) / _SMOOTHING
    weights = np.exp(-0.5 * distances**2) * np.gradient(doublings)
    return trials[int(np.argmax(weights @ modularities / weights.sum(axis=1)))].clusters


def best_cut(trials: Sequence[CutTrial], resolution: float = RESOLUTION) -> CutTrial:
    """Return the cut with the highest modularity; ties go to fewer clusters."""
    return max(trials, key=lambda trial: (trial.modularity(resolution), -trial.clusters))


def nearest_rows(sq_distances: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Return the k nearest rows (n, k) of each candidate, without its own row."""
    nearest = np.zeros((len(sq_distances), k), np.int64)
    _nearest_rows(sq_distances, nearest)
    return nearest


@jit()
def _nearest_rows(sq_distances, nearest):  # type: ignore[no-untyped-def]
    n, rows = sq_distances.shape
    k = nearest.shape[1]
    best = np.empty(k, np.float32)
    for j in range(n):
        best[:] = np.inf
        farthest = best[k - 1]
        for i in range(rows):
            value = sq_distances[j, i]
            if value < farthest and i != j:
                at = k - 1
                while at > 0 and best[at - 1] > value:
                    best[at], nearest[j, at] = best[at - 1], nearest[j, at - 1]
                    at -= 1
                best[at], nearest[j, at] = value, i
                farthest = best[k - 1]


class CutLabels:
    """Labels of rows by the nearest mean of a cut, computed from distances alone.

    The squared distance of a row to the mean of some leaves is the mean of its squared distances to
    the leaves, minus the variance of the leaves: half of the mean over all pairs of leaves. Sums of
    distances are added when groups merge, so every cut is cheap, for any number of features.
    """

    def __init__(
        self, tree: MergeTree, sq_distances: NDArray[np.float32], most_clusters: int, first: int = 0
    ) -> None:
        """Prepare cuts into at most `most_clusters`; leaf l is row `first` + l."""
        self._tree, self._groups = tree, cut_tree(tree, most_clusters)
        n_groups, n_rows = int(self._groups.max()) + 1, sq_distances.shape[1]
        self._sums = np.zeros((n_groups, n_rows), np.float32)
        _add_rows(sq_distances, self._groups, self._sums)
        within = self._sums[:, first : first + tree.n_leaves]
        self._leaf_sums = np.zeros((n_groups, n_groups))
        np.add.at(self._leaf_sums.T, self._groups, within.T.astype(np.float64))
        self._sizes = np.bincount(self._groups).astype(np.float64)

    def at(self, n_clusters: int) -> NDArray[np.int64]:
        """Return the labels (rows,) of the cut into `n_clusters`."""
        groups = np.empty(len(self._sizes), np.int64)
        groups[self._groups] = cut_tree(self._tree, n_clusters)
        sizes = np.bincount(groups, self._sizes)
        sums = np.zeros((len(sizes), self._sums.shape[1]), np.float32)
        _add_rows(self._sums, groups, sums)
        pairs = np.zeros(len(sizes))
        same = groups[:, None] == groups
        np.add.at(pairs, groups, (self._leaf_sums * same).sum(axis=1))
        labels = np.zeros(sums.shape[1], np.int64)
        _least_mean(sums, 1.0 / sizes, 0.5 * pairs / sizes**2, labels)
        return labels


@jit()
def _add_rows(values, groups, sums):  # type: ignore[no-untyped-def]
    for row in range(len(groups)):
        total = sums[groups[row]]
        for i in range(len(total)):
            total[i] += values[row, i]


@jit()
def _least_mean(sums, weights, variances, labels):  # type: ignore[no-untyped-def]
    """Label each row with the group of the least sum * weight - variance; ties: the first one."""
    n_groups, n_rows = sums.shape
    least = np.full(n_rows, np.inf)
    for k in range(n_groups):
        for i in range(n_rows):
            value = sums[k, i] * weights[k] - variances[k]
            if value < least[i]:
                least[i], labels[i] = value, k


class NullComparison:
    """Part of a sample, and rows of the null: a normal distribution with its covariance.

    `part` are the first rows of the sample. `sq_distances` are squared distances of the first rows
    to all rows of the sample; they are computed if they are omitted or too few.
    """

    def __init__(self, part: Points, sq_distances: NDArray[np.float32] | None = None) -> None:
        n_rows = len(part.mapped)
        self._n = n = max(n_rows // 4, min(n_rows // 2, _PART_CANDIDATES))
        self._rows = part.mapped
        if sq_distances is None or len(sq_distances) < 2 * n:
            sq_distances = _sq_distances(part.mapped, 2 * n)
        self._sq_distances = sq_distances[: 2 * n, :n_rows]
        self.part = SampleTree(part.mapped[:n], self._sq_distances[:n])
        # In a small sample, the modularity of the null depends on the draw.
        n_draws = min(max(_SMALL_ROWS // n_rows, 1), _MOST_DRAWS)
        self.null = null_rows(part)
        others = (null_rows(part, draw) for draw in range(1, n_draws))
        self._trees = [SampleTree(x[:n], _sq_distances(x, n)) for x in (self.null, *others)]

    def gap(self, n_clusters: int) -> float:
        """Return the modularity of the part minus that of the null, at the plain resolution 1.

        The sampling error, which is large for few rows, is also subtracted.
        """
        m = min(n_clusters, self.part.most_clusters)
        null = np.mean([tree.cut(m).modularity(1.0) for tree in self._trees])
        error = _GAP_ERROR / np.sqrt(len(self._rows))
        return self.part.cut(m).modularity(1.0) - float(null + error)

    def agreement(self, n_clusters: int) -> float:
        """Return the adjusted Rand index of the labels from two disjoint sets of candidates."""
        m, other = min(n_clusters, self.part.most_clusters), slice(self._n, 2 * self._n)
        tree = tree_of_distances(self._rows[other], self._sq_distances[other, other])
        labels = CutLabels(tree, self._sq_distances[other], m, self._n).at(m)
        return scores(contingency(self.part.labels(m), labels)).ari


def null_rows(part: Points, draw: int = 0) -> NDArray[np.float32]:
    """Draw rows (rows, p) of a normal distribution with the covariance of a part of a sample.

    A random combination of r centered rows has their covariance; no matrix is decomposed. If the
    rows have unit length, the rows of the null are also scaled to unit length.
    """
    mean = part.mapped[:NULL_RANK].mean(axis=0)
    base = part.mapped[:NULL_RANK] - mean
    rng = np.random.default_rng([_NULL_SEED, draw])
    weights = rng.standard_normal((len(part.mapped), len(base)), dtype=np.float32)
    rows = np.asarray(weights @ base / np.float32(np.sqrt(len(base))))
    if part.unit_length:
        origin = part.shift.astype(np.float32)
        rows += mean + origin
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-30))
        rows -= origin
    return rows


def nearest_quantile(
    rows: NDArray[np.float32], points: NDArray[np.float32], quantile: float = 0.5
) -> float:
    """Return a quantile of the distances of rows (rows, p) to their nearest points (k, p)."""
    half_norms = 0.5 * np.einsum("ij,ij->i", points, points)
    least = (half_norms - rows @ points.T).min(axis=1)
    sq_distances = np.maximum(np.einsum("ij,ij->i", rows, rows) + 2.0 * least, 0.0)
    return float(np.sqrt(np.quantile(sq_distances.astype(np.float64), quantile)))


def _sq_distances(rows: NDArray[np.float32], n: int) -> NDArray[np.float32]:
    """Return the squared distances (n, rows) of the first n rows to all rows."""
    sq_norms = np.einsum("ij,ij->i", rows, rows)
    products = rows[:n] @ rows.T
    products *= -2.0
    products += sq_norms
    products += sq_norms[:n, None]
    return products


def choose_levels(tree: SampleTree, comparison: NullComparison) -> Levels:
    """Choose the numbers of clusters of a sample, and measure how clear the clusters are.

    Without structure, there are no levels, and the default is what would be the coarse level.
    """
    search = tree.search()
    trials, best = search.trials, search.best
    coarse, fine = (best_cut(trials, g).clusters for g in (_COARSE, _FINE))
    gap = comparison.gap(best.clusters)
    structure: Structure = "clear" if gap >= CLEAR_GAP else "weak" if gap >= WEAK_GAP else "none"
    if structure == "none":
        best = best_cut(trials, _COARSE)
        coarse = fine = best.clusters
    m = best.clusters
    low, high = (m, m) if structure == "none" else _interval(trials, m)
    return Levels(
        clusters=m,
        low=low,
        high=high,
        coarse=coarse if coarse * _LEVEL_RATIO <= m else None,
        fine=fine if fine >= _LEVEL_RATIO * m else None,
        same=best.same,
        gap=gap,
        structure=structure,
        agreement=comparison.agreement(m),
        trials=trials,
    )


def _interval(trials: Sequence[CutTrial], m: int) -> tuple[int, int]:
    """Return the smallest and the largest number of clusters that suit the sample about as well.

    These are the best numbers at slightly different resolutions, and the numbers around the default
    with almost the same modularity.
    """
    numbers = [trial.clusters for trial in trials]
    at = low = high = numbers.index(m)
    least = trials[at].modularity() - _AS_GOOD
    while low > 0 and trials[low - 1].modularity() >= least:
        low -= 1
    while high + 1 < len(trials) and trials[high + 1].modularity() >= least:
        high += 1
    other = [best_cut(trials, g).clusters for g in (_LOW, _HIGH)]
    return min(numbers[low], *other), max(numbers[high], *other)
