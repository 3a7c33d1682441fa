"""rho and centers from a sample of rows, and what a person should know about them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from scrlm_dask.config import FitConfig, ResolvedConfig
from scrlm_dask.events import Note
from scrlm_dask.kernels.choice import clear_scale
from scrlm_dask.kernels.extraction import Extraction
from scrlm_dask.kernels.preprocessing import AffineMap
from scrlm_dask.kernels.scan import SampleScan
from scrlm_dask.kernels.theory import DELTA, MOST_RHO, default_candidates
from scrlm_dask.kernels.ward import MergeTree
from scrlm_dask.passes.execution import Execution
from scrlm_dask.passes.features import Features
from scrlm_dask.passes.loss import ExtractedCenters
from scrlm_dask.passes.scan import Scanned, scan_pass

_FEW_OUTLIERS = 0.02
PAPER_RHO = 0.5  # for rows that show no scale at all
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
    """Read a sample and settle what "auto" stands for."""
    assert config.sample is not None
    scanned = scan_pass(execution, features, config, config.sample)
    for note in scan_notes(scanned, config):
        execution.tell(note)
    settled = settled_config(scanned, config)
    record = {"scan": scan_record(scanned, config)}
    if settled.sample is None or scanned.scan is None:
        return Chosen(settled, record=record)
    found = scanned.scan.found
    extraction = Extraction(found.positions, found.losses, found.neighbors)
    extracted = ExtractedCenters(found.centers, scanned.rows[found.positions], extraction)
    return Chosen(settled, extracted, scanned.affine, found.tree, record)


def settled_config(scanned: Scanned, config: ResolvedConfig) -> ResolvedConfig:
    """The config with every "auto" settled by the scan."""
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
    """Whether the clusters found ask for more candidates than a sample's distances can be held of.

    Candidates whose number was asked for would be no more if all rows judged them.
    """
    free = asked.extraction == "auto" and asked.n_candidates == "auto"
    return free and _lacks_candidates(scan)


def _lacks_candidates(scan: SampleScan) -> bool:
    """By the theory; what merging asks for is a matter of taste."""
    few = scan.needed_candidates > scan.n_candidates
    return few and scan.choice.clear and scan.n_candidates < scan.sizes.judged


def scan_notes(scanned: Scanned, config: ResolvedConfig) -> list[Note]:
    """What was chosen and why, and doubts."""
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
    """That there are no outliers: a warning where the data shows some, and how to keep them."""
    clear, most = clear_scale(scan.rungs), asked.n_clusters
    if clear is None or most is None or clear.clusters <= most:
        return Note(_EVERY_ROW)
    outliers = 1.0 - min(rung.coverage for rung in scan.rungs if rung.rho >= clear.rho)
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
    """Where candidates were too few, and what came of it."""
    asked, found = config.asked, len(scan.found.centers)
    if scan.n_candidates > scan.first_candidates:
        merging = scan.extraction == "merge"
        few = asked.n_clusters if merging else f"{found} clusters at a risk of {DELTA:g}"
        yield Note(
            f"{scan.first_candidates} candidates are too few for {few}"
            f"{' merged clusters' if merging else ''}: scanned again with {scan.n_candidates}"
        )
    if scan.extraction == "merge" and asked.n_clusters is not None and found < asked.n_clusters:
        yield Note(_too_many_words(scan, config), warning=True)
    asks = f"about {found} clusters ask for {scan.needed_candidates} candidates at a risk of"
    if _falls_short(scan, asked):
        yield Note(
            f"{asks} {DELTA:g}, more than a sample is scanned with ({scan.n_candidates}): a fit "
            "judges them on all rows"
        )
    elif asked.n_candidates != "auto" and _lacks_candidates(scan):
        yield Note(f"{asks} {DELTA:g}, and {scan.n_candidates} were given (n_candidates)")


def _too_many_words(scan: SampleScan, config: ResolvedConfig) -> str:
    """What was asked for, what there is, and each way to more."""
    n_clusters = config.asked.n_clusters or 0
    return (
        f"{n_clusters} clusters were asked for, and {scan.n_candidates} candidates on a sample of "
        f"{scan.sizes.judged} rows carry {len(scan.found.centers)}; for more, "
        f"{', or '.join(_ways_to_more(scan, config.asked, n_clusters, config.n_rows))}"
    )


def _ways_to_more(
    scan: SampleScan, asked: FitConfig, n_clusters: int, n_rows: int
) -> Iterator[str]:
    enough = default_candidates(n_rows, n_clusters)
    if enough > scan.n_candidates:
        yield f"give more candidates (--candidates {enough})"
    if asked.rho != "auto":
        yield f"give a smaller rho than {asked.rho:g}"
    elif asked.extraction == "auto":
        yield f"give rho (--rho {scan.choice.rho:.3g} or less), so that all rows are asked"
    yield f"take k-means, which has any number (scrlm kmeans --clusters {n_clusters})"


def scan_record(scanned: Scanned, config: ResolvedConfig) -> dict[str, Any]:
    """For `run.json`: the table, the choice and how far it can be trusted."""
    scan = scanned.scan
    if scan is None:
        return {"sampled_rows": len(scanned.rows), "blocks": scanned.n_blocks, "rungs": []}
    choice = scan.choice
    return {
        "sampled_rows": len(scanned.rows),
        "blocks": scanned.n_blocks,
        "judged_rows": scan.sizes.judged,
        "held_out_rows": scan.sizes.held_out,
        "candidates": scan.n_candidates,
        "needed_candidates": scan.needed_candidates,
        "rho": choice.rho,
        "low": choice.low,
        "high": choice.high,
        "basis": choice.basis,
        "why": choice.why,
        "extraction": scan.extraction,
        "clusters": len(scan.found.centers),
        "coverage": scan.coverage,
        "stability": [asdict(nudged) for nudged in scan.nudged],
        "sigma_max": scan.sigma_max,
        "assumption_1": assumption_met(scan),
        "rungs": [asdict(rung) for rung in scan.rungs],
    }


def assumption_met(scan: SampleScan) -> bool:
    """Assumption 1 of the paper: sigma_max <= rho < sqrt(0.6)."""
    return bool(scan.sigma_max <= scan.choice.rho < MOST_RHO) and math.isfinite(scan.sigma_max)
