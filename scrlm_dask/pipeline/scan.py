"""What a sample of rows says about rho, without a fit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from scrlm_dask.config import FitConfig
from scrlm_dask.errors import InputError
from scrlm_dask.events import Listener, warn
from scrlm_dask.kernels.choice import Choice
from scrlm_dask.kernels.histograms import Histogram
from scrlm_dask.kernels.ladder import Rung
from scrlm_dask.kernels.points import radius
from scrlm_dask.kernels.preprocessing import Preprocess
from scrlm_dask.kernels.sampling import Purpose, stream
from scrlm_dask.kernels.scan import Nudged, SampleScan, ScanSizes
from scrlm_dask.passes.clients import worker_memories
from scrlm_dask.passes.execution import Execution
from scrlm_dask.passes.features import Features, FeaturesLike, as_features
from scrlm_dask.passes.scan import scan_pass
from scrlm_dask.pipeline.choosing import assumption_met, scan_notes, scan_record
from scrlm_dask.pipeline.fitting import check_fit_memory
from scrlm_dask.storage.locations import Options

# Blocks read of a large store: enough of them that sorted rows do not show only a few classes.
_LEAST_BLOCKS = 16


@dataclass(frozen=True)
class RhoScan:
    """A ladder of bandwidths, the one chosen, and how far it can be trusted."""

    choice: Choice
    rungs: tuple[Rung, ...]
    stability: tuple[Nudged, ...]  # at rho - 10 % and rho + 10 %
    n_clusters: int  # on the sample
    sigma_max: float
    assumption_1: bool  # sigma_max <= rho < sqrt(0.6)
    distances: Histogram
    n_features: int
    F: float
    what: str
    record: dict[str, Any]  # everything above as run.json has it

    @property
    def rho(self) -> float:
        return self.choice.rho

    def radius_at(self, rho: float) -> float:
        return radius(rho, self.F, self.n_features)

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw it: a Matplotlib figure for notebooks, or a file."""
        from scrlm_dask.plots import draw_scan

        return draw_scan(
            self.rungs, self.choice, self.distances, self.radius_at(self.rho), self.what, path
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
    features = as_features(source, block_rows, storage_options)
    config = FitConfig(
        rho="auto",
        F=F,
        n_clusters=n_clusters,
        n_candidates=n_candidates,
        min_neighbors=min_neighbors,
        preprocess=preprocess,
        seed=seed,
    )
    resolved = config.resolve(features.n_rows)
    assert resolved.sample is not None
    check_fit_memory(features.layout, resolved, None, worker_memories())
    blocks = _some_blocks(features, resolved.sample, seed)
    with Execution(listener) as execution:
        scanned = scan_pass(execution, features, resolved, resolved.sample, blocks)
        if scanned.scan is None:
            raise InputError(
                f"{features.what} shows no scale: in a sample of {len(scanned.rows)} rows no two "
                "differ, or none has another beside it at any radius; there is nothing to cluster"
            )
        for note in scan_notes(scanned, resolved):
            execution.tell(note)
    return _result(scanned.scan, features, F, scan_record(scanned, resolved))


def _result(scan: SampleScan, features: Features, F: float, record: dict[str, Any]) -> RhoScan:
    return RhoScan(
        choice=scan.choice,
        rungs=scan.rungs,
        stability=scan.nudged,
        n_clusters=len(scan.found.centers),
        sigma_max=scan.sigma_max,
        assumption_1=assumption_met(scan),
        distances=scan.distances,
        n_features=features.n_features,
        F=F,
        what=features.what,
        record=record,
    )


def _some_blocks(features: Features, sizes: ScanSizes, seed: int) -> list[int] | None:
    """Blocks with rows enough, and not too few of them; None for all."""
    enough = math.ceil(2 * sizes.rows / features.block_rows)
    size = max(_LEAST_BLOCKS, enough)
    if size >= features.n_blocks:
        return None
    order = stream(seed, Purpose.SCAN_ROWS, 1).permutation(features.n_blocks)
    return sorted(int(i) for i in order[:size])
