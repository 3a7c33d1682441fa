"""Memory does not grow with the number of rows and stays below the planned memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from scrlm_dask.clusters.connect import connect
from scrlm_dask.clusters.options import ClusterOptions
from scrlm_dask.config import FitConfig, LloydConfig
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.synth import synth

pytestmark = [pytest.mark.slow, pytest.mark.cluster]

BLOCK_ROWS, N_FEATURES = 16_384, 128
BLOCK_BYTES = 4 * BLOCK_ROWS * N_FEATURES
REFINE = LloydConfig(max_iter=1, persist="no")
CONFIG = FitConfig(rho=0.5, n_clusters=8, n_candidates=64, refine=REFINE)


def peak_of(n_blocks: int, folder: Path, config: FitConfig = CONFIG) -> tuple[int, int]:
    """Return the measured and the planned peak of the only worker of a new cluster."""
    store = folder / f"{n_blocks}.zarr"
    options = ClusterOptions(nworkers=1, nthreads=1, memory_limit="2GB")
    synth(store, n_blocks * BLOCK_ROWS, MixtureSpec(N_FEATURES, 5), chunk_bytes=BLOCK_BYTES)
    with connect(options):
        record = fit(store, config, out=folder / f"run-{n_blocks}").record
    heavy = "scan" if config.rho == "auto" else "loss"
    assert heavy in record["plan"]["phases"]
    assert heavy in [phase["name"] for phase in record["phases"]]
    assert record["features"]["blocks"] == n_blocks
    (worker,) = record["workers"].values()
    return worker["peak_memory_bytes"], record["plan"]["worker_bytes"]


def test_peak_is_constant_and_below_the_plan(tmp_path: Path) -> None:
    peak_of(2, tmp_path)  # compile the kernels first, which needs additional memory
    runs = [peak_of(n_blocks, tmp_path) for n_blocks in (3, 6, 12)]
    for measured, planned in runs:
        assert measured <= planned
    peaks = [measured for measured, _ in runs]
    # 9 additional blocks are 75 MB.
    assert max(peaks) - min(peaks) < 3 * BLOCK_BYTES, peaks


@pytest.mark.parametrize("n_clusters", [None, 8])
def test_scan_stays_below_the_plan(n_clusters: int | None, tmp_path: Path) -> None:
    measured, planned = peak_of(6, tmp_path, FitConfig(n_clusters=n_clusters, refine=REFINE))
    assert measured <= planned
