"""Run Algorithm 1 in memory on draws of the paper's mixture, and count exact results.

An experiment has thousands of small runs. One loss computation per draw serves all bandwidths, and
a bandwidth is dropped as soon as it has too many failures to succeed.
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
ALLOWED = 0.01  # share of runs that may fail in the paper's definition of success


@dataclass(frozen=True)
class Setting:
    """A mixture and a number of candidates: the paper's N, p, m and n."""

    n_rows: int
    n_features: int
    n_clusters: int
    n_candidates: int
    outliers: float = 0.0

    def draw(self, seed: int) -> synthesis.SynthBlock:
        """Return N rows of the mixture and their labels."""
        spec = synthesis.MixtureSpec(self.n_features, self.n_clusters, self.outliers, seed=seed)
        return synthesis.synth_block(spec, synthesis.true_mixture(spec), 0, self.n_rows)


@dataclass(frozen=True)
class TrialCell:
    """A cell of the experiment: `runs` draws of one setting, each at all bandwidths (ascending)."""

    setting: Setting
    rhos: tuple[float, ...]
    runs: int

    @property
    def n_rows(self) -> int:
        """Number of rows that are drawn unless all bandwidths fail early."""
        return self.runs * self.setting.n_rows


@dataclass(frozen=True)
class Tally:
    """Counts for one bandwidth: all runs, and the runs with at least one wrong label."""

    runs: int
    failures: int


def allowed_failures(runs: int) -> int:
    """Return the number of runs that may fail: 1 % rounded down, so 0 if `runs` < 100."""
    return int(ALLOWED * runs)


def is_success(tally: Tally, runs: int) -> bool:
    """Return whether all `runs` were made and at most 1 % of them failed."""
    return tally.runs == runs and tally.failures <= allowed_failures(runs)


def is_promised(setting: Setting) -> bool:
    """Return whether N, p and n satisfy Corollary 7; its bounds on rho are not checked."""
    need = required_sizes(setting.n_clusters, n_rows=setting.n_rows)
    return (
        setting.n_candidates >= need.n_candidates
        and setting.n_rows >= need.n_rows
        and setting.n_features >= need.n_features
    )


def count_failures(cell: TrialCell) -> list[Tally]:
    """Return a tally for each bandwidth; the result depends on the cell only."""
    runs, failures = np.zeros(len(cell.rhos), int), np.zeros(len(cell.rhos), int)
    for number in range(cell.runs):
        active = np.flatnonzero(failures <= allowed_failures(cell.runs))
        if len(active) == 0:
            break
        # The seed does not depend on the bandwidths: all of them get the same draws.
        seed = seed_for(asdict(cell.setting), number)
        exact = exact_at(cell.setting, seed, [cell.rhos[i] for i in active])
        runs[active] += 1
        failures[active] += ~exact
    return [Tally(int(n), int(k)) for n, k in zip(runs, failures, strict=True)]


def exact_at(setting: Setting, seed: int, rhos: Sequence[float]) -> NDArray[np.bool_]:
    """Return for each of the ascending bandwidths whether all rows of a draw are labelled right."""
    drawn = setting.draw(seed)
    search = Search(drawn.features, setting.n_candidates, rhos, seed)
    classes = len(np.unique(drawn.labels[drawn.labels != OUTLIER]))
    return np.array([_is_exact(search, k, drawn.labels, classes) for k in range(len(rhos))])


def _is_exact(search: Search, k: int, truth: NDArray[np.int32], n_classes: int) -> bool:
    centers = search.centers(k)
    # A wrong number of clusters cannot be exact, so labelling is not necessary.
    if len(centers) != n_classes:
        return False
    labels = search.labels(k, centers)
    return scores(contingency(truth, labels)).accuracy == 1.0


class Search:
    """Algorithm 1 on rows (N, p): computes the losses of random candidates for all bandwidths.

    The bandwidths are ascending. `centers` and `labels` return the result for one of them.
    """

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
        extracted = extract_centers(
            self._candidates, self._numbers, self._losses[k], self._rhos[k], F, None, 1
        )
        return np.asarray(self._numbers[extracted.picks])

    def labels(self, k: int, centers: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the label of each row (N,) at the k-th bandwidth; `centers` are row numbers."""
        points = prepare_points(self._rows[centers], self._affine)
        return assign_rows(self._rows, points, self._sq_radii[k]).labels


def scrlm_labels(rows: NDArray[np.float32], rho: float, seed: int) -> NDArray[Any]:
    """Return the labels of SCRLM with T = N and all rows as candidates."""
    search = Search(rows, len(rows), (rho,), seed)
    return search.labels(0, search.centers())
