"""Choose rho, and possibly the centers, on a sample of rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.choices import Extraction as ExtractionName
from scrlm_dask.choices import FitPreprocess
from scrlm_dask.config import MERGED_ITERATIONS, FitConfig, ResolvedConfig
from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.features import Features, FeaturesLike, as_features
from scrlm_dask.engine.workers import check_paths_visible, worker_memories
from scrlm_dask.errors import InputError
from scrlm_dask.events import Listener, Note, warn
from scrlm_dask.kernels.bandwidth.choose import Choice, clear_scale
from scrlm_dask.kernels.bandwidth.ladder import BandwidthTrial
from scrlm_dask.kernels.bandwidth.modularity import WEAK_GAP, Levels
from scrlm_dask.kernels.bandwidth.representation import RepresentationTrial
from scrlm_dask.kernels.bandwidth.search import PerturbedRho, SampleScan, ScanSizes
from scrlm_dask.kernels.distances.points import radius
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.kernels.randomness.sampling import Purpose, stream
from scrlm_dask.kernels.scrlm.extraction import Extraction
from scrlm_dask.kernels.scrlm.theory import DELTA, MOST_RHO, PAPER_RHO, default_candidates
from scrlm_dask.kernels.scrlm.ward import MergeTree
from scrlm_dask.kernels.statistics.histograms import Histogram
from scrlm_dask.passes.loss import ExtractedCenters
from scrlm_dask.passes.scan import Scanned, scan_pass
from scrlm_dask.pipeline.results import warn_about_zero_rows
from scrlm_dask.planning.memory import check_fit_memory
from scrlm_dask.runs.record import ScanRecord
from scrlm_dask.storage.locations import Options
from scrlm_dask.storage.traces import InputTrace

_FEW_OUTLIERS = 0.02


@dataclass(frozen=True)
class Chosen:
    """Result of a scan: a config with a rho, and the centers if they were found on the sample."""

    config: ResolvedConfig
    extracted: ExtractedCenters | None = None  # None: a loss pass is needed to find them
    affine: AffineMap | None = None  # preprocessing map of the sample
    tree: MergeTree | None = None
    fine: NDArray[np.float64] | None = None  # (f, p) centers of the fine level, in input units
    record: dict[str, Any] = field(default_factory=dict)


def choose_on_sample(execution: Execution, features: Features, config: ResolvedConfig) -> Chosen:
    """Read a sample and use it to resolve every "auto" of the config."""
    assert config.sample is not None
    scanned = scan_pass(execution, features, config, config.sample)
    settled = settle_config(scanned, config)
    for note in (*scan_notes(scanned, config), *_fit_notes(scanned.scan, config, settled)):
        execution.emit(note)
    record = {"scan": _scan_record(scanned, config.n_rows)}
    if settled.sample is None or scanned.scan is None:
        return Chosen(settled, record=record)
    found = scanned.scan.found
    extraction = Extraction(found.positions, found.losses, found.neighbors)
    extracted = ExtractedCenters(found.centers, scanned.rows[found.positions], extraction)
    return Chosen(settled, extracted, scanned.affine, found.tree, found.fine, record)


def settle_config(scanned: Scanned, config: ResolvedConfig) -> ResolvedConfig:
    """Return the config with every "auto" resolved by the scan."""
    asked, scan = config.asked, scanned.scan
    if scan is None:
        # robust=False requires k-means or merged centers, and no centers were merged
        robust = True if asked.robust == "auto" or not asked.refine.limit(0) else asked.robust
        share = None if asked.outlier_share == "auto" else asked.outlier_share
        settled = replace(
            asked, rho=PAPER_RHO, extraction="greedy", robust=robust, outlier_share=share
        )
        return settled.resolve(config.n_rows)
    greedy = asked.extraction == "greedy" or _falls_short(scan, asked)
    settled = _settled(scan, asked, "greedy" if greedy else scan.extraction)
    if not greedy:
        return replace(config, asked=settled, n_candidates=scan.n_candidates)
    resolved = settled.resolve(config.n_rows)
    if asked.n_candidates != "auto":
        return resolved
    # if the number of clusters is not given, use the number found on the sample
    least = 0 if asked.n_clusters is None else resolved.n_candidates
    n_candidates = min(config.n_rows, max(least, scan.needed_candidates))
    return replace(resolved, n_candidates=n_candidates)


def _settled(scan: SampleScan, asked: FitConfig, extraction: ExtractionName) -> FitConfig:
    """Return the requested config with the values that the scan has chosen."""
    merged = extraction == "merge"
    robust = asked.robust
    if robust == "auto":
        robust = not merged or asked.outlier_share == "auto"
    radius, by_share = asked.radius, isinstance(asked.outlier_share, float)
    if merged and robust and radius is None and scan.null is not None and not by_share:
        radius = scan.null.radius  # merged clusters extend beyond the radius of rho
    iterates = merged or robust is False  # k-means assigns rows outside the radius
    return replace(
        asked,
        rho=scan.choice.rho,
        n_clusters=asked.n_clusters if scan.levels is None else scan.levels.clusters,
        preprocess=scan.affine.kind,
        extraction=extraction,
        robust=robust,
        radius=radius,
        outlier_share=None if asked.outlier_share == "auto" else asked.outlier_share,
        refine=asked.refine.settle(MERGED_ITERATIONS if iterates else 0),
    )


def _falls_short(scan: SampleScan, asked: FitConfig) -> bool:
    """Return whether the clusters need more candidates than a scan of a sample can use.

    False if the user set the extraction or the number of candidates: these are not changed.
    """
    free = asked.extraction == "auto" and asked.n_candidates == "auto"
    return free and _lacks_candidates(scan)


def _lacks_candidates(scan: SampleScan) -> bool:
    """Return whether the theory requires more candidates than the scan used.

    False if the data shows no clear scale: centers may then be merged, which the theory does not
    cover.
    """
    few = scan.needed_candidates > scan.n_candidates
    return few and scan.choice.clear and scan.n_candidates < scan.sizes.judged


def scan_notes(scanned: Scanned, config: ResolvedConfig) -> list[Note]:
    """Return notes on the chosen rho, the reason for it, and possible problems."""
    scan, asked = scanned.scan, config.asked
    if scan is None:
        why = "no row of the sample has a neighbor at any radius, or all rows are identical"
        text = f"rho {PAPER_RHO:g} is used because the sample shows no scale: {why}"
        return [Note(text, warning=True)]
    notes = []
    if asked.preprocess == "auto":
        notes.append(Note(_describe_map(scan)))
    if scan.levels is not None:
        notes += _level_notes(scan.levels)
    elif asked.rho == "auto":
        choice = scan.choice
        equal = f" ({choice.low:.4g} to {choice.high:.4g} are equally good)"
        same = choice.low < choice.high and choice.basis != "dip"
        interval = equal if same else ""
        text = f"rho {choice.rho:.4g}{interval}: {choice.why}"
        notes.append(Note(text, warning=choice.basis == "persistent"))
    return notes + list(_candidate_notes(scan, config))


def _level_notes(levels: Levels) -> Iterator[Note]:
    """Yield notes on the number of clusters that modularity has chosen."""
    if levels.structure == "none":
        advice = "if you expect clusters, set their number (--clusters, n_clusters)"
        yield Note(f"{levels.describe()}; {advice}", warning=True)
        return
    yield Note(levels.describe())
    if not levels.is_stable:
        yield Note(
            "another sample or seed would give partly different clusters: the labels from two "
            f"parts of the sample have an adjusted Rand index of {levels.agreement:.2f}"
        )


def _describe_map(scan: SampleScan) -> str:
    """Return the chosen preprocessing and the reason for it."""
    kind = scan.affine.kind
    if scan.maps:
        values = ", ".join(
            f"{trial.preprocess} {trial.modularity:.2f} ({trial.gap:.2f})" for trial in scan.maps
        )
        if max(trial.gap for trial in scan.maps) < WEAK_GAP:
            return f"preprocess {kind}: the default, because no kind shows structure ({values})"
        return (
            f"preprocess {kind}: chosen by modularity on the sample, among kinds with clearly more "
            f"than one normal distribution has (difference in brackets): {values}"
        )
    if kind == "l2":
        return "preprocess l2: the rows have unit length"
    reason = "the data shows a clear scale" if scan.choice.clear else "the default for few rows"
    return f"preprocess {kind}: {reason}"


def _fit_notes(
    scan: SampleScan | None, config: ResolvedConfig, settled: ResolvedConfig
) -> Iterator[Note]:
    """Yield notes on steps of the fit that the scan has decided: outliers and k-means."""
    asked, final = config.asked, settled.asked
    if scan is None or final.extraction != "merge":
        return
    if asked.refine.max_iter == "auto":
        yield Note(
            f"up to {MERGED_ITERATIONS} k-means iterations refine the merged centers; omit them "
            "with --kmeans-iter 0 (refine=0)"
        )
    structured = scan.levels is None or scan.levels.structure != "none"
    if asked.outlier_share == "auto" and scan.null is not None and not structured:
        yield Note(
            f"the radius {scan.null.radius:.4g} of --outliers auto means nothing without "
            f"structure: {scan.null.outside:.0%} of the sample is outside; use a share of the rows "
            "(--outlier-share 0.02)",
            warning=True,
        )
    if final.radius is None and final.outlier_share is None:
        yield _merging_note(scan, asked)


def _merging_note(scan: SampleScan, asked: FitConfig) -> Note:
    """Note that merging leaves no outliers; if the data has outliers, warn and list ways out."""
    every = "clusters were merged, so every row gets the label of its nearest center"
    structured = scan.levels is None or scan.levels.structure != "none"
    if scan.null is not None and scan.null.outside > 0.0 and structured:
        every += (
            f"; {scan.null.outside:.1%} of the sample is farther than {scan.null.radius:.4g} from "
            'every center, and --outliers auto (outlier_share="auto") labels such rows -1'
        )
    clear, most = clear_scale(scan.trials), asked.n_clusters
    # a user who sets the number of clusters, but not the extraction, may expect outliers
    unexpected = most is not None and asked.robust == "auto" and asked.extraction == "auto"
    if clear is None or most is None or clear.clusters <= most:
        return Note(every, warning=unexpected)
    outliers = 1.0 - min(trial.coverage for trial in scan.trials if trial.rho >= clear.rho)
    if outliers < _FEW_OUTLIERS:
        return Note(every, warning=unexpected)
    return Note(
        f"the data has {clear.clusters} clear clusters and {outliers:.0%} outliers, but {most} "
        "clusters were requested: clusters are merged, every row gets the label of its nearest "
        "center, and there are no outliers. To keep outliers, omit --clusters (n_clusters) and "
        f"join the clusters afterwards (scrlm cut RUN --clusters {most}, Run(path).cut({most})), "
        f"or find only the {most} best clusters with a given rho (--rho {clear.rho:.3g}, "
        f"rho={clear.rho:.3g})",
        warning=True,
    )


def _candidate_notes(scan: SampleScan, config: ResolvedConfig) -> Iterator[Note]:
    """Yield notes about too few candidates and the consequences."""
    asked, n_found = config.asked, len(scan.found.centers)
    if scan.n_candidates > scan.first_candidates and scan.levels is None:
        if asked.n_clusters is not None and scan.extraction == "merge":
            purpose = f"{asked.n_clusters} merged clusters"
        else:
            purpose = f"{n_found} clusters at a risk of {DELTA:g} of missing one"
        yield Note(
            f"{scan.first_candidates} candidates are too few for {purpose}: the scan was repeated "
            f"with {scan.n_candidates}"
        )
    merged = scan.extraction == "merge"
    if merged and asked.n_clusters is not None and n_found < asked.n_clusters:
        yield Note(_describe_shortage(scan, config), warning=True)
    n_needed = min(scan.needed_candidates, config.n_rows)
    needed = f"about {n_found} clusters need {n_needed} candidates at a risk of"
    if _falls_short(scan, asked):
        yield Note(
            f"{needed} {DELTA:g} of missing one, but a scan of a sample uses at most "
            f"{scan.n_candidates}: a fit computes the losses of the candidates over all rows"
        )
    elif asked.n_candidates != "auto" and _lacks_candidates(scan):
        yield Note(
            f"{needed} {DELTA:g} of missing one, but --candidates (n_candidates) is "
            f"{scan.n_candidates}"
        )


def _describe_shortage(scan: SampleScan, config: ResolvedConfig) -> str:
    """Return a message that fewer clusters than requested were found, with ways to get more."""
    n_clusters = config.asked.n_clusters or 0
    return (
        f"{n_clusters} clusters were requested, but {scan.n_candidates} candidates on a sample of "
        f"{scan.sizes.judged} rows give only {len(scan.found.centers)}; for more, "
        f"{', or '.join(_ways_to_more(scan, config, n_clusters))}"
    )


def _ways_to_more(scan: SampleScan, config: ResolvedConfig, n_clusters: int) -> Iterator[str]:
    asked, enough = config.asked, default_candidates(config.n_rows, n_clusters)
    if enough > scan.n_candidates:
        yield f"use more candidates (--candidates {enough})"
    if asked.rho != "auto":
        yield f"use a smaller rho than {asked.rho:g}"
    elif asked.extraction == "auto":
        yield f"give rho (--rho {scan.choice.rho:.3g} or less), so that all rows are used"
    yield f"use k-means, which finds any number of them (scrlm kmeans --clusters {n_clusters})"


def _scan_record(scanned: Scanned, n_rows: int) -> dict[str, Any]:
    """Return the entry of `run.json`: the trials, the chosen rho and its reliability."""
    scan = scanned.scan
    if scan is None:
        return {"sampled_rows": len(scanned.rows), "blocks": scanned.n_blocks, "rungs": []}
    choice = scan.choice
    record = ScanRecord(
        sampled_rows=len(scanned.rows),
        blocks=scanned.n_blocks,
        judged_rows=scan.sizes.judged,
        held_out_rows=scan.sizes.held_out,
        candidates=scan.n_candidates,
        needed_candidates=min(scan.needed_candidates, n_rows),
        preprocess=scan.affine.kind,
        representations=list(scan.maps),
        levels=scan.levels,
        null=scan.null,
        rho=choice.rho,
        low=choice.low,
        high=choice.high,
        basis=choice.basis,
        why=choice.why,
        extraction=scan.extraction,
        clusters=len(scan.found.centers),
        coverage=scan.coverage,
        stability=list(scan.perturbed),
        sigma_max=scan.sigma_max,
        assumption_1=_meets_assumption(scan),
        trials=list(scan.trials),
    )
    return record.to_json()


def _meets_assumption(scan: SampleScan) -> bool:
    """Return whether Assumption 1 of the paper holds: sigma_max <= rho < sqrt(0.6).

    It applies to standardized features.
    """
    return bool(scan.sigma_max <= scan.choice.rho < MOST_RHO) and math.isfinite(scan.sigma_max)


# Minimum number of blocks to read. If the rows are sorted by class, fewer blocks might contain only
# a few classes.
_LEAST_BLOCKS = 16


@dataclass(frozen=True)
class RhoScan:
    """Result of `scan_rho`: trial bandwidths, the chosen bandwidth, and its reliability.

    Attributes
    ----------
    choice : Choice
        The chosen bandwidth, the interval of equally good bandwidths, and the reason.
    trials : tuple of BandwidthTrial
        All trial bandwidths.
    stability : tuple of PerturbedRho
        Clusters at rho - 10 % and rho + 10 %; empty if modularity decided.
    levels : Levels or None
        Numbers of clusters that modularity has chosen; None if the data shows a clear scale, or if
        `n_clusters` was given.
    preprocess : str
        The preprocessing that was chosen or given.
    representations : tuple of RepresentationTrial
        The kinds of preprocessing that were compared; empty if they were not compared.
    n_clusters : int
        Number of clusters found on the sample.
    sigma_max : float
        Largest standard deviation of a cluster, after preprocessing.
    assumption_1 : bool
        Whether Assumption 1 of the paper holds: sigma_max <= rho < sqrt(0.6).
    distances : Histogram
        Distances between rows of the sample.
    n_features : int
        Number of features p.
    F : float
        The constant F of the paper's loss.
    source : str
        Description of the features, for messages.
    record : dict
        The scan in the format of `run.json`.
    """

    choice: Choice
    trials: tuple[BandwidthTrial, ...]
    stability: tuple[PerturbedRho, ...]
    levels: Levels | None
    preprocess: str
    representations: tuple[RepresentationTrial, ...]
    n_clusters: int
    sigma_max: float
    assumption_1: bool
    distances: Histogram
    n_features: int
    F: float
    source: str
    record: dict[str, Any]

    @property
    def rho(self) -> float:
        """The chosen bandwidth."""
        return self.choice.rho

    def radius_at(self, rho: float) -> float:
        """Return the radius of clusters with this rho."""
        return radius(rho, self.F, self.n_features)

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the scan as a Matplotlib figure, save it if a path is given, and return it.

        The figure shows modularity over the number of clusters if modularity decided, otherwise the
        trial bandwidths.
        """
        from scrlm_dask.reporting.plots import draw_levels, draw_scan

        if self.levels is not None:
            return draw_levels(self.levels, self.source, path)
        return draw_scan(
            self.trials, self.choice, self.distances, self.radius_at(self.rho), self.source, path
        )


def scan_rho(
    source: FeaturesLike,
    *,
    n_clusters: int | None = None,
    F: float = 2.5,
    preprocess: FitPreprocess = "auto",
    n_candidates: int | Literal["auto"] = "auto",
    min_neighbors: int = 1,
    seed: int = 0,
    block_rows: int | None = None,
    storage_options: Options | None = None,
    listener: Listener = warn,
) -> RhoScan:
    """Choose the bandwidth rho on a sample of rows, and report how reliable the choice is.

    One read of a random sample of blocks serves all trials. A fit with `rho="auto"` samples rows of
    all blocks, so its choice may differ slightly.

    Parameters
    ----------
    source : str, Path, FeatureStore, zarr.Array, dask.array.Array or numpy.ndarray
        Features (rows, p). A path or URL must point to a features store or a Zarr array.
    n_clusters : int or None
        Maximum number of clusters; None: determined from the data.
    F : float
        The constant F of the paper's loss.
    preprocess : {"auto", "standardize", "center", "scale", "none", "l2"}
        Preprocessing of the rows before distances are measured; see `FitConfig`.
    n_candidates : int or "auto"
        Rows of the sample that are tried as centers.
    min_neighbors : int
        Minimum number of other rows inside the radius of a center.
    seed : int
        Seed for the sample.
    block_rows : int or None
        Rows per block; None follows the chunks of the source.
    storage_options : dict or None
        fsspec options used to open URLs. They are neither printed nor saved.
    listener : callable
        Receives the events of the run (`scrlm_dask.events`); by default, warnings are emitted.

    Returns
    -------
    scrlm_dask.results.RhoScan
        The bandwidth `rho`, the interval of equally good bandwidths, and all trials.

    Raises
    ------
    InputError
        If the sample shows no scale: all rows are equal, or no row has a neighbor at any radius.

    Examples
    --------
    >>> import scrlm_dask
    >>> scan = scrlm_dask.scan_rho("features.zarr")
    >>> scan.n_clusters, scan.choice.low < scan.rho < scan.choice.high
    (6, True)
    """
    config = FitConfig(
        rho="auto",
        F=F,
        n_clusters=n_clusters,
        n_candidates=n_candidates,
        min_neighbors=min_neighbors,
        preprocess=preprocess,
        seed=seed,
    )
    job = prepare_scan(source, config, block_rows=block_rows, storage_options=storage_options)
    return job.run(listener)


def prepare_scan(
    source: FeaturesLike,
    config: FitConfig,
    *,
    block_rows: int | None = None,
    storage_options: Options | None = None,
) -> ScanJob:
    """Validate a scan of rho before workers are started or rows are read."""
    features = as_features(source, block_rows, storage_options)
    return ScanJob(features, config.resolve(features.n_rows))


@dataclass(frozen=True)
class ScanJob:
    """A validated scan of rho, ready to run."""

    features: Features
    config: ResolvedConfig  # with rho "auto"

    def run(self, listener: Listener = warn) -> RhoScan:
        """Run the scan in the workers of the current client, or in threads of this process."""
        features, config = self.features, self.config
        assert config.sample is not None
        if features.location is not None:
            check_paths_visible(features.location)
        check_fit_memory(features.layout, config, None, worker_memories())
        blocks = _choose_blocks(features, config.sample, config.asked.seed)
        with Execution(listener) as execution:
            scanned = scan_pass(execution, features, config, config.sample, blocks)
            InputTrace(features.inputs).check()
            if scanned.scan is None:
                raise InputError(
                    f"rho cannot be chosen for {features.label}: in a sample of "
                    f"{len(scanned.rows)} rows no row has a neighbor at any radius, or all rows "
                    "are identical; there is nothing to cluster"
                )
            for note in scan_notes(scanned, config):
                execution.emit(note)
            if scanned.affine.unit_length:
                warn_about_zero_rows(execution, scanned.zero_rows, len(scanned.rows))
        record = _scan_record(scanned, config.n_rows)
        return _describe_scan(scanned.scan, features, config.asked.F, record)


def _describe_scan(
    scan: SampleScan, features: Features, F: float, record: dict[str, Any]
) -> RhoScan:
    return RhoScan(
        choice=scan.choice,
        trials=scan.trials,
        stability=scan.perturbed,
        levels=scan.levels,
        preprocess=scan.affine.kind,
        representations=scan.maps,
        n_clusters=len(scan.found.centers),
        sigma_max=scan.sigma_max,
        assumption_1=_meets_assumption(scan),
        distances=scan.distances,
        n_features=features.n_features,
        F=F,
        source=features.label,
        record=record,
    )


def _choose_blocks(features: Features, sizes: ScanSizes, seed: int) -> list[int] | None:
    """Choose at least 16 random blocks with enough rows for the sample; None: all blocks."""
    size = max(_LEAST_BLOCKS, math.ceil(2 * sizes.rows / features.block_rows))
    if size >= features.n_blocks:
        return None
    order = stream(seed, Purpose.SCAN_ROWS, 1).permutation(features.n_blocks)
    return sorted(int(i) for i in order[:size])
