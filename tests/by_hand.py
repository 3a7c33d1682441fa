"""A run small enough to compute by hand, for tests of commands whose input is a run.

p = 1, rho = 1, F = 2.5: R^2 = 2.5, R = 1.58. The centers are the rows 1 and 3, at 1 and at 10.
The loss of row 1 is 2 (1 - 2.5) = -3; rows 3 and 4 tie at -1.5. The row at 50 is an outlier.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from backends import backend

import scrlm_dask
from scrlm_dask.kernels.bandwidth.ladder import BandwidthTrial
from scrlm_dask.kernels.bandwidth.search import PerturbedRho
from scrlm_dask.pipeline.stores import write_features
from scrlm_dask.runs.record import ScanRecord

ROWS = np.array([[0.0], [1], [2], [10], [11], [50]], np.float32)
TRUTH = np.array([0, 0, 1, 1, 1, -1])
LABELS = [0, 0, 0, 1, 1, -1]
DISTANCES = [1.0, 0, 1, 0, 1, 40]
MARGINS = [9.0, 9, 7, 9, 9, 9]
BLOCK_ROWS = 2
CONFIG = scrlm_dask.FitConfig(rho=1.0, preprocess="none")


def write_run(folder: Path) -> Path:
    """Write the rows with their truth to `x.zarr` and fit them; return the run directory."""
    with backend("one thread"):
        write_features(ROWS, folder / "x.zarr", labels=TRUTH, chunk_bytes=4 * BLOCK_ROWS)
        scrlm_dask.fit(folder / "x.zarr", CONFIG, out=folder / "run", block_rows=BLOCK_ROWS)
    return folder / "run"


# Record of a bandwidth scan with one trial.
_TRIAL = BandwidthTrial(0.5, 3, 0.9, 0.01, (1.0, 2.0, 3.0), None, 2)
SCAN = ScanRecord(
    sampled_rows=10,
    blocks=2,
    judged_rows=8,
    held_out_rows=2,
    candidates=5,
    needed_candidates=4,
    rho=0.5,
    low=0.4,
    high=0.6,
    basis="stretch",
    why="it lasts",
    extraction="greedy",
    clusters=3,
    coverage=0.9,
    stability=[PerturbedRho(0.45, 3, 1.0)],
    sigma_max=0.2,
    assumption_1=True,
    trials=[_TRIAL],
)
