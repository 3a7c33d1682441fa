"""Plots of statistics, for all kinds of rows, and of numbers of clusters."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from matplotlib.text import Text
from reporting.level_records import LEVELS, NO_LEVELS, TRIALS

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.kernels.bandwidth.modularity import CutTrial, Levels
from scrlm_dask.kernels.statistics.row_statistics import (
    Statistics,
    finish_statistics,
    statistics_part,
)
from scrlm_dask.reporting.plots import check_plot, draw_levels, plot_statistics

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


def test_names_are_not_formulas(tmp_path: Path) -> None:
    name, path = r"z$\bad{$.zarr", tmp_path / "x.png"
    plot_statistics(statistics_of(np.eye(5)), name, "none", path)
    figure = draw_levels(LEVELS, name, path)
    assert figure.get_suptitle().startswith(r"z\$\bad{\$.zarr")


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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 3
    assert "scrlm-dask[plot]" in done.stderr
    assert "Traceback" not in done.stderr


def test_plot_of_modularity(tmp_path: Path) -> None:
    path = tmp_path / "levels.png"
    figure = draw_levels(LEVELS, "x.zarr", path)
    assert imread(path).shape == (1050, 1200, 4)
    quality, neighbors = figure.axes
    points = [[trial.clusters, trial.modularity()] for trial in TRIALS]
    assert np.allclose(quality.lines[0].get_xydata(), points)
    same, expected = (line.get_ydata().tolist() for line in neighbors.lines[:2])
    assert same == [trial.same for trial in TRIALS]
    assert expected == [trial.expected for trial in TRIALS]
    for axes, marked in ((quality, quality.lines[1:]), (neighbors, neighbors.lines[2:])):
        assert axes.get_xscale() == "log"
        styles = {line.get_xdata()[0]: line.get_linestyle() for line in marked}
        assert styles == {8: "--", 19: "-", 76: "--"}
        (band,) = axes.patches
        assert (band.get_x(), band.get_x() + band.get_width()) == (11, 54)
    assert {text.get_text() for text in quality.texts} == {"coarse 8", "default 19", "fine 76"}
    for fact in ("x.zarr", "clear", "0.43"):
        assert fact in figure.get_suptitle()
    assert "11 to 54" in neighbors.get_xlabel()


def test_plot_without_levels_and_structure() -> None:
    figure = draw_levels(NO_LEVELS, "x.zarr", None)
    quality, neighbors = figure.axes
    assert [text.get_text() for text in quality.texts] == ["default 19"]
    assert not quality.patches  # no interval
    for fact in ("none", "0.04", "19", "arbitrary"):
        assert fact in figure.get_suptitle()
    assert "19" not in neighbors.get_xlabel()


def cut_numbers(*numbers: int) -> tuple[CutTrial, ...]:
    return tuple(CutTrial(m, 0.9, 1.0 / m) for m in numbers)


@pytest.mark.parametrize(
    "levels",
    [
        LEVELS,
        replace(LEVELS, coarse=2, clusters=3, fine=5, trials=cut_numbers(2, 3, 5, 1000)),
        replace(LEVELS, coarse=400, clusters=640, fine=1024, trials=cut_numbers(2, 1024)),
        replace(LEVELS, coarse=2, clusters=3, fine=None, trials=cut_numbers(2, 3)),
        replace(NO_LEVELS, clusters=2, trials=cut_numbers(2)),
    ],
    ids=["usual", "left", "right", "two", "one"],
)
def test_labels_of_levels_do_not_overlap(levels: Levels) -> None:
    figure = draw_levels(levels, "x.zarr", None)
    figure.draw_without_rendering()
    quality, neighbors = figure.axes
    titles = [
        next(text for text in axes.findobj(Text) if text.get_text() == axes.get_title(loc="left"))
        for axes in figure.axes
    ]
    shown = (*figure.texts, *titles, *quality.texts, neighbors.get_legend())
    assert len(shown) > 4
    boxes = [artist.get_window_extent() for artist in shown]
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 for box in boxes)


def test_invalid_path_of_a_plot_of_modularity(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"(?=.*{tmp_path}/out\.zarr)(?=.*\.png)"):
        draw_levels(LEVELS, "x.zarr", tmp_path / "out.zarr")
