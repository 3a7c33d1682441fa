"""Fits in several processes that one Python program starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import multiprocessing
import numpy as np
import scrlm_dask

def fit():
    rows = np.random.default_rng(0).normal(size=(400, 4)).astype("f4")
    with scrlm_dask.connect(nworkers=0):
        config = scrlm_dask.KMeansConfig(n_clusters=3)
        return scrlm_dask.kmeans(rows, config, block_rows=50).model.inertia

if __name__ == "__main__":
    here = fit()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(fit) == here
"""


@pytest.mark.slow
def test_spawned_process_after_a_fit_in_threads(tmp_path: Path) -> None:
    """The documentation recommends this, because a forked process hangs."""
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    subprocess.run([sys.executable, file], check=True, timeout=120)
