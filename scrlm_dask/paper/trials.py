"""Algorithm 1 on fresh draws of the paper's mixture, in memory, and how often it is exactly right.

Thousands of small runs: a draw is judged at a whole ladder of bandwidths from one loss, and a
bandwidth whose failures rule out success already is not tried any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.kernels import OUTLIER
from scrlm_dask.kernels.distances.assignment import assign_rows
from scrlm_dask.kernels.distances.points import Points, prepare_points, squared_radius
from scrlm_dask.kernels.distances.preprocessing import AffineMap, fit_map
from scrlm_dask.kernels.evaluation.metrics import contingency, scores
from scrlm_dask.kernels.randomness import synthesis
from scrlm_dask.kernels.randomness.sampling import Purpose, sample_rows
from scrlm_dask.kernels.scrlm.extraction import extract_centers
from scrlm_dask.kernels.scrlm.loss import Losses, loss_part, losses_of
from scrlm_dask.kernels.scrlm.theory import required_sizes
from scrlm_dask.paper.framework import seed_for

F = 2.5  # the paper's depth of the loss
ALLOWED = 0.01  # share of runs that may fail where the paper speaks of success


@dataclass(frozen=True)
class Setting:
    """A mixture and how many of its rows are candidates: the paper's N, p, m and n."""

    n_rows: int
    n_features: int
    n_clusters: int
    n_candidates: int
    outliers: float = 0.0

    def draw(self, seed: int) -> synthesis.SynthBlock:
        spec = synthesis.MixtureSpec(self.n_features, self.n_clusters, self.outliers, seed=seed)
        return synthesis.synth_block(spec, synthesis.true_mixture(spec), 0, self.n_rows)


@dataclass(frozen=True)
class TrialCell:
    """A number of runs of a setting, at each of some rising bandwidths."""

    setting: Setting
    rhos: tuple[float, ...]
    runs: int

    @property
    def n_rows(self) -> int:
        """Return the number of rows that are drawn if no failure ends it early."""
        return self.runs * self.setting.n_rows


@dataclass(frozen=True)
class Tally:
    """Runs at one bandwidth, and those in which not every row was labelled right."""

    runs: int
    failures: int


def allowed_failures(runs: int) -> int:
    """Return how many runs may fail: 1 % of them, and none of fewer than 100."""
    return int(ALLOWED * runs)


def is_success(tally: Tally, runs: int) -> bool:
    return tally.runs == runs and tally.failures <= allowed_failures(runs)


def is_promised(setting: Setting) -> bool:
    """Return whether N, p and n satisfy all of Corollary 7; rho has bounds of its own."""
    need = required_sizes(setting.n_clusters, n_rows=setting.n_rows)
    return (
        setting.n_candidates >= need.n_candidates
        and setting.n_rows >= need.n_rows
        and setting.n_features >= need.n_features
    )


def count_failures(cell: TrialCell) -> list[Tally]:
    """Return a tally for each bandwidth. The cell alone decides the draws: any worker may count."""
    runs, failures = np.zeros(len(cell.rhos), int), np.zeros(len(cell.rhos), int)
    for number in range(cell.runs):
        left = np.flatnonzero(failures <= allowed_failures(cell.runs))
        if len(left) == 0:
            break
        # bandwidths have no part in it: all of them see the same draws
        seed = seed_for(asdict(cell.setting), number)
        exact = exact_at(cell.setting, seed, [cell.rhos[i] for i in left])
        runs[left] += 1
        failures[left] += ~exact
    return [Tally(int(n), int(k)) for n, k in zip(runs, failures, strict=True)]


def exact_at(setting: Setting, seed: int, rhos: Sequence[float]) -> NDArray[np.bool_]:
    """Return for which of the rising bandwidths every row of a draw gets its true label."""
    drawn = setting.draw(seed)
    search = Search(drawn.features, setting.n_candidates, rhos, seed)
    classes = len(np.unique(drawn.labels[drawn.labels != OUTLIER]))
    return np.array([_is_exact(search, k, drawn.labels, classes) for k in range(len(rhos))])


def _is_exact(search: Search, k: int, truth: NDArray[np.int32], n_classes: int) -> bool:
    centers = search.centers(k)
    # another number of clusters cannot be right, which saves labelling
    if len(centers) != n_classes:
        return False
    labels = search.labels(k, centers)
    return scores(contingency(truth, labels)).accuracy == 1.0


class Search:
    """The losses of random candidates among rows (N, p) for rising bandwidths, and what follows."""

    def __init__(
        self, rows: NDArray[np.float32], n_candidates: int, rhos: Sequence[float], seed: int
    ) -> None:
        self._rows, self._rhos = rows, rhos
        self._numbers = sample_rows(seed, Purpose.CANDIDATES, len(rows), n_candidates)
        self._affine: AffineMap = fit_map("none", rows.shape[1], None)
        self._candidates: Points = prepare_points(rows[self._numbers], self._affine)
        self._sq_radii = [squared_radius(rho, F, rows.shape[1]) for rho in rhos]
        everywhere = np.arange(len(rows), dtype=np.int64)
        part = loss_part(rows, everywhere, self._candidates, self._numbers, self._sq_radii)
        self._losses: tuple[Losses, ...] = losses_of(part, self._sq_radii, F)

    def centers(self, k: int = 0) -> NDArray[np.int64]:
        """Return the row numbers of all centers at the k-th bandwidth (T = N)."""
        found = extract_centers(
            self._candidates, self._numbers, self._losses[k], self._rhos[k], F, None, 1
        )
        return np.asarray(self._numbers[found.picks])

    def labels(self, k: int, centers: NDArray[np.int64]) -> NDArray[np.int32]:
        points = prepare_points(self._rows[centers], self._affine)
        return assign_rows(self._rows, points, self._sq_radii[k]).labels


def scrlm_labels(rows: NDArray[np.float32], rho: float, seed: int) -> NDArray[Any]:
    """Return the labels of SCRLM with T = N: every row may be a cluster, so all are candidates."""
    search = Search(rows, len(rows), (rho,), seed)
    return search.labels(0, search.centers())
