"""Choose rho, and perhaps the centers, on a sample of rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from scrlm_dask.choices import Preprocess
from scrlm_dask.config import FitConfig, ResolvedConfig
from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.features import Features, FeaturesLike, as_features
from scrlm_dask.engine.workers import check_paths_visible, worker_memories
from scrlm_dask.errors import InputError
from scrlm_dask.events import Listener, Note, warn
from scrlm_dask.kernels.bandwidth.choose import Choice, clear_scale
from scrlm_dask.kernels.bandwidth.ladder import BandwidthTrial
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
from scrlm_dask.planning.memory import check_fit_memory
from scrlm_dask.runs.record import ScanRecord
from scrlm_dask.storage.locations import Options, locate

_FEW_OUTLIERS = 0.02


_EVERY_ROW = (
    "merged clusters reach farther than the radius: every row gets the label of its nearest "
    "center, and none is an outlier; with --robust (robust=True) rows outside the radius are"
)


@dataclass(frozen=True)
class Chosen:
    """A config with a rho, and the centers if the sample gave them."""

    config: ResolvedConfig
    extracted: ExtractedCenters | None = None  # None: candidates are to be judged by their losses
    affine: AffineMap | None = None  # that the centers were found under
    tree: MergeTree | None = None
    record: dict[str, Any] = field(default_factory=dict)


def choose_on_sample(execution: Execution, features: Features, config: ResolvedConfig) -> Chosen:
    """Read a sample and resolve every "auto" of the config by it."""
    assert config.sample is not None
    scanned = scan_pass(execution, features, config, config.sample)
    for note in scan_notes(scanned, config):
        execution.emit(note)
    settled = settle_config(scanned, config)
    record = {"scan": _scan_record(scanned)}
    if settled.sample is None or scanned.scan is None:
        return Chosen(settled, record=record)
    found = scanned.scan.found
    extraction = Extraction(found.positions, found.losses, found.neighbors)
    extracted = ExtractedCenters(found.centers, scanned.rows[found.positions], extraction)
    return Chosen(settled, extracted, scanned.affine, found.tree, record)


def settle_config(scanned: Scanned, config: ResolvedConfig) -> ResolvedConfig:
    """Return the config with every "auto" settled by the scan."""
    asked, scan = config.asked, scanned.scan
    if scan is None:
        # without iterations only merged centers can do without a radius, and none were merged
        robust = True if asked.robust == "auto" or not asked.refine.max_iter else asked.robust
        settled = replace(asked, rho=PAPER_RHO, extraction="greedy", robust=robust)
        return settled.resolve(config.n_rows)
    greedy = asked.extraction == "greedy" or _falls_short(scan, asked)
    way: Any = "greedy" if greedy else scan.extraction
    robust = way != "merge" if asked.robust == "auto" else asked.robust
    settled = replace(asked, rho=scan.choice.rho, extraction=way, robust=robust)
    if not greedy:
        return replace(config, asked=settled, n_candidates=scan.n_candidates)
    resolved = settled.resolve(config.n_rows)
    if asked.n_candidates != "auto":
        return resolved
    # without a number of clusters those that were found say more than an assumption
    least = 0 if asked.n_clusters is None else resolved.n_candidates
    n_candidates = min(config.n_rows, max(least, scan.needed_candidates))
    return replace(resolved, n_candidates=n_candidates)


def _falls_short(scan: SampleScan, asked: FitConfig) -> bool:
    """Return whether the clusters need more candidates than a sample's distances fit in memory.

    A number of candidates that the user gave is the same if all rows judge them.
    """
    free = asked.extraction == "auto" and asked.n_candidates == "auto"
    return free and _lacks_candidates(scan)


def _lacks_candidates(scan: SampleScan) -> bool:
    """Return whether theory requires more candidates; merging has no such rule."""
    few = scan.needed_candidates > scan.n_candidates
    return few and scan.choice.clear and scan.n_candidates < scan.sizes.judged


def scan_notes(scanned: Scanned, config: ResolvedConfig) -> list[Note]:
    """Describe the choice, its reason and doubts about it."""
    scan, asked = scanned.scan, config.asked
    if scan is None:
        why = "no row of the sample has another beside it at any radius, or all are alike"
        return [Note(f"rho {PAPER_RHO:g}, there being no scale to choose by: {why}", warning=True)]
    notes = []
    choice = scan.choice
    if asked.rho == "auto":
        text = f"rho {choice.rho:.4g} (as well {choice.low:.4g} to {choice.high:.4g}): {choice.why}"
        notes.append(Note(text, warning=choice.basis == "persistent"))
    if scan.extraction == "merge" and asked.robust == "auto":
        notes.append(_merging_note(scan, asked))
    return notes + list(_candidate_notes(scan, config))


def _merging_note(scan: SampleScan, asked: FitConfig) -> Note:
    """Report that there are no outliers: a warning if the data shows some, and how to keep them."""
    clear, most = clear_scale(scan.trials), asked.n_clusters
    if clear is None or most is None or clear.clusters <= most:
        return Note(_EVERY_ROW)
    outliers = 1.0 - min(trial.coverage for trial in scan.trials if trial.rho >= clear.rho)
    if outliers < _FEW_OUTLIERS:
        return Note(_EVERY_ROW)
    return Note(
        f"the data has {clear.clusters} clear clusters beside {outliers:.0%} outliers, and {most} "
        "were asked for: they are merged, every row gets the label of its nearest center, and none "
        "is an outlier. To keep outliers, leave the number of clusters out and join what is found "
        f"(scrlm cut RUN --clusters {most}, cut_run), or take the {most} best alone, with a rho "
        f"that is given (--rho {clear.rho:.3g}, rho={clear.rho:.3g})",
        warning=True,
    )


def _candidate_notes(scan: SampleScan, config: ResolvedConfig) -> Iterator[Note]:
    """Report candidates that were too few, and the consequence."""
    asked, n_found = config.asked, len(scan.found.centers)
    if scan.n_candidates > scan.first_candidates:
        merging = scan.extraction == "merge"
        few = asked.n_clusters if merging else f"{n_found} clusters at a risk of {DELTA:g}"
        yield Note(
            f"{scan.first_candidates} candidates are too few for {few}"
            f"{' merged clusters' if merging else ''}: scanned again with {scan.n_candidates}"
        )
    if scan.extraction == "merge" and asked.n_clusters is not None and n_found < asked.n_clusters:
        yield Note(_describe_shortage(scan, config), warning=True)
    asks = f"about {n_found} clusters ask for {scan.needed_candidates} candidates at a risk of"
    if _falls_short(scan, asked):
        yield Note(
            f"{asks} {DELTA:g}, more than a sample is scanned with ({scan.n_candidates}): a fit "
            "judges them on all rows"
        )
    elif asked.n_candidates != "auto" and _lacks_candidates(scan):
        yield Note(f"{asks} {DELTA:g}, and {scan.n_candidates} were given (n_candidates)")


def _describe_shortage(scan: SampleScan, config: ResolvedConfig) -> str:
    """Compare the clusters requested with those available, and list the ways to more."""
    n_clusters = config.asked.n_clusters or 0
    return (
        f"{n_clusters} clusters were asked for, and {scan.n_candidates} candidates on a sample of "
        f"{scan.sizes.judged} rows carry {len(scan.found.centers)}; for more, "
        f"{', or '.join(_ways_to_more(scan, config, n_clusters))}"
    )


def _ways_to_more(scan: SampleScan, config: ResolvedConfig, n_clusters: int) -> Iterator[str]:
    asked, enough = config.asked, default_candidates(config.n_rows, n_clusters)
    if enough > scan.n_candidates:
        yield f"give more candidates (--candidates {enough})"
    if asked.rho != "auto":
        yield f"give a smaller rho than {asked.rho:g}"
    elif asked.extraction == "auto":
        yield f"give rho (--rho {scan.choice.rho:.3g} or less), so that all rows are asked"
    yield f"take k-means, which has any number (scrlm kmeans --clusters {n_clusters})"


def _scan_record(scanned: Scanned) -> dict[str, Any]:
    """Return the trials, the choice and its reliability for `run.json`."""
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
        needed_candidates=scan.needed_candidates,
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
        rungs=list(scan.trials),
    )
    return record.to_json()


def _meets_assumption(scan: SampleScan) -> bool:
    """Return whether Assumption 1 of the paper holds: sigma_max <= rho < sqrt(0.6)."""
    return bool(scan.sigma_max <= scan.choice.rho < MOST_RHO) and math.isfinite(scan.sigma_max)


# Blocks read of a large store: enough of them that sorted rows do not show only a few classes.
_LEAST_BLOCKS = 16


@dataclass(frozen=True)
class RhoScan:
    """Trial bandwidths, the one chosen, and how reliable it is."""

    choice: Choice
    rungs: tuple[BandwidthTrial, ...]
    stability: tuple[PerturbedRho, ...]  # at rho - 10 % and rho + 10 %
    n_clusters: int  # on the sample
    sigma_max: float
    assumption_1: bool  # sigma_max <= rho < sqrt(0.6)
    distances: Histogram
    n_features: int
    F: float
    source: str  # as messages call the features
    record: dict[str, Any]  # everything above as run.json has it

    @property
    def rho(self) -> float:
        return self.choice.rho

    def radius_at(self, rho: float) -> float:
        return radius(rho, self.F, self.n_features)

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw the scan: return a Matplotlib figure, and save it if there is a path."""
        from scrlm_dask.reporting.plots import draw_scan

        return draw_scan(
            self.rungs, self.choice, self.distances, self.radius_at(self.rho), self.source, path
        )


def scan_rho(
    source: FeaturesLike,
    *,
    n_clusters: int | None = None,
    F: float = 2.5,
    preprocess: Preprocess = "standardize",
    n_candidates: int | Literal["auto"] = "auto",
    min_neighbors: int = 1,
    seed: int = 0,
    block_rows: int | None = None,
    storage_options: Options | None = None,
    listener: Listener = warn,
) -> RhoScan:
    """Scan a ladder of rho on a sample of rows, from one read of a random sample of blocks.

    A fit with rho="auto" reads all blocks for its sample, and so may choose a little differently.
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
    """Check everything that can be known before workers start and a row is read."""
    features = as_features(source, block_rows, storage_options)
    return ScanJob(features, config.resolve(features.n_rows))


@dataclass(frozen=True)
class ScanJob:
    """A scan of rho that was checked and can run."""

    features: Features
    config: ResolvedConfig  # with rho "auto"

    def run(self, listener: Listener = warn) -> RhoScan:
        """Scan with the workers of the current client, or in threads of this process."""
        features, config = self.features, self.config
        assert config.sample is not None
        if features.path is not None:
            check_paths_visible(locate(features.path))
        check_fit_memory(features.layout, config, None, worker_memories())
        blocks = _choose_blocks(features, config.sample, config.asked.seed)
        with Execution(listener) as execution:
            scanned = scan_pass(execution, features, config, config.sample, blocks)
            if scanned.scan is None:
                raise InputError(
                    f"{features.label} shows no scale: in a sample of {len(scanned.rows)} rows no "
                    "two differ, or none has another beside it at any radius; there is nothing to "
                    "cluster"
                )
            for note in scan_notes(scanned, config):
                execution.emit(note)
        return _describe_scan(scanned.scan, features, config.asked.F, _scan_record(scanned))


def _describe_scan(
    scan: SampleScan, features: Features, F: float, record: dict[str, Any]
) -> RhoScan:
    return RhoScan(
        choice=scan.choice,
        rungs=scan.trials,
        stability=scan.perturbed,
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
    """Choose random blocks with enough rows, at least 16 of them; None for all blocks."""
    size = max(_LEAST_BLOCKS, math.ceil(2 * sizes.rows / features.block_rows))
    if size >= features.n_blocks:
        return None
    order = stream(seed, Purpose.SCAN_ROWS, 1).permutation(features.n_blocks)
    return sorted(int(i) for i in order[:size])
