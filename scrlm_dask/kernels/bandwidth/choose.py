"""The rule that chooses a bandwidth from trials.

1. The stable stretch: the widest range of consecutive trials that find the same number of clusters
   and have almost no rows at the boundary of the radius. In this range, the clusters do not depend
   on rho. A range with a single cluster counts only if no range has several clusters. If clusters
   nearly touch, there may be no stretch. Then the dip: the trial whose boundary has far fewer rows
   than the boundaries of trials at smaller and at larger rho.
2. Otherwise, if a number of clusters is requested, the trial whose centers, merged to this number,
   have the least cost on held-out rows. If merging is requested, rule 1 is skipped.
3. Otherwise modularity chooses the number of clusters (see `modularity`), and no bandwidth. If
   that is not possible, because there are few rows or because the extraction is given, the number
   of clusters that persists over the widest range of rho decides, or, if no number persists, the
   trial with the emptiest boundary. The user is warned that there is no clear scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from scrlm_dask.kernels.bandwidth.ladder import BandwidthTrial

Basis = Literal["stretch", "dip", "held-out", "modularity", "persistent", "given"]

MOST_BOUNDARY_SHARE = 0.02  # rows at the boundary per row inside; 0.5 or more if there is no scale
_LEAST_COVERAGE = 0.05  # share of rows in clusters; a few duplicated rows are not clusters
_LARGE_COVERAGE, _LEAST_CLUSTER_ROWS = 0.3, 3.0  # one of the two is required
_LEAST_RATIO = 1.14  # largest rho of a stretch / smallest rho: three trials, 7 % apart
# Largest boundary share of a dip, and least ratio of the shares around the dip to its own share.
_MOST_DIP, _LEAST_DEPTH = 0.25, 4.0
_DIP_COVERAGE = 0.3
_DIP_EXCESS = 1.25  # clusters found per requested cluster: a dip also counts pairs of outliers
_HALF = 0.5


@dataclass(frozen=True)
class Choice:
    """The chosen bandwidth, the interval of equally good bandwidths, and the reason for the choice.

    Attributes
    ----------
    rho : float
        The bandwidth.
    low, high : float
        Interval of bandwidths that are about equally good.
    clusters : int
        Clusters found on the sample.
    basis : str
        Rule that decided: "stretch", "dip", "held-out", "modularity", "persistent" or "given".
    why : str
        Explanation for the user.
    """

    rho: float
    low: float
    high: float
    clusters: int
    basis: Basis
    why: str

    @property
    def clear(self) -> bool:
        """True if the data shows a clear scale."""
        return self.basis in ("stretch", "dip")


def choose(trials: Sequence[BandwidthTrial], n_clusters: int | None, merge: bool = False) -> Choice:
    """Choose a bandwidth from trials, which are sorted by ascending rho.

    `n_clusters` is the maximum number of clusters; with `merge` it is the requested number.
    """
    stretch = _widest(trials, _is_clean)
    fits = stretch is not None and (n_clusters is None or stretch[0].clusters <= n_clusters)
    if stretch is not None and fits and not merge:
        return _choice(stretch, "stretch", _describe_stretch(stretch))
    beyond = _beyond_peak(trials)
    dip = _dip(beyond, n_clusters) if stretch is None and not merge else None
    if dip is not None:
        return dip
    if n_clusters is not None:
        judged = [trial for trial in trials if trial.held_out is not None]
        if judged:
            return _best_held_out(judged, n_clusters, stretch)
    return _most_persistent(trials, beyond)


def _most_persistent(trials: Sequence[BandwidthTrial], beyond: Sequence[BandwidthTrial]) -> Choice:
    """Choose by rule 3 among `beyond`, the trials from `_beyond_peak`.

    `trials` are all trials; they only appear in the explanation.
    """
    lasting = _widest(beyond, _is_whole) or _widest(beyond, _finds_any)
    if lasting is None:
        raise ValueError("no clusters were found with any of the trial bandwidths")
    if len(lasting) == 1:
        eligible = [r for r in beyond if _is_whole(r)] or [r for r in beyond if _finds_any(r)]
        lasting = [min(eligible, key=lambda trial: trial.boundary_share)]
    return _choice(lasting, "persistent", _describe_persistent(lasting, trials))


def clear_scale(trials: Sequence[BandwidthTrial]) -> Choice | None:
    """Return the choice of rule 1, for any number of clusters; None without a stretch or a dip."""
    stretch = _widest(trials, _is_clean)
    if stretch is not None:
        return _choice(stretch, "stretch", _describe_stretch(stretch))
    return _dip(_beyond_peak(trials), None)


def _beyond_peak(trials: Sequence[BandwidthTrial]) -> Sequence[BandwidthTrial]:
    """Return the trial with the most clusters and all trials with larger rho.

    At smaller rho, the number of clusters grows only because more rows have neighbors.
    """
    return trials[max(range(len(trials)), key=lambda r: trials[r].clusters) :]


def _dip(trials: Sequence[BandwidthTrial], n_clusters: int | None) -> Choice | None:
    """Choose the trial with the least boundary share, the dip.

    Returns None unless far larger boundary shares occur both at smaller and at larger rho.
    """
    eligible = [r for r in range(1, len(trials) - 1) if trials[r].clusters > 1]
    eligible = [
        r
        for r in eligible
        if trials[r].coverage >= _DIP_COVERAGE and trials[r].boundary_share <= _MOST_DIP
    ]
    if not eligible:
        return None
    best = min(eligible, key=lambda r: trials[r].boundary_share)
    below, above = (
        max(r.boundary_share for r in side) for side in (trials[:best], trials[best + 1 :])
    )
    trial = trials[best]
    deep = min(below, above) >= _LEAST_DEPTH * max(trial.boundary_share, MOST_BOUNDARY_SHARE)
    if not deep or (n_clusters is not None and trial.clusters > _DIP_EXCESS * n_clusters):
        return None
    low, high = _around(best, [trial.boundary_share for trial in trials], _MOST_DIP)
    clusters = trial.clusters if n_clusters is None else min(trial.clusters, n_clusters)
    why = (
        f"{trial.clusters} cluster(s), with {trial.boundary_share:.2g} rows at the boundary of the "
        f"radius per row inside, compared with up to {below:.2g} below and {above:.2g} above"
    )
    return Choice(trial.rho, trials[low].rho, trials[high].rho, clusters, "dip", why)


def _is_clean(trial: BandwidthTrial) -> bool:
    # Single pairs of rows that happen to be close are not clusters either.
    filled = trial.coverage >= _LARGE_COVERAGE or trial.cluster_rows >= _LEAST_CLUSTER_ROWS
    covers = trial.coverage >= _LEAST_COVERAGE and filled
    return trial.boundary_share <= MOST_BOUNDARY_SHARE and covers


def _is_whole(trial: BandwidthTrial) -> bool:
    return trial.clusters > 0 and trial.coverage >= _HALF


def _finds_any(trial: BandwidthTrial) -> bool:
    return trial.clusters > 0


def _widest(
    trials: Sequence[BandwidthTrial], good: Callable[[BandwidthTrial], bool]
) -> list[BandwidthTrial] | None:
    """Return the widest range of consecutive good trials that find the same number of clusters.

    The width is the largest rho of the range divided by the smallest; ties go to larger rho. If
    `good` is `_is_clean`, narrow ranges are ignored, and a range with a single cluster is returned
    only if no range has several clusters. Returns None if there is no range.
    """
    runs = list(_runs(trials, good))
    if good is _is_clean:
        runs = [run for run in runs if run[-1].rho >= _LEAST_RATIO * run[0].rho]
        # A single cluster that covers all rows is not informative: any data has it at a large rho.
        alone = [run for run in runs if run[0].clusters == 1 and run[0].coverage < 1.0]
        runs = [run for run in runs if run[0].clusters > 1] or alone
    return max(reversed(runs), key=lambda run: run[-1].rho / run[0].rho, default=None)


def _runs(
    trials: Sequence[BandwidthTrial], good: Callable[[BandwidthTrial], bool]
) -> Iterator[list[BandwidthTrial]]:
    run: list[BandwidthTrial] = []
    for trial in trials:
        if run and not (good(trial) and trial.clusters == run[0].clusters):
            yield run
            run = []
        if good(trial):
            run = [*run, trial]
    if run:
        yield run


def _choice(run: list[BandwidthTrial], basis: Basis, why: str) -> Choice:
    low, high = run[0].rho, run[-1].rho
    return Choice(math.sqrt(low * high), low, high, run[0].clusters, basis, why)


def _best_held_out(
    judged: Sequence[BandwidthTrial], n_clusters: int, stretch: list[BandwidthTrial] | None
) -> Choice:
    values = [trial.held_out or 0.0 for trial in judged]
    best = min(range(len(judged)), key=values.__getitem__)
    low, high = _around(best, values, 1.01 * values[best])  # at most 1 % above the best
    merged = judged[best].merged or n_clusters
    few = f", fewer than the {n_clusters} requested" if merged < n_clusters else ""
    why = (
        f"{_why_not_stretch(stretch, n_clusters)}; of {len(judged)} values of rho, this one's "
        f"centers, merged to {merged}{few}, are nearest to held-out rows (mean squared distance "
        f"{values[best]:.5g})"
    )
    trials = judged[best], judged[low], judged[high]
    return Choice(trials[0].rho, trials[1].rho, trials[2].rho, merged, "held-out", why)


def _around(best: int, values: Sequence[float], most: float) -> tuple[int, int]:
    """Return the first and last position of the interval around `best` with values up to `most`."""
    low = high = best
    while low > 0 and values[low - 1] <= most:
        low -= 1
    while high + 1 < len(values) and values[high + 1] <= most:
        high += 1
    return low, high


def _why_not_stretch(stretch: list[BandwidthTrial] | None, n_clusters: int) -> str:
    """Return the reason why the stretch (rule 1) does not decide, for the user."""
    if stretch is None:
        return "no range of rho has an empty boundary of the radius"
    clear = f"the data has {stretch[0].clusters} clear clusters"
    if stretch[0].clusters > n_clusters:
        return f"{clear}, more than the {n_clusters} requested"
    return f"{clear}, but merging to {n_clusters} was requested"


def _describe_stretch(run: list[BandwidthTrial]) -> str:
    boundary = max(trial.boundary_share for trial in run)
    return (
        f"{run[0].clusters} cluster(s) for every rho from {run[0].rho:.3g} to {run[-1].rho:.3g}, "
        f"with at most {boundary:.2g} rows at the boundary of the radius per row inside"
    )


def _describe_persistent(run: list[BandwidthTrial], trials: Sequence[BandwidthTrial]) -> str:
    counts = [trial.clusters for trial in trials]
    boundary = max(trial.boundary_share for trial in run)
    if len(run) == 1:
        rule = "the boundary of the radius has the fewest rows here"
    else:
        rule = f"no other number of clusters occurs over a wider range than {run[0].clusters}"
    return (
        f"the data shows no clear scale, so this value is arbitrary: {rule} ({boundary:.2g} per "
        f"row inside, a clear scale has at most {MOST_BOUNDARY_SHARE:g}), but between rho "
        f"{trials[0].rho:.3g} and {trials[-1].rho:.3g} the sample has {min(counts)} to "
        f"{max(counts)} clusters; set the number of clusters (--clusters, n_clusters)"
    )
