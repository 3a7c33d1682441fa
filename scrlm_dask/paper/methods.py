"""SCRLM and baselines on mixtures with 50 % outliers: the paper's Figure 6.

Baselines get m + 1 clusters, one of them for the outliers. SCRLM gets T = N and finds the number
of clusters. All methods see the same draws.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np

# here and not in tasks: two threads that import scikit-learn at once see it half imported
import sklearn.cluster
import sklearn.manifold
import sklearn.mixture  # noqa: F401
from numpy.typing import NDArray

from scrlm_dask.kernels.evaluation.metrics import contingency, scores, with_outlier_cluster
from scrlm_dask.paper import framework
from scrlm_dask.paper.baselines import METHODS, find_missing_requirement
from scrlm_dask.paper.charts import Chart, Line, draw_charts, mean_line
from scrlm_dask.paper.trials import Setting, scrlm_labels
from scrlm_dask.text import one_line

NAME = "methods"
RHO, OUTLIERS = 0.5, 0.5
SCRLM = "SCRLM"
SHOWN = {  # the paper's names of the baselines
    "td": "TD",
    "spectral": "SC",
    "em": "EM",
    "k-means++": "k-means++",
    "t-sne+k-means++": "t-SNE + k-means++",
    "complete-linkage": "CL",
}


@dataclass(frozen=True)
class MethodGrid:
    """The values of m, p and N where they are fixed, and the axes where they are not."""

    runs: int
    n_clusters: int
    n_features: int
    n_rows: int
    clusters: tuple[int, ...]
    features: tuple[int, ...]
    rows: tuple[int, ...]


METHOD_GRIDS: dict[framework.Size, MethodGrid] = {
    "smoke": MethodGrid(2, 4, 128, 300, (2, 4), (128, 256), (200, 300)),
    "small": MethodGrid(
        10,
        5,
        256,
        1000,
        (2, 5, 10, 20, 40),
        framework.doubling(128, 1024),
        (250, 500, 1000, 2000, 4000),
    ),
    "paper": MethodGrid(
        100,
        10,
        1024,
        5000,
        (2, 5, 10, 20, 50),
        framework.doubling(128, 4096),
        (500, 1000, 2000, 5000, 10_000),
    ),
}


@dataclass(frozen=True)
class MethodCell:
    """A number of draws of a setting, clustered by one method."""

    setting: Setting
    method: str
    runs: int

    @property
    def n_rows(self) -> int:
        return self.runs * self.setting.n_rows


def define_methods(size: framework.Size, grid: MethodGrid | None = None) -> framework.Experiment:
    grid = grid or METHOD_GRIDS[size]
    panels = _panels(grid)
    settings = dict.fromkeys(setting for panel in panels.values() for setting in panel.values())
    names = [SCRLM, *(name for name in SHOWN if find_missing_requirement(name) is None)]
    cells = [MethodCell(setting, name, grid.runs) for setting in settings for name in names]
    shape = {**asdict(grid), "methods": names}
    return framework.Experiment(
        NAME, shape, cells, measure_method, partial(_finish, panels, names, grid, size)
    )


def _panels(grid: MethodGrid) -> dict[str, dict[int, Setting]]:
    def setting(m: int, p: int, N: int) -> Setting:
        return Setting(N, p, m, N, OUTLIERS)

    m, p, N = grid.n_clusters, grid.n_features, grid.n_rows
    return {
        "m": {x: setting(x, p, N) for x in grid.clusters},
        "p": {x: setting(m, x, N) for x in grid.features},
        "N": {x: setting(m, p, x) for x in grid.rows},
    }


def measure_method(cell: MethodCell) -> framework.Result:
    accuracies, seconds = [], []
    for number in range(cell.runs):
        drawn = cell.setting.draw(framework.seed_for(asdict(cell.setting), number))
        begin = time.thread_time()
        try:
            labels = _labels(cell, drawn.features, number)
        except Exception as error:  # any error of a library; the other methods continue
            if cell.method == SCRLM:
                raise
            return {"accuracies": [], "seconds": [], "reason": one_line(error)}
        seconds.append(time.thread_time() - begin)
        accuracies.append(_accuracy(cell, drawn.labels, labels))
    return {"accuracies": accuracies, "seconds": seconds}


def _labels(cell: MethodCell, rows: NDArray[np.float32], seed: int) -> NDArray[Any]:
    if cell.method == SCRLM:
        return scrlm_labels(rows, RHO, seed)
    return METHODS[cell.method].fit(rows, cell.setting.n_clusters + 1, seed)


def _accuracy(cell: MethodCell, truth: NDArray[np.int32], labels: NDArray[Any]) -> float:
    """Return the accuracy; the cluster of a baseline that fits the outliers best is theirs."""
    table = contingency(truth, labels)
    return scores(table if cell.method == SCRLM else with_outlier_cluster(table)).accuracy


def _finish(
    panels: dict[str, dict[int, Setting]],
    names: list[str],
    grid: MethodGrid,
    size: framework.Size,
    results: Mapping[Any, framework.Result],
) -> framework.ExperimentResult:
    def accuracies(setting: Setting, name: str) -> list[float]:
        found: list[float] = results[MethodCell(setting, name, grid.runs)]["accuracies"]
        return found

    charts = tuple(
        Chart(
            f"{letter}) accuracy vs {axis}",
            f"{_WORDS[axis]} {axis}",
            "accuracy (%)",
            tuple(line for name in names if (line := _line(name, columns, accuracies)).x),
        )
        for letter, (axis, columns) in zip("abc", panels.items(), strict=True)
    )
    settings = list(dict.fromkeys(s for columns in panels.values() for s in columns.values()))
    ranked = sorted(
        (_standing(name, settings, accuracies) for name in names),
        key=lambda s: -(s["mean_accuracy"] or 0.0),
    )
    fixed = f"m = {grid.n_clusters}, p = {grid.n_features:,}, N = {grid.n_rows:,} where fixed"
    what = f"{size}: 50 % outliers, {grid.runs} draws a cell; {fixed}"
    return framework.ExperimentResult(
        _rows(panels, names, grid, results),
        {"runs": grid.runs, "cells_a_method": len(settings), "methods": ranked},
        (_table(panels, names, accuracies), _standings(ranked, len(settings))),
        lambda: {"methods.png": draw_charts(charts, f"Accuracy ({what})")},
        (*_doubts(ranked), *_failures(results)),
    )


_WORDS = {"m": "clusters", "p": "features", "N": "rows"}


def _line(name: str, columns: dict[int, Setting], accuracies: Any) -> Line:
    found = {x: accuracies(setting, name) for x, setting in columns.items()}
    percent = {float(x): [100 * a for a in values] for x, values in found.items() if values}
    return mean_line(SHOWN.get(name, name), percent)


def _standing(name: str, settings: list[Setting], accuracies: Any) -> dict[str, Any]:
    """Return the scores of a method over the cells that did not fail."""
    found = [values for setting in settings if (values := accuracies(setting, name))]
    runs = [value for values in found for value in values]
    return {
        "method": SHOWN.get(name, name),
        "mean_accuracy": _mean(runs),
        "worst_run": min(runs, default=None),
        "perfect_cells": sum(min(values) == 1.0 for values in found),
        "failed_cells": len(settings) - len(found),
    }


def _doubts(ranked: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return what differs from the paper."""
    return tuple(
        f"{found['method']} is not at 100 % in all runs (worst {100 * found['worst_run']:.2f} %), "
        "as it is in the paper"
        for found in ranked
        if found["method"] in (SCRLM, "TD") and found["worst_run"] not in (None, 1.0)
    )


def _failures(results: Mapping[Any, framework.Result]) -> list[str]:
    """Return why cells failed; cells of earlier versions have no reason."""
    return [
        f"{SHOWN[cell.method]} failed at m = {cell.setting.n_clusters}, "
        f"p = {cell.setting.n_features:,}, N = {cell.setting.n_rows:,}: {found['reason']}"
        for cell, found in results.items()
        if found.get("reason")
    ]


def _rows(
    panels: dict[str, dict[int, Setting]],
    names: list[str],
    grid: MethodGrid,
    results: Mapping[Any, framework.Result],
) -> list[dict[str, Any]]:
    rows = []
    for axis, columns in panels.items():
        for setting in columns.values():
            for name in names:
                found = results[MethodCell(setting, name, grid.runs)]
                pairs = zip(found["accuracies"], found["seconds"], strict=True)
                for run, (accuracy, seconds) in enumerate(pairs):
                    rows.append(
                        {
                            "panel": f"accuracy vs {axis}",
                            **asdict(setting),
                            "method": SHOWN.get(name, name),
                            "run": run,
                            "accuracy": accuracy,
                            "cpu_seconds": seconds,
                        }
                    )
    return rows


def _table(
    panels: dict[str, dict[int, Setting]], names: list[str], accuracies: Any
) -> framework.Table:
    """Return a table with a line per setting and a column per method."""
    lines = tuple(
        (f"{axis}={x:,}", *(_percent(_mean(accuracies(setting, name)), 1) for name in names))
        for axis, some in panels.items()
        for x, setting in some.items()
    )
    header = ("accuracy %", *(SHOWN.get(name, name) for name in names))
    return framework.Table("Accuracy with 50 % outliers, mean over draws", header, lines)


def _mean(values: list[float]) -> float | None:
    return fmean(values) if values else None


def _percent(value: float | None, digits: int) -> str:
    return framework.NOT_RUN if value is None else f"{100 * value:.{digits}f}"


def _standings(ranked: list[dict[str, Any]], n_cells: int) -> framework.Table:
    lines = tuple(
        (
            found["method"],
            _percent(found["mean_accuracy"], 2),
            _percent(found["worst_run"], 2),
            f"{found['perfect_cells']} of {n_cells}",
        )
        for found in ranked
    )
    return framework.Table("Order", ("method", "mean %", "worst run %", "cells at 100 %"), lines)
