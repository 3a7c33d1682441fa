"""Plots of statistics, for all kinds of rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.kernels.statistics.row_statistics import (
    Statistics,
    finish_statistics,
    statistics_part,
)
from scrlm_dask.reporting.plots import check_plot, plot_statistics

ORANGE = np.array([0xD1, 0x49, 0x5B]) / 255


def statistics_of(x: Any, radius: float | None = None) -> Statistics:
    part = statistics_part(np.asarray(x, np.float32), 0, np.arange(len(x)), False)
    return finish_statistics(part, "none", radius)


def orange_columns(path: Path) -> np.ndarray[Any, Any]:
    """Return the columns of the right third of a plot in which the line of the radius is."""
    image = imread(path)[:, :, :3]
    third = image[:, 2 * image.shape[1] // 3 :]
    orange = (np.abs(third - ORANGE) < 0.02).all(axis=2).sum(axis=0)
    return np.flatnonzero(orange > 0.4 * len(image))


def test_radius_is_marked(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(200, 10))
    columns = []
    for radius in (None, 1.0, 5.0, 50.0):
        path = tmp_path / f"{radius}.png"
        plot_statistics(statistics_of(x, radius), "x.zarr", "none", path)
        assert imread(path).shape == (630, 1950, 4)
        columns.append(orange_columns(path))
    assert not len(columns[0])
    assert columns[1].max() < columns[2].min() < columns[3].min()


@pytest.mark.parametrize(
    "x",
    [
        np.full((3, 2), np.nan),
        np.zeros((1, 2)),
        np.zeros((5, 2)),
        np.ones((5, 1)),
        [[0.0], [1e-30]],
        [[0.0], [1e30]],
    ],
    ids=["NaN", "1", "zeros", "equal", "tiny", "huge"],
)
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_any_rows_can_be_plotted(tmp_path: Path, x: Any, ending: str) -> None:
    path = tmp_path / f"out.{ending}"
    plot_statistics(statistics_of(x, 1.0), "x.zarr", "standardize", path)
    assert path.stat().st_size > 5000


def test_invalid_paths(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"(?=.*{tmp_path}/out\.zarr)(?=.*\.png)"):
        check_plot(tmp_path / "out.zarr")
    with pytest.raises(StoreError, match=rf"{tmp_path}/nowhere\b"):
        check_plot(tmp_path / "nowhere/out.png")


def test_missing_matplotlib_names_the_extra() -> None:
    code = """
import sys
sys.modules["matplotlib"] = None  # imports fail as if it were not installed
from scrlm_cli.main import main
main(["inspect", "x.zarr", "--plot", "out.png"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert "scrlm-dask[plot]" in done.stderr
    assert "Traceback" not in done.stderr
