"""For which bandwidths SCRLM is right: the paper's Figure 5.

Sigmas run from 1/16 to 1/4, so that theory asks for a rho from 0.25 up to sqrt(0.6). All bandwidths
of a column are tried on the same draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

from scrlm_dask.kernels.scrlm.theory import MOST_RHO, required_sizes
from scrlm_dask.paper.charts import Panel, Point, Stretch, region_figure, widest_stretch
from scrlm_dask.paper.framework import (
    Experiment,
    ExperimentResult,
    Result,
    Size,
    Table,
    doubling,
    steps,
)
from scrlm_dask.paper.trials import (
    Setting,
    Tally,
    TrialCell,
    count_failures,
    is_promised,
    is_success,
)

NAME = "bandwidth"
SIGMA_MAX = 0.25
FEW_CLUSTERS, FEW_ROWS = 3, 32
PAPER_FEATURES = 4200  # of the paper's panel d, alone
PAPER_LOWER, PAPER_UPPER = "within 0.02", "more than 0.1 above"


@dataclass(frozen=True)
class Grid:
    """The paper's N and p where they are fixed, the axes where they are not, and rho."""

    runs: int
    n_rows: int
    n_features: int
    rows: tuple[int, ...]
    features: tuple[int, ...]
    clusters: tuple[int, ...]
    candidates: tuple[int, ...]
    rhos: tuple[float, ...]


def _rhos(step: float, first: float = 0.15, last: float = 1.0) -> tuple[float, ...]:
    return tuple(round(first + k * step, 4) for k in range(round((last - first) / step) + 1))


GRIDS: dict[Size, Grid] = {
    "smoke": Grid(
        runs=5,
        n_rows=512,
        n_features=1024,
        rows=(32, 128, 512),
        features=(32, 128, 512, 2048),
        clusters=(2, 4, 8),
        candidates=(4, 8, 16, 32),
        rhos=_rhos(0.025),
    ),
    "small": Grid(
        runs=100,
        n_rows=1000,
        n_features=3700,
        rows=doubling(32, 1024),
        features=doubling(16, 4096),
        clusters=doubling(2, 32),
        candidates=steps(4, 128, 2**0.5),
        rhos=_rhos(0.01),
    ),
    "paper": Grid(
        runs=100,
        n_rows=20_000,
        n_features=3700,
        rows=doubling(32, 32_768),
        features=steps(16, 4096, 2**0.5),
        clusters=doubling(2, 256),
        candidates=steps(4, 512, 2**0.5),
        rhos=_rhos(0.01),
    ),
}


@dataclass(frozen=True)
class _Plan:
    """A panel before it is measured: a cell a column."""

    name: str
    title: str
    x_label: str
    columns: dict[int, TrialCell]


def bandwidth(size: Size, grid: Grid | None = None) -> Experiment:
    grid = grid or GRIDS[size]
    plans = _plans(grid, PAPER_FEATURES if size == "paper" else grid.n_features)
    cells = {cell: None for plan in plans for cell in plan.columns.values()}
    return Experiment(NAME, asdict(grid), list(cells), measure, partial(_finish, plans, grid, size))


def measure(cell: TrialCell) -> Result:
    return {"tallies": [asdict(tally) for tally in count_failures(cell)]}


def _plans(grid: Grid, last_features: int) -> tuple[_Plan, ...]:
    """`last_features` is p of the last panel."""
    N, p, few = grid.n_rows, grid.n_features, FEW_CLUSTERS
    n = required_sizes(few).n_candidates

    def cell(*setting: int) -> TrialCell:
        return TrialCell(Setting(*setting), grid.rhos, grid.runs)

    return (
        _Plan(
            "rho vs N",
            f"a) rho vs N (m = {few}, p = {p:,})",
            "rows N",
            {x: cell(x, p, few, n) for x in grid.rows},
        ),
        _Plan(
            "rho vs p",
            f"b) rho vs p (N = {FEW_ROWS}, m = {few})",
            "features p",
            {x: cell(FEW_ROWS, x, few, n) for x in grid.features},
        ),
        _Plan(
            "rho vs m",
            f"c) rho vs m (N = {N:,}, p = {p:,})",
            "clusters m",
            {x: cell(N, p, x, required_sizes(x).n_candidates) for x in grid.clusters},
        ),
        _Plan(
            "rho vs n",
            f"d) rho vs n (N = {N:,}, p = {last_features:,}, m = {few})",
            "candidates n",
            {x: cell(N, last_features, few, x) for x in grid.candidates},
        ),
    )


def _panel(plan: _Plan, results: Mapping[Any, Result]) -> Panel:
    points = [
        Point(
            x,
            rho,
            is_success(Tally(**tally), cell.runs),
            inside=_is_inside(rho),
            promised=_is_inside(rho) and is_promised(cell.setting),
        )
        for x, cell in plan.columns.items()
        for rho, tally in zip(cell.rhos, results[cell]["tallies"], strict=True)
    ]
    lines = tuple({float(x): bound for x in plan.columns} for bound in (SIGMA_MAX, MOST_RHO))
    return Panel(plan.name, plan.title, plan.x_label, "rho", tuple(points), lines, log_y=False)


def _is_inside(rho: float) -> bool:
    return SIGMA_MAX <= rho < MOST_RHO


def _finish(
    plans: tuple[_Plan, ...], grid: Grid, size: Size, results: Mapping[Any, Result]
) -> ExperimentResult:
    panels = [_panel(plan, results) for plan in plans]
    found = {panel.name: _stretches(panel) for panel in panels}
    summary = {
        "sigma_max": SIGMA_MAX,
        "most_rho": MOST_RHO,
        "rho_step": round(grid.rhos[1] - grid.rhos[0], 4),
        "runs": grid.runs,
        "panels": {name: _summary(stretches) for name, stretches in found.items()},
        "paper": {"lower": PAPER_LOWER, "upper": PAPER_UPPER},
    }
    header = ("panel", "columns", "lower", "to sigma_max", "upper", "to sqrt(0.6)", "at the last")
    lines = tuple(_line(panel, found[panel.name]) for panel in panels)
    title = f"Limits of rho (median over columns); paper: lower {PAPER_LOWER}, upper {PAPER_UPPER}"
    what = f"{size}: {grid.runs} runs a column, sigma_max {SIGMA_MAX:g}"
    return ExperimentResult(
        [row for plan in plans for row in _rows(plan, results)],
        summary,
        (Table(title, header, lines),),
        lambda: {"bandwidth.png": region_figure(panels, f"Bandwidths that succeed ({what})")},
    )


def _stretches(panel: Panel) -> list[Stretch]:
    found = (widest_stretch(panel.column(x)) for x in panel.xs)
    return [stretch for stretch in found if stretch is not None]


def _summary(stretches: list[Stretch]) -> dict[str, Any]:
    if not stretches:
        return {"columns": []}
    lower, upper = median(s.low for s in stretches), median(s.high for s in stretches)
    return {
        "columns": [asdict(stretch) for stretch in stretches],
        "lower": lower,
        "lower_minus_sigma_max": round(lower - SIGMA_MAX, 4),
        "upper": upper,
        "upper_minus_most_rho": round(upper - MOST_RHO, 4),
    }


def _line(panel: Panel, stretches: list[Stretch]) -> tuple[str, ...]:
    columns = f"{len(stretches)} of {len(panel.xs)}"
    if not stretches:
        return (panel.name, columns, "-", "-", "-", "-", "-")
    found, last = _summary(stretches), stretches[-1]
    return (
        panel.name,
        columns,
        f"{found['lower']:.3f}",
        f"{found['lower_minus_sigma_max']:+.3f}",
        f"{found['upper']:.3f}",
        f"{found['upper_minus_most_rho']:+.3f}",
        f"{last.low:.3f} to {last.high:.3f}",
    )


def _rows(plan: _Plan, results: Mapping[Any, Result]) -> list[dict[str, Any]]:
    return [
        {
            "panel": plan.name,
            **asdict(cell.setting),
            "rho": rho,
            **tally,
            "success": is_success(Tally(**tally), cell.runs),
        }
        for cell in plan.columns.values()
        for rho, tally in zip(cell.rhos, results[cell]["tallies"], strict=True)
    ]
