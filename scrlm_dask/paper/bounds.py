"""How tight the bounds of Corollary 7 are, each by itself: the paper's Figure 4.

A panel shows the bound on one number alone, as the paper does. What the corollary promises asks for
all of its bounds at once, which at small sizes some panels never meet.
Without outliers, sigmas from 1/16 to 1/4, rho 0.5; success is 100 % accuracy in 99 % of the runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from scrlm_dask.kernels.scrlm.theory import features_for_clusters, features_for_rows, required_sizes
from scrlm_dask.paper.charts import (
    Limit,
    Panel,
    Point,
    Tightness,
    broken_promises,
    limits,
    region_figure,
    tightness,
)
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

NAME = "bounds"
RHO = 0.5
FEW_CLUSTERS = 3  # m where p is drawn against N
# of the paper, by panel: factor by which the bound asks for more than was needed
PAPER = {"p vs N": "over 64", "n vs m": "about 1.2", "p vs m": "over 32", "N vs m": "about 1"}
NO_FEWER_ROWS = "N vs m: the factor cannot exceed 1, as N is at least n, of which the bound is made"


@dataclass(frozen=True)
class Grid:
    """The paper's N and p where they are fixed, and the axes where they are not."""

    runs: int
    n_rows: int
    n_features: int
    rows: tuple[int, ...]
    features: tuple[int, ...]
    clusters: tuple[int, ...]
    candidates: tuple[int, ...]


GRIDS: dict[Size, Grid] = {
    "smoke": Grid(
        runs=5,
        n_rows=512,
        n_features=128,
        rows=(32, 128, 512),
        features=(8, 16, 32, 64, 128, 512, 4096),
        clusters=(2, 4, 8),
        candidates=steps(8, 256, 2**0.5),
    ),
    "small": Grid(
        runs=100,
        n_rows=2000,
        n_features=256,
        rows=doubling(32, 4096),
        features=steps(4, 128, 2**0.5) + doubling(256, 4096),
        clusters=doubling(2, 64),
        candidates=steps(8, 2000, 2**0.25),
    ),
    "paper": Grid(
        runs=100,
        n_rows=20_000,
        n_features=3700,
        rows=doubling(32, 32_768),
        features=steps(4, 4096, 2**0.5),
        clusters=doubling(2, 256),
        candidates=steps(8, 4096, 2**0.25),
    ),
}


@dataclass(frozen=True)
class _Place:
    """Where a cell stands in a panel; without a cell, where none can be."""

    x: int
    y: int
    cell: TrialCell | None
    inside: bool  # the bound on y alone

    @property
    def promised(self) -> bool:
        """By all of Corollary 7, where the others of N, p and n are large enough, too."""
        return self.cell is not None and is_promised(self.cell.setting)


@dataclass(frozen=True)
class _Plan:
    """A panel before it is measured."""

    name: str
    title: str
    labels: tuple[str, str]
    places: tuple[_Place, ...]
    bound: dict[float, float]


def bounds(size: Size, grid: Grid | None = None) -> Experiment:
    grid = grid or GRIDS[size]
    plans = _plans(grid)
    cells = {place.cell: None for plan in plans for place in plan.places if place.cell is not None}
    return Experiment(NAME, asdict(grid), list(cells), measure, partial(_finish, plans, grid, size))


def measure(cell: TrialCell) -> Result:
    return {"tallies": [asdict(tally) for tally in count_failures(cell)]}


def _plans(grid: Grid) -> tuple[_Plan, ...]:
    N, p, few = grid.n_rows, grid.n_features, FEW_CLUSTERS
    return (
        _plan(
            "p vs N",
            f"a) p vs N (m = {few})",
            ("rows N", "features p"),
            [(x, y, (x, y, few, _candidates(few))) for x in grid.rows for y in grid.features],
            {x: features_for_rows(x) for x in grid.rows},
            grid.runs,
        ),
        _plan(
            "n vs m",
            f"b) n vs m (N = {N:,}, p = {p:,})",
            ("clusters m", "candidates n"),
            [(x, y, (N, p, x, y)) for x in grid.clusters for y in grid.candidates],
            {x: required_sizes(x).n_candidates - 1 for x in grid.clusters},
            grid.runs,
        ),
        _plan(
            "p vs m",
            f"c) p vs m (N = {N:,})",
            ("clusters m", "features p"),
            [(x, y, (N, y, x, _candidates(x))) for x in grid.clusters for y in grid.features],
            {x: features_for_clusters(x) for x in grid.clusters},
            grid.runs,
        ),
        _plan(
            "N vs m",
            f"d) N vs m (p = {p:,})",
            ("clusters m", "rows N"),
            [(x, y, (y, p, x, _candidates(x))) for x in grid.clusters for y in grid.candidates],
            {x: required_sizes(x).n_rows - 1 for x in grid.clusters},
            grid.runs,
        ),
    )


def _candidates(n_clusters: int) -> int:
    return required_sizes(n_clusters).n_candidates


def _plan(
    name: str,
    title: str,
    labels: tuple[str, str],
    points: list[tuple[int, int, tuple[int, int, int, int]]],
    bound: dict[float, float],
    runs: int,
) -> _Plan:
    """`points` are x, y and the setting's N, p, m and n, which must not be more than N."""
    places = [
        _Place(
            x,
            y,
            TrialCell(Setting(*setting), (RHO,), runs) if setting[3] <= setting[0] else None,
            y > bound[x],
        )
        for x, y, setting in points
    ]
    return _Plan(name, title, labels, tuple(places), bound)


def _finish(
    plans: tuple[_Plan, ...], grid: Grid, size: Size, results: Mapping[Any, Result]
) -> ExperimentResult:
    panels = [_panel(plan, grid, results) for plan in plans]
    found = {panel.name: limits(panel) for panel in panels}
    broken = {panel.name: len(broken_promises(panel)) for panel in panels}
    summary = {
        "success": "100 % accuracy in at least 99 % of the runs of a cell",
        "runs": grid.runs,
        "bounds": "a panel's is that on one number alone; promised is what all of them allow",
        "panels": {name: _summary(name, found[name], broken[name]) for name in found},
    }
    lines = tuple(_line(name, found[name], broken[name]) for name in found)
    header = (
        "panel",
        "bound on y alone",
        "observed",
        "factor",
        "columns",
        "paper",
        "promised but failed",
    )
    what = f"{size}: {grid.runs} runs a cell, rho {RHO:g}"
    return ExperimentResult(
        [row for plan in plans for row in _rows(plan, results)],
        summary,
        (Table("Bounds of Corollary 7 against what was enough", header, lines),),
        lambda: {"bounds.png": region_figure(panels, f"Success regions ({what})")},
        (NO_FEWER_ROWS,),
    )


def _tally(place: _Place, results: Mapping[Any, Result]) -> Tally | None:
    return None if place.cell is None else Tally(**results[place.cell]["tallies"][0])


def _panel(plan: _Plan, grid: Grid, results: Mapping[Any, Result]) -> Panel:
    points = []
    for place in plan.places:
        tally = _tally(place, results)
        success = None if tally is None else is_success(tally, grid.runs)
        points.append(Point(place.x, place.y, success, place.inside, place.promised))
    return Panel(plan.name, plan.title, *plan.labels, tuple(points), (plan.bound,))


def _rows(plan: _Plan, results: Mapping[Any, Result]) -> list[dict[str, Any]]:
    rows = []
    for place in plan.places:
        tally = _tally(place, results)
        if place.cell is None or tally is None:
            continue
        rows.append(
            {
                "panel": plan.name,
                **asdict(place.cell.setting),
                "rho": RHO,
                **asdict(tally),
                "success": is_success(tally, place.cell.runs),
                "inside_bound": place.inside,
                "promised": place.promised,
            }
        )
    return rows


def _summary(name: str, found: list[Limit], broken: int) -> dict[str, Any]:
    factor = tightness(found)
    return {
        "bound": f"the bound on {name.split()[0]} alone",
        "limits": [{**asdict(limit), "factor": limit.factor} for limit in found],
        "factor": None if factor is None else asdict(factor),
        "paper_factor": PAPER[name],
        "promised_but_failed": broken,
    }


def _line(name: str, found: list[Limit], broken: int) -> tuple[str, ...]:
    observed = [limit.observed for limit in found if limit.observed is not None]
    return (
        name,
        _range([limit.theory for limit in found]),
        _range(observed) if observed else "none",
        _factor(tightness(found)),
        f"{len(observed)} of {len(found)}",
        PAPER[name],
        str(broken),
    )


def _range(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"


def _factor(found: Tightness | None) -> str:
    if found is None:
        return "-"
    middle, least, most = (
        f"{'>=' if found.is_at_least(value) else ''}{value:.3g}"
        for value in (found.median, found.least, found.most)
    )
    return f"{middle} ({least} to {most})"
