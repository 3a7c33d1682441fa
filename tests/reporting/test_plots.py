"""Pictures: drawn for anything that an inspection can find."""

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


def found_in(x: Any, radius: float | None = None) -> Statistics:
    part = statistics_part(np.asarray(x, np.float32), 0, np.arange(len(x)), False)
    return finish_statistics(part, "none", radius)


def orange_columns(path: Path) -> np.ndarray[Any, Any]:
    """Columns of the right third of a picture in which the radius' line is drawn."""
    image = imread(path)[:, :, :3]
    third = image[:, 2 * image.shape[1] // 3 :]
    orange = (np.abs(third - ORANGE) < 0.02).all(axis=2).sum(axis=0)
    return np.flatnonzero(orange > 0.4 * len(image))


def test_the_radius_is_marked_where_it_is(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(200, 10))
    columns = []
    for radius in (None, 1.0, 5.0, 50.0):
        path = tmp_path / f"{radius}.png"
        plot_statistics(found_in(x, radius), "x.zarr", "none", path)
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
    ids=["no row", "one row", "zeros", "equal rows", "tiny", "huge"],
)
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_whatever_the_rows_are_something_is_drawn(tmp_path: Path, x: Any, ending: str) -> None:
    path = tmp_path / f"out.{ending}"
    plot_statistics(found_in(x, 1.0), "x.zarr", "standardize", path)
    assert path.stat().st_size > 5000


def test_where_a_picture_cannot_go(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"give one like out\.png"):
        check_plot(tmp_path / "out.zarr")
    with pytest.raises(StoreError, match="does not exist; make it first"):
        check_plot(tmp_path / "nowhere/out.png")


def test_without_matplotlib_the_extra_is_named() -> None:
    code = """
import sys
sys.modules["matplotlib"] = None  # as if it were not installed
from scrlm_cli.main import main
main(["inspect", "x.zarr", "--plot", "out.png"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert "pip install 'scrlm-dask[plot]'" in done.stderr
    assert "Traceback" not in done.stderr
