"""Search on a sample: choose rho, the number of clusters or the preprocessing; find centers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError
from scrlm_dask.kernels.bandwidth import ladder
from scrlm_dask.kernels.bandwidth.choose import Choice, choose, clear_scale
from scrlm_dask.kernels.bandwidth.modularity import (
    LEAST_ROWS,
    PART_ROWS,
    Levels,
    NullComparison,
    SampleTree,
    choose_levels,
    nearest_quantile,
    null_rows,
)
from scrlm_dask.kernels.bandwidth.representation import (
    LEAST_DIRECTIONS,
    RepresentationTrial,
    best_representation,
    has_unit_rows,
    judge_maps,
)
from scrlm_dask.kernels.distances.nearest_center import (
    mean_sq_distance,
    measure_rows,
    nearest_centers,
)
from scrlm_dask.kernels.distances.points import (
    LARGEST_SQ_NORM,
    LEAST_FLOAT,
    UNIT_ROUNDOFF,
    Points,
    prepare_points,
    squared_radius,
)
from scrlm_dask.kernels.distances.preprocessing import AffineMap, FloatArray
from scrlm_dask.kernels.evaluation.metrics import contingency, scores
from scrlm_dask.kernels.kmeans.lloyd import lloyd_part, move_centers
from scrlm_dask.kernels.scrlm.extraction import Extraction, extract_residual
from scrlm_dask.kernels.scrlm.loss import Losses
from scrlm_dask.kernels.scrlm.mixture import model_sigmas
from scrlm_dask.kernels.scrlm.theory import MIN_WEIGHT, required_sizes
from scrlm_dask.kernels.scrlm.ward import (
    MergeTree,
    cut_tree,
    group_means,
    ward_tree,
)
from scrlm_dask.kernels.statistics.histograms import Histogram, histogram_of

SampleExtraction = Literal["residual", "merge"]

LEAST_CANDIDATES, MOST_CANDIDATES = 2048, 4096
LEAST_JUDGED, MOST_JUDGED = 8192, 20_480
MOST_HELD_OUT = 4096
LEAVES_A_CLUSTER = 10  # centers extracted per requested cluster, before merging
_MERGED_TRIALS = 8  # trial bandwidths whose merged centers are compared on held-out rows
_REFINE_STEPS = 3
_CHECKED_ROWS = 8192
_MERGED_FROM = 0.3  # least coverage of a trial bandwidth whose centers are merged
_HISTOGRAM_BINS, _HISTOGRAM_PAIRS = 80, 1_000_000
PERTURBATION = 0.1  # relative change of rho, to measure how stable the clusters are


@dataclass(frozen=True)
class ScanSizes:
    """Numbers of rows in a sample, by their use.

    Losses are summed over the judged rows; the first judged rows are also the candidates. The
    held-out rows are only used to compare results.
    """

    candidates: int
    judged: int
    held_out: int

    @property
    def rows(self) -> int:
        """Number of all rows in the sample."""
        return self.judged + self.held_out


@dataclass(frozen=True)
class SampleCenters:
    """Centers found on a sample."""

    centers: NDArray[np.float64]  # (m, p) in input units
    positions: NDArray[np.int64]  # (m,) of the original candidates in the sample
    losses: NDArray[np.float64]  # (m,)
    neighbors: NDArray[np.int64]  # (m,)
    tree: MergeTree | None = None
    fine: NDArray[np.float64] | None = None  # (f, p) centers of the fine level, in input units


@dataclass(frozen=True)
class PerturbedRho:
    """Clusters at a rho that differs slightly from the chosen rho.

    Attributes
    ----------
    rho : float
        The bandwidth.
    clusters : int
        Number of clusters.
    ari : float
        Adjusted Rand index between the labels at this rho and at the chosen rho.
    """

    rho: float
    clusters: int
    ari: float


@dataclass(frozen=True)
class NullRadius:
    """A radius for outliers of merged clusters, which extend beyond the radius of rho.

    Half of the rows of the null, a normal distribution with the covariance of the sample, are
    farther than this from every center.

    Attributes
    ----------
    radius : float
        The radius, after preprocessing.
    outside : float
        Share of the rows of the sample that are farther than this from every center.
    """

    radius: float
    outside: float


@dataclass(frozen=True)
class SampleScan:
    """The preprocessing map, bandwidth and centers chosen on a sample."""

    affine: AffineMap
    maps: tuple[RepresentationTrial, ...]  # empty unless several maps were compared
    trials: tuple[ladder.BandwidthTrial, ...]
    choice: Choice
    levels: Levels | None  # None unless the number of clusters was chosen by modularity
    extraction: SampleExtraction
    found: SampleCenters
    coverage: float
    null: NullRadius | None  # None unless centers were merged
    perturbed: tuple[PerturbedRho, ...]
    sigma_max: float  # largest sigma of the clusters found, in model units
    n_candidates: int
    needed_candidates: int  # number that the theory requires for the clusters found
    first_candidates: int  # number of candidates in the first scan
    sizes: ScanSizes
    distances: Histogram = field(repr=False)  # of distances between rows of the sample


def scan_sizes(n_rows: int, n_clusters: int | None) -> ScanSizes:
    """Return the sizes that the theory requires for `n_clusters`, within memory and time bounds.

    Rows are held out only if more rows are available than are judged.
    """
    required = required_sizes(n_clusters or 1)
    judged = min(n_rows, MOST_JUDGED, max(LEAST_JUDGED, required.n_rows))
    candidates = min(judged, MOST_CANDIDATES, max(LEAST_CANDIDATES, required.n_candidates))
    return ScanSizes(candidates, judged, min(n_rows - judged, MOST_HELD_OUT))


def scan_sample(
    rows: FloatArray,
    maps: Sequence[AffineMap],
    sizes: ScanSizes,
    *,
    rho: float | None,
    F: float,
    n_clusters: int | None,
    min_neighbors: int,
    extraction: SampleExtraction | None,
    by_modularity: bool = True,
    keep_candidates: bool = False,
) -> SampleScan | None:
    """Choose rho and find centers on a sample: rows (judged + held out, p), in random order.

    With a given `rho` the scan only extracts centers. Without an `extraction`, centers are merged
    if there is no clear scale; otherwise they come from residual extraction. If there is neither a
    clear scale nor `n_clusters`, modularity decides, unless `by_modularity` is False. If there is
    no clear scale with the first of the preprocessing `maps`, the best of all maps is used. If the
    clusters found require more candidates, the scan is repeated with more, unless
    `keep_candidates`. Returns None if no trial bandwidth finds a cluster, for example because no
    two rows differ.
    """
    first, settings = sizes.candidates, _Settings(F, n_clusters, min_neighbors, by_modularity)
    maps = _maps_to_try(rows, maps)
    sample = _Sample(rows, maps[0], sizes, settings)
    judged: list[RepresentationTrial] = []
    if rho is None and len(maps) > 1 and sample.lacks_scale():
        judged = judge_maps(rows[: sizes.judged], maps, n_clusters)
        best = best_representation(judged)
        if best != 0:
            del sample  # free its distances first
            sample = _Sample(rows, maps[best], sizes, settings)
    if rho is None and not keep_candidates and sample.wants_all_rows(extraction):
        sizes, affine = replace(sizes, candidates=sizes.judged), sample.affine
        del sample
        sample = _Sample(rows, affine, sizes, settings)
    while True:
        scan = sample.scan(rho, extraction, first)
        if scan is None:
            sample.check_underflow()
            return None
        scan = replace(scan, maps=tuple(judged))
        candidates = min(MOST_CANDIDATES, sizes.judged, _required_candidates(scan, n_clusters))
        if keep_candidates or candidates <= sizes.candidates:
            return scan
        sizes = replace(sizes, candidates=candidates)
        affine = scan.affine
        del sample, scan  # free the distances before the next sample computes its own
        sample = _Sample(rows, affine, sizes, settings)


def _maps_to_try(rows: FloatArray, maps: Sequence[AffineMap]) -> Sequence[AffineMap]:
    """Return the maps; for rows of unit length, as most encoders write, only the map "l2".

    With few features, "l2" is not tried. Maps without scaling are not tried for rows whose squared
    distances would overflow.
    """
    if len(maps) == 1:
        return maps
    if np.square(rows[:_CHECKED_ROWS], dtype=np.float64).sum(axis=1).max() >= LARGEST_SQ_NORM:
        maps = [affine for affine in maps if affine.kind != "center"]
    directions = [affine for affine in maps if affine.unit_length]
    if not directions:
        return maps
    if rows.shape[1] < LEAST_DIRECTIONS:
        return [affine for affine in maps if not affine.unit_length]
    return directions if has_unit_rows(rows) else maps


def _required_candidates(scan: SampleScan, n_clusters: int | None) -> int:
    """Return the number of candidates that the clusters found require.

    The theory does not cover merging: then the maximum if clusters are missing, otherwise 0.
    """
    if scan.extraction == "residual":
        return scan.needed_candidates
    if scan.levels is not None:
        return 0
    few = n_clusters is not None and len(scan.found.centers) < n_clusters
    return MOST_CANDIDATES if few else 0


@dataclass(frozen=True)
class _Settings:
    F: float
    n_clusters: int | None
    min_neighbors: int
    by_modularity: bool


class _Sample:
    """A sample with its distances, on which trial bandwidths and centers are computed."""

    def __init__(
        self, rows: FloatArray, affine: AffineMap, sizes: ScanSizes, settings: _Settings
    ) -> None:
        self.affine, self._sizes, self._F = affine, sizes, settings.F
        self._n_clusters, self._min_neighbors = settings.n_clusters, settings.min_neighbors
        self._by_modularity = settings.by_modularity
        self._judged, self._held_out = rows[: sizes.judged], rows[sizes.judged :]
        self._mapped = prepare_points(self._judged, affine)
        self._sq = ladder.pair_sq_distances(self._mapped, sizes.candidates)

    def lacks_scale(self) -> bool:
        """Return whether rows differ, are enough for modularity, and show no clear scale."""
        trials = self._ladder
        enough = len(self._judged) >= LEAST_ROWS and any(trial.clusters for trial in trials)
        return enough and clear_scale(trials) is None

    def scan(
        self, rho: float | None, extraction: SampleExtraction | None, first: int
    ) -> SampleScan | None:
        """Choose a bandwidth, unless `rho` is given, and extract the centers at this bandwidth.

        `first` is the number of candidates in the first scan; it is only recorded.
        """
        levels, limit = None, self._n_clusters
        if rho is not None:
            trials, choice = self._given(rho)
            method = extraction or "residual"
            centers = self._centers(rho, method, limit)
        elif self._chooses_levels(extraction):
            trials, method = self._ladder, "merge"
            levels, centers = self._cut_at_levels()
            choice = self._level_choice(levels, centers)
        else:
            trials = self._trials(extraction)
            if not any(trial.clusters for trial in trials):
                return None
            choice = choose(trials, self._n_clusters, merge=extraction == "merge")
            method = extraction or ("merge" if choice.basis == "held-out" else "residual")
            centers = self._centers(choice.rho, method, choice.clusters)
        labels = self._labels(centers, choice.rho, method)
        inside = float(np.mean(labels >= 0))
        m = max(len(centers.centers), 1)
        perturbs = rho is None and levels is None
        return SampleScan(
            affine=self.affine,
            maps=(),
            trials=tuple(trials),
            choice=choice,
            levels=levels,
            extraction=method,
            found=centers,
            coverage=inside,
            null=self._null_radius(centers) if method == "merge" else None,
            perturbed=self._perturb(choice, method, labels) if perturbs else (),
            sigma_max=self._sigma_max(centers, choice.rho, method),
            n_candidates=self._sizes.candidates,
            needed_candidates=required_sizes(
                m, min_weight=MIN_WEIGHT * max(inside, 1e-3)
            ).n_candidates,
            first_candidates=first,
            sizes=self._sizes,
            distances=self._histogram(),
        )

    def check_underflow(self) -> None:
        """Raise if rows differ, but their squared distances underflow in float32."""
        mapped = self._mapped.mapped
        spread = float(np.abs(mapped).max())
        size = np.abs(self._mapped.raw * self._mapped.inv_norms[:, None] * self.affine.scale).max()
        if UNIT_ROUNDOFF * size < spread < math.sqrt(LEAST_FLOAT):  # less is a rounding error
            raise InputError(
                f"the largest deviation of a feature from its mean is {spread:.3g}, whose square "
                "underflows in float32; multiply all features by a large number, or use "
                "--preprocess scale (preprocess='scale')"
            )

    def wants_all_rows(self, extraction: SampleExtraction | None) -> bool:
        """Return whether all rows of a small sample should be candidates.

        The number of clusters that modularity chooses then does not depend on the candidates.
        """
        few = self._sizes.candidates < self._sizes.judged <= MOST_CANDIDATES
        return few and self._chooses_levels(extraction)

    def _chooses_levels(self, extraction: SampleExtraction | None) -> bool:
        """Return whether modularity chooses the number of clusters."""
        free = self._n_clusters is None and extraction is None and self._by_modularity
        return free and self.lacks_scale()

    def _cut_at_levels(self) -> tuple[Levels, SampleCenters]:
        """Choose numbers of clusters by modularity, and cut the tree of all candidates there."""
        n = self._sizes.candidates
        # With unit length, a mean of rows is the mean of their directions.
        tree = SampleTree(self._judged[:n] * self._mapped.inv_norms[:n, None], self._sq)
        comparison = NullComparison(self._part, self._sq)
        levels = choose_levels(tree, comparison)
        self._null_rows = comparison.null
        centers = self._cut_centers(tree.tree, levels.clusters)
        fine = None if levels.fine is None else self._cut_centers(tree.tree, levels.fine)
        picks = self._central_candidates(cut_tree(tree.tree, levels.clusters))
        sq_radii = np.array([self._radius_of_null(centers) ** 2])
        (losses,) = ladder.trial_losses(self._sq, sq_radii, self._F)
        found = SampleCenters(
            centers, picks, losses.losses[picks], losses.neighbors[picks], fine=fine
        )
        return levels, found

    def _cut_centers(self, tree: MergeTree, n_clusters: int) -> NDArray[np.float64]:
        """Return the centers (k, p) of a cut, in input units, refined on the sample."""
        return self._refine(group_means(tree, cut_tree(tree, n_clusters)))

    def _central_candidates(self, groups: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the candidate (k,) of each group with the least distances to its group."""
        same = groups[:, None] == groups
        off = np.where(same, self._sq[:, : len(groups)], 0.0).sum(axis=1)
        order = np.lexsort((off, groups))
        return order[np.searchsorted(groups[order], np.arange(int(groups.max()) + 1))]

    def _level_choice(self, levels: Levels, centers: SampleCenters) -> Choice:
        """Return the choice of modularity; its rho has the radius of the null."""
        rho = self._rho(self._radius_of_null(centers.centers) ** 2)
        return Choice(rho, rho, rho, levels.clusters, "modularity", levels.describe())

    def _radius_of_null(self, centers: NDArray[np.float64]) -> float:
        """Return the median distance of rows of the null to their nearest centers (k, p)."""
        points = prepare_points(centers, self.affine)
        mapped = (points.raw * points.inv_norms[:, None] - self._mapped.shift) * points.scale
        radius = nearest_quantile(self._null_rows, mapped.astype(np.float32))
        return radius if radius > 0.0 else 1.0  # 0 if most rows are equal

    @cached_property
    def _null_rows(self) -> NDArray[np.float32]:
        return null_rows(self._part)

    @property
    def _part(self) -> Points:
        """The part of the sample that is compared with the null."""
        points = self._mapped
        return replace(
            points,
            raw=points.raw[:PART_ROWS],
            inv_norms=points.inv_norms[:PART_ROWS],
            mapped=points.mapped[:PART_ROWS],
            sq_norms=points.sq_norms[:PART_ROWS],
        )

    def _null_radius(self, centers: SampleCenters) -> NullRadius | None:
        """Return the radius of the null; None if there are no centers."""
        if len(centers.centers) == 0:
            return None
        radius = self._radius_of_null(centers.centers)
        points = self._points(centers)
        test = self._held_out if len(self._held_out) else self._judged
        sq_distances = measure_rows(test, nearest_centers(test, points), points)
        return NullRadius(radius, float(np.mean(sq_distances > radius**2)))

    def _rho(self, sq_radius: float) -> float:
        return math.sqrt(sq_radius / (self._F * self.affine.n_features))

    def _sq_radius(self, rho: float) -> float:
        return squared_radius(rho, self._F, self.affine.n_features)

    def _given(self, rho: float) -> tuple[list[ladder.BandwidthTrial], Choice]:
        (trial,) = self._plain_trials(np.array([self._sq_radius(rho)]))
        return [trial], Choice(rho, rho, rho, trial.clusters, "given", "rho was given")

    @cached_property
    def _ladder(self) -> list[ladder.BandwidthTrial]:
        """Trials at all trial radii, without merged centers."""
        sq_radii = ladder.make_ladder(self._sq)
        return self._plain_trials(sq_radii) if len(sq_radii) else []

    def _trials(self, extraction: SampleExtraction | None) -> list[ladder.BandwidthTrial]:
        trials = self._ladder
        if self._n_clusters is None or not any(trial.clusters for trial in trials):
            return trials
        if extraction is None and choose(trials, self._n_clusters).clear:
            return trials  # a clear scale decides, so no centers are merged
        return self._merge_trials(trials, self._n_clusters)

    def _merge_trials(
        self, trials: list[ladder.BandwidthTrial], n_clusters: int
    ) -> list[ladder.BandwidthTrial]:
        """Return all trials; a few of them also have the held-out cost of their merged centers."""
        eligible = [r for r, trial in enumerate(trials) if trial.coverage >= _MERGED_FROM]
        tried = np.linspace(0, len(eligible) - 1, _MERGED_TRIALS).astype(int) if eligible else ()
        merged = {r: self._merged(trials[r]) for r in {eligible[i] for i in tried}}
        if all(trial.merged != n_clusters for trial in merged.values()):
            # Also merge the trial with most clusters, even if its clusters cover few rows.
            peak = max(range(len(trials)), key=lambda r: trials[r].clusters)
            merged[peak] = self._merged(trials[peak])
        enough = {r: trial for r, trial in merged.items() if trial.merged == n_clusters}
        kept = enough or merged  # trials with too few centers only if no trial has enough
        return [kept.get(r, trial) for r, trial in enumerate(trials)]

    def _plain_trials(self, sq_radii: NDArray[np.float64]) -> list[ladder.BandwidthTrial]:
        """Return a trial per radius, without merged centers."""
        losses = ladder.trial_losses(self._sq, sq_radii, self._F)
        return [self._trial(*pair) for pair in zip(sq_radii.tolist(), losses, strict=True)]

    def _trial(self, sq_radius: float, losses: Losses) -> ladder.BandwidthTrial:
        clusters = ladder.find_clusters(self._sq, losses, sq_radius, self._F, self._min_neighbors)
        low, middle, high = np.quantile(losses.neighbors, (0.1, 0.5, 0.9)).tolist()
        n_inside = int(np.count_nonzero(clusters.labels >= 0))
        return ladder.BandwidthTrial(
            rho=self._rho(sq_radius),
            clusters=len(clusters.picks),
            coverage=n_inside / len(clusters.labels),
            boundary_share=clusters.boundary_share,
            neighbors=(low, middle, high),
            cluster_rows=n_inside / max(len(clusters.picks), 1),
        )

    def _centers(self, rho: float, method: SampleExtraction, limit: int | None) -> SampleCenters:
        """Return centers at the mean of their rows inside the radius.

        With the method "merge", more centers are extracted and then merged.
        """
        n_clusters = self._sizes.candidates if limit is None else limit
        most = LEAVES_A_CLUSTER * n_clusters if method == "merge" else n_clusters
        sq_radius = self._sq_radius(rho)
        extracted = extract_residual(self._sq, sq_radius, self._F, most, self._min_neighbors)
        raw = self._judged[extracted.picks].astype(np.float64)
        if len(raw) == 0:
            return SampleCenters(raw, extracted.picks, extracted.losses, extracted.neighbors)
        step = lloyd_part(self._judged, 0, prepare_points(raw, self.affine), sq_radius)
        moved = move_centers(raw, step.part, self.affine.unit_length, reseed=False).centers
        if method == "residual":
            return SampleCenters(moved, extracted.picks, extracted.losses, extracted.neighbors)
        return self._merge_centers(
            extracted, moved, np.maximum(step.part.sums.masses, 1.0), n_clusters
        )

    def _merge_centers(
        self,
        extracted: Extraction,
        leaves: NDArray[np.float64],
        weights: NDArray[np.float64],
        n_clusters: int,
    ) -> SampleCenters:
        """Merge extracted centers, the leaves, by Ward's method.

        The recorded position of a cluster is the candidate of its heaviest leaf.
        """
        tree = ward_tree(leaves, weights, prepare_points(leaves, self.affine).mapped)
        groups = cut_tree(tree, n_clusters)
        n_groups = int(groups.max()) + 1
        heaviest = [int(np.argmax(np.where(groups == k, weights, -1.0))) for k in range(n_groups)]
        return SampleCenters(
            self._refine(group_means(tree, groups)),
            extracted.picks[heaviest],
            np.bincount(groups, extracted.losses).astype(np.float64),
            np.bincount(groups, extracted.neighbors).astype(np.int64),
            tree,
        )

    def _refine(self, centers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Refine merged centers by a few k-means steps on all judged rows, without a radius."""
        for _ in range(_REFINE_STEPS):
            step = lloyd_part(self._judged, 0, prepare_points(centers, self.affine), math.inf)
            centers = move_centers(centers, step.part, self.affine.unit_length, False).centers
        return centers

    def _points(self, centers: SampleCenters) -> Points:
        return prepare_points(centers.centers, self.affine)

    def _merged(self, trial: ladder.BandwidthTrial) -> ladder.BandwidthTrial:
        """Return the trial with the cost of its merged centers on held-out rows.

        If no rows are held out, the judged rows are used.
        """
        centers = self._centers(trial.rho, "merge", self._n_clusters)
        test = self._held_out if len(self._held_out) else self._judged
        cost = mean_sq_distance(test, self._points(centers))
        return replace(trial, held_out=cost, merged=len(centers.centers))

    def _labels(
        self, centers: SampleCenters, rho: float, method: SampleExtraction
    ) -> NDArray[np.int32]:
        if method == "residual":
            return ladder.judge(self._sq, centers.positions, self._sq_radius(rho))[0]
        return nearest_centers(self._judged, self._points(centers)).labels

    def _perturb(
        self, choice: Choice, method: SampleExtraction, labels: NDArray[np.int32]
    ) -> tuple[PerturbedRho, ...]:
        """Return the clusters at a smaller and a larger rho, and their agreement with `labels`."""
        perturbed = []
        for rho in (choice.rho * (1.0 - PERTURBATION), choice.rho * (1.0 + PERTURBATION)):
            # Residual extraction is not limited to the chosen number of clusters, because a
            # different number at this rho shows that the clusters are not stable.
            limit = self._n_clusters if method == "merge" else None
            centers = self._centers(rho, method, limit)
            ari = scores(contingency(labels, self._labels(centers, rho, method))).ari
            perturbed.append(PerturbedRho(rho, len(centers.centers), ari))
        return tuple(perturbed)

    def _sigma_max(self, centers: SampleCenters, rho: float, method: SampleExtraction) -> float:
        if len(centers.centers) == 0:
            return 0.0
        sq_radius = self._sq_radius(rho) if method == "residual" else math.inf
        sums = lloyd_part(self._judged, 0, self._points(centers), sq_radius).part.sums
        return float(model_sigmas(sums, self.affine.scale, math.sqrt(sq_radius)).max())

    def _histogram(self) -> Histogram:
        candidates, rows = np.divmod(
            np.arange(0, self._sq.size, max(1, self._sq.size // _HISTOGRAM_PAIRS)),
            self._sq.shape[1],
        )
        # Exclude the distance of a row to itself: candidate i is row i of the sample.
        pairs = candidates != rows
        sq_distances = self._sq[candidates[pairs], rows[pairs]].astype(np.float64)
        return histogram_of(np.sqrt(sq_distances), _HISTOGRAM_BINS)
