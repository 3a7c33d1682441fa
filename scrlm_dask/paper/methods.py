"""Compare SCRLM with baselines on mixtures with 50 % outliers: the paper's Figure 6.

Baselines get m + 1 clusters, one of them for the outliers. SCRLM gets T = N and determines the
number of clusters itself. All methods get the same draws.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np

# Imported here, not in tasks: concurrent imports of scikit-learn in two threads can fail.
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
    """Settings of the experiment `methods`.

    Each panel varies one of m, p and N over `clusters`, `features` or `rows`, with the other two
    fixed to `n_clusters`, `n_features` or `n_rows`. `runs` is the number of draws per cell.
    """

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
        *(10, 5, 256, 1000, (2, 5, 10, 20, 40)),
        *(framework.doubling(128, 1024), (250, 500, 1000, 2000, 4000)),
    ),
    "paper": MethodGrid(
        *(100, 10, 1024, 5000, (2, 5, 10, 20, 50)),
        *(framework.doubling(128, 4096), (500, 1000, 2000, 5000, 10_000)),
    ),
}
_WORDS = {"m": "clusters", "p": "features", "N": "rows"}
_Panels = dict[str, dict[int, Setting]]  # setting by varied number (m, p or N) and its value
_Results = Mapping[Setting, framework.Result]  # results of one method


@dataclass(frozen=True)
class MethodCell:
    """A cell of the experiment: one method on `runs` random draws of one setting."""

    setting: Setting
    method: str
    runs: int

    @property
    def n_rows(self) -> int:
        """Number of rows, summed over all draws."""
        return self.runs * self.setting.n_rows


def define_methods(size: framework.Size, grid: MethodGrid | None = None) -> framework.Experiment:
    """Return the experiment of Figure 6."""
    grid = grid or METHOD_GRIDS[size]
    panels = _panels(grid)
    settings = dict.fromkeys(setting for panel in panels.values() for setting in panel.values())
    names = [SCRLM, *(name for name in SHOWN if find_missing_requirement(name) is None)]
    cells = [MethodCell(setting, name, grid.runs) for setting in settings for name in names]
    shape = {**asdict(grid), "methods": names}
    return framework.Experiment(
        NAME, shape, cells, measure_method, partial(_finish, panels, grid, size)
    )


def _panels(grid: MethodGrid) -> _Panels:
    def setting(m: int, p: int, N: int) -> Setting:
        return Setting(N, p, m, N, OUTLIERS)

    m, p, N = grid.n_clusters, grid.n_features, grid.n_rows
    return {
        "m": {x: setting(x, p, N) for x in grid.clusters},
        "p": {x: setting(m, x, N) for x in grid.features},
        "N": {x: setting(m, p, x) for x in grid.rows},
    }


def measure_method(cell: MethodCell) -> framework.Result:
    """Return accuracy and CPU seconds of each draw, or the reason why a baseline failed."""
    accuracies, seconds = [], []
    for number in range(cell.runs):
        drawn = cell.setting.draw(framework.seed_for(asdict(cell.setting), number))
        begin = time.thread_time()
        try:
            labels = _labels(cell, drawn.features, number)
        except Exception as error:  # libraries may raise anything; other methods must continue
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
    """Return the accuracy.

    A baseline cannot find outliers: its cluster that matches the true outliers best counts as
    outliers.
    """
    table = contingency(truth, labels)
    return scores(table if cell.method == SCRLM else with_outlier_cluster(table)).accuracy


def _finish(
    panels: _Panels,
    grid: MethodGrid,
    size: framework.Size,
    results: Mapping[MethodCell, framework.Result],
) -> framework.ExperimentResult:
    by_method: dict[str, dict[Setting, framework.Result]] = {}
    for cell, result in results.items():
        by_method.setdefault(SHOWN.get(cell.method, cell.method), {})[cell.setting] = result
    charts = tuple(
        Chart(
            f"{letter}) accuracy vs {axis}",
            f"{_WORDS[axis]} {axis}",
            "accuracy (%)",
            tuple(line for item in by_method.items() if (line := _line(*item, columns)).x),
        )
        for letter, (axis, columns) in zip("abc", panels.items(), strict=True)
    )
    ranked = sorted(
        (_standing(name, found) for name, found in by_method.items()),
        key=lambda s: -(s["mean_accuracy"] or 0.0),
    )
    n_cells = len({cell.setting for cell in results})
    fixed = f"m = {grid.n_clusters}, p = {grid.n_features:,}, N = {grid.n_rows:,} unless varied"
    title = f"Accuracy ({size}: 50 % outliers, {grid.runs} draws per cell; {fixed})"
    return framework.ExperimentResult(
        _rows(panels, by_method),
        {"runs": grid.runs, "cells_a_method": n_cells, "methods": ranked},
        (_table(panels, by_method), _standings(ranked, n_cells)),
        lambda: {"methods.png": draw_charts(charts, title)},
        (*_doubts(ranked), *_failures(results)),
    )


def _line(name: str, results: _Results, columns: dict[int, Setting]) -> Line:
    found = {x: results[setting]["accuracies"] for x, setting in columns.items()}
    percent = {float(x): [100 * a for a in values] for x, values in found.items() if values}
    return mean_line(name, percent)


def _standing(name: str, results: _Results) -> dict[str, Any]:
    """Return the scores of a method over all cells that did not fail."""
    found = [result["accuracies"] for result in results.values() if result["accuracies"]]
    runs = [value for values in found for value in values]
    return {
        "method": name,
        "mean_accuracy": _mean(runs),
        "worst_run": min(runs, default=None),
        "perfect_cells": sum(min(values) == 1.0 for values in found),
        "failed_cells": len(results) - len(found),
    }


def _doubts(ranked: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return notes on results that differ from the paper."""
    return tuple(
        f"{found['method']} does not reach 100 % in all runs (worst "
        f"{100 * found['worst_run']:.2f} %), unlike in the paper"
        for found in ranked
        if found["method"] in (SCRLM, "TD") and found["worst_run"] not in (None, 1.0)
    )


def _failures(results: Mapping[MethodCell, framework.Result]) -> list[str]:
    """Return why cells failed; results written by earlier versions contain no reason."""
    return [
        f"{SHOWN[cell.method]} failed at m = {cell.setting.n_clusters}, "
        f"p = {cell.setting.n_features:,}, N = {cell.setting.n_rows:,}: {found['reason']}"
        for cell, found in results.items()
        if found.get("reason")
    ]


def _rows(panels: _Panels, by_method: Mapping[str, _Results]) -> list[dict[str, Any]]:
    return [
        {
            "panel": f"accuracy vs {axis}",
            **asdict(setting),
            "method": name,
            "run": run,
            "accuracy": accuracy,
            "cpu_seconds": results[setting]["seconds"][run],
        }
        for axis, columns in panels.items()
        for setting in columns.values()
        for name, results in by_method.items()
        for run, accuracy in enumerate(results[setting]["accuracies"])
    ]


def _table(panels: _Panels, by_method: Mapping[str, _Results]) -> framework.Table:
    """Return a table with one line per setting and one column per method."""

    def means(setting: Setting) -> list[str]:
        return [_percent(_mean(found[setting]["accuracies"]), 1) for found in by_method.values()]

    lines = tuple(
        (f"{axis}={x:,}", *means(setting))
        for axis, columns in panels.items()
        for x, setting in columns.items()
    )
    header = ("accuracy %", *by_method)
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
    return framework.Table("Ranking", ("method", "mean %", "worst run %", "cells at 100 %"), lines)
