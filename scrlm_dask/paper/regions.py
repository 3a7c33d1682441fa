"""Compare the regions in which SCRLM succeeds with the paper's theory: Figures 4 and 5.

`bounds` measures how tight each bound of Corollary 7 is, at rho 0.5. The corollary guarantees
success only if all of its bounds hold; at small sizes, some panels contain no such cell.
`bandwidth` measures for which rho SCRLM succeeds; the theory requires a rho from sigma_max to
sqrt(0.6). All bandwidths of a column use the same draws.

Mixtures have no outliers and sigmas from 1/16 to 1/4. Success means 100 % accuracy in at least
99 % of the runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from statistics import median
from typing import Any

from scrlm_dask.kernels.scrlm import theory
from scrlm_dask.paper import charts, framework, trials
from scrlm_dask.paper.charts import Limit, Panel, Point, Stretch, Tightness
from scrlm_dask.paper.trials import Setting, TrialCell

RHO, SIGMA_MAX = 0.5, 0.25
FEW_CLUSTERS, FEW_ROWS = 3, 32  # m and N in panels that vary other numbers
PAPER_FEATURES = 4200  # p in the paper's last panel of `bandwidth`
# The factor by which the bound exceeds the observed requirement in the paper, by panel.
PAPER_FACTORS = {
    "p vs N": "over 64",
    "n vs m": "about 1.2",
    "p vs m": "over 32",
    "N vs m": "about 1",
}
PAPER_LOWER, PAPER_UPPER = "within 0.02", "more than 0.1 above"
NO_FEWER_ROWS = (
    "N vs m: the factor cannot exceed 1, because the bound on N is n, and n candidates require at "
    "least n rows"
)


_Results = Mapping[Any, framework.Result]
_Summarize = Callable[
    [Sequence[Panel], Any, framework.Size, list[dict[str, Any]]], framework.ExperimentResult
]


@dataclass(frozen=True)
class RegionGrid:
    """Settings of the experiment `bounds`.

    `n_rows` and `n_features` are N and p where they are fixed. The other fields are the values of
    each number where it is varied, and `runs` is the number of runs per cell.
    """

    runs: int
    n_rows: int
    n_features: int
    rows: tuple[int, ...]
    features: tuple[int, ...]
    clusters: tuple[int, ...]
    candidates: tuple[int, ...]


@dataclass(frozen=True)
class BandwidthGrid(RegionGrid):
    """Settings of the experiment `bandwidth`: a region grid, and the bandwidths of each column."""

    rhos: tuple[float, ...]


def _rhos(step: float, first: float = 0.15, last: float = 1.0) -> tuple[float, ...]:
    return tuple(round(first + k * step, 4) for k in range(round((last - first) / step) + 1))


BOUNDS_GRIDS: dict[framework.Size, RegionGrid] = {
    "smoke": RegionGrid(
        runs=5,
        n_rows=512,
        n_features=128,
        rows=(32, 128, 512),
        features=(8, 16, 32, 64, 128, 512, 4096),
        clusters=(2, 4, 8),
        candidates=framework.steps(8, 256, 2**0.5),
    ),
    "small": RegionGrid(
        runs=100,
        n_rows=2000,
        n_features=256,
        rows=framework.doubling(32, 4096),
        features=framework.steps(4, 128, 2**0.5) + framework.doubling(256, 4096),
        clusters=framework.doubling(2, 64),
        candidates=framework.steps(8, 2000, 2**0.25),
    ),
    "paper": RegionGrid(
        runs=100,
        n_rows=20_000,
        n_features=3700,
        rows=framework.doubling(32, 32_768),
        features=framework.steps(4, 4096, 2**0.5),
        clusters=framework.doubling(2, 256),
        candidates=framework.steps(8, 4096, 2**0.25),
    ),
}
BANDWIDTH_GRIDS: dict[framework.Size, BandwidthGrid] = {
    "smoke": BandwidthGrid(
        runs=5,
        n_rows=512,
        n_features=1024,
        rows=(32, 128, 512),
        features=(32, 128, 512, 2048),
        clusters=(2, 4, 8),
        candidates=(4, 8, 16, 32),
        rhos=_rhos(0.025),
    ),
    "small": BandwidthGrid(
        runs=100,
        n_rows=1000,
        n_features=3700,
        rows=framework.doubling(32, 1024),
        features=framework.doubling(16, 4096),
        clusters=framework.doubling(2, 32),
        candidates=framework.steps(4, 128, 2**0.5),
        rhos=_rhos(0.01),
    ),
    "paper": BandwidthGrid(
        runs=100,
        n_rows=20_000,
        n_features=3700,
        rows=framework.doubling(32, 32_768),
        features=framework.steps(16, 4096, 2**0.5),
        clusters=framework.doubling(2, 256),
        candidates=framework.steps(4, 512, 2**0.5),
        rhos=_rhos(0.01),
    ),
}


@dataclass(frozen=True)
class _Place:
    """A point of a panel, its cell, and the index of its bandwidth in the cell."""

    x: int
    y: float
    inside: bool  # whether y satisfies the panel's bounds
    cell: TrialCell | None  # None if there are fewer rows than candidates
    number: int = 0

    @property
    def promised(self) -> bool:
        """Return whether all bounds of Corollary 7 hold, including those on rho."""
        if self.cell is None:
            return False
        return _is_inside(self.cell.rhos[self.number]) and trials.is_promised(self.cell.setting)

    def tally(self, results: _Results) -> trials.Tally:
        return trials.Tally(**results[self.cell]["tallies"][self.number])

    def point(self, results: _Results) -> Point:
        success = None
        if self.cell is not None:
            success = trials.is_success(self.tally(results), self.cell.runs)
        return Point(self.x, self.y, success, self.inside, self.promised)


@dataclass(frozen=True)
class _Plan:
    """A panel without its results."""

    name: str
    title: str
    labels: tuple[str, str]
    places: tuple[_Place, ...]
    bounds: tuple[dict[float, float], ...]
    log_y: bool = True

    def panel(self, results: _Results) -> Panel:
        points = tuple(place.point(results) for place in self.places)
        return Panel(self.name, self.title, *self.labels, points, self.bounds, self.log_y)

    def rows(self, results: _Results, with_bounds: bool) -> list[dict[str, Any]]:
        """Return one row of the results table per point that was run."""
        rows = []
        for place, point in zip(self.places, self.panel(results).points, strict=True):
            if place.cell is not None:
                rho, setting = place.cell.rhos[place.number], place.cell.setting
                row = {"panel": self.name, **asdict(setting), "rho": rho}
                row |= {**asdict(place.tally(results)), "success": point.success}
                if with_bounds:
                    row |= {"inside_bound": point.inside, "promised": point.promised}
                rows.append(row)
        return rows


def define_bounds(size: framework.Size, grid: RegionGrid | None = None) -> framework.Experiment:
    """Return the experiment of Figure 4."""
    grid = grid or BOUNDS_GRIDS[size]
    return _define("bounds", size, grid, _bounds_plans(grid), _summarize_bounds)


def define_bandwidth(
    size: framework.Size, grid: BandwidthGrid | None = None
) -> framework.Experiment:
    """Return the experiment of Figure 5."""
    grid = grid or BANDWIDTH_GRIDS[size]
    plans = _bandwidth_plans(grid, PAPER_FEATURES if size == "paper" else grid.n_features)
    return _define("bandwidth", size, grid, plans, _summarize_bandwidth)


def _define(
    name: str, size: framework.Size, grid: RegionGrid, plans: Sequence[_Plan], summarize: _Summarize
) -> framework.Experiment:
    places = [place for plan in plans for place in plan.places]
    cells = list(dict.fromkeys(place.cell for place in places if place.cell is not None))

    def finish(results: _Results) -> framework.ExperimentResult:
        rows = [row for plan in plans for row in plan.rows(results, name == "bounds")]
        return summarize([plan.panel(results) for plan in plans], grid, size, rows)

    return framework.Experiment(name, asdict(grid), cells, measure_trials, finish)


def measure_trials(cell: TrialCell) -> framework.Result:
    """Return the tally of each bandwidth of a cell."""
    return {"tallies": [asdict(tally) for tally in trials.count_failures(cell)]}


def _candidates(n_clusters: int) -> int:
    return theory.required_sizes(n_clusters).n_candidates


def _bounds_plans(grid: RegionGrid) -> tuple[_Plan, ...]:
    N, p, few, n = grid.n_rows, grid.n_features, FEW_CLUSTERS, _candidates(FEW_CLUSTERS)
    n_of = {x: _candidates(x) for x in grid.clusters}

    def plan(
        title: str,
        labels: tuple[str, str],
        settings: dict[tuple[int, int], Setting],  # by x and y
        bound: dict[float, float],
    ) -> _Plan:
        places = []
        for (x, y), setting in settings.items():
            possible = setting.n_candidates <= setting.n_rows
            cell = TrialCell(setting, (RHO,), grid.runs) if possible else None
            places.append(_Place(x, y, y > bound[x], cell))
        return _Plan(title[3:9], title, labels, tuple(places), (bound,))

    return (
        plan(
            f"a) p vs N (m = {few})",
            ("rows N", "features p"),
            {(x, y): Setting(x, y, few, n) for x, y in product(grid.rows, grid.features)},
            {x: theory.features_for_rows(x) for x in grid.rows},
        ),
        plan(
            f"b) n vs m (N = {N:,}, p = {p:,})",
            ("clusters m", "candidates n"),
            {(x, y): Setting(N, p, x, y) for x, y in product(grid.clusters, grid.candidates)},
            {x: n_of[x] - 1 for x in grid.clusters},
        ),
        plan(
            f"c) p vs m (N = {N:,})",
            ("clusters m", "features p"),
            {(x, y): Setting(N, y, x, n_of[x]) for x, y in product(grid.clusters, grid.features)},
            {x: theory.features_for_clusters(x) for x in grid.clusters},
        ),
        plan(
            f"d) N vs m (p = {p:,})",
            ("clusters m", "rows N"),
            {(x, y): Setting(y, p, x, n_of[x]) for x, y in product(grid.clusters, grid.candidates)},
            {x: theory.required_sizes(x).n_rows - 1 for x in grid.clusters},
        ),
    )


def _bandwidth_plans(grid: BandwidthGrid, last_features: int) -> tuple[_Plan, ...]:
    """Return the four panels; `last_features` is p in the last panel."""
    N, p, few, n = grid.n_rows, grid.n_features, FEW_CLUSTERS, _candidates(FEW_CLUSTERS)

    def plan(title: str, x_label: str, settings: dict[int, Setting]) -> _Plan:
        cells = {x: TrialCell(setting, grid.rhos, grid.runs) for x, setting in settings.items()}
        places = tuple(
            _Place(x, rho, _is_inside(rho), cell, number)
            for x, cell in cells.items()
            for number, rho in enumerate(grid.rhos)
        )
        lines = tuple({float(x): bound for x in cells} for bound in (SIGMA_MAX, theory.MOST_RHO))
        return _Plan(title[3:11], title, (x_label, "rho"), places, lines, log_y=False)

    return (
        plan(
            f"a) rho vs N (m = {few}, p = {p:,})",
            "rows N",
            {x: Setting(x, p, few, n) for x in grid.rows},
        ),
        plan(
            f"b) rho vs p (N = {FEW_ROWS}, m = {few})",
            "features p",
            {x: Setting(FEW_ROWS, x, few, n) for x in grid.features},
        ),
        plan(
            f"c) rho vs m (N = {N:,}, p = {p:,})",
            "clusters m",
            {x: Setting(N, p, x, _candidates(x)) for x in grid.clusters},
        ),
        plan(
            f"d) rho vs n (N = {N:,}, p = {last_features:,}, m = {few})",
            "candidates n",
            {x: Setting(N, last_features, few, x) for x in grid.candidates},
        ),
    )


def _is_inside(rho: float) -> bool:
    return SIGMA_MAX <= rho < theory.MOST_RHO


def _summarize_bounds(
    panels: Sequence[Panel], grid: RegionGrid, size: framework.Size, rows: list[dict[str, Any]]
) -> framework.ExperimentResult:
    found = {
        panel.name: (charts.find_limits(panel), len(charts.find_broken_promises(panel)))
        for panel in panels
    }
    summary = {
        "success": "100 % accuracy in at least 99 % of the runs of a cell",
        "runs": grid.runs,
        "bounds": "a panel shows only the bound on its y axis; promised means that all bounds hold",
        "panels": {name: _bound_summary(name, *known) for name, known in found.items()},
    }
    header = ("panel", "bound on y", "observed", "factor", "columns", "paper")
    lines = tuple(_bound_line(name, *known) for name, known in found.items())
    title = "Bounds of Corollary 7 and observed requirements"
    details = f"{size}: {grid.runs} runs per cell, rho {RHO:g}"
    return framework.ExperimentResult(
        rows,
        summary,
        (framework.Table(title, (*header, "promised but failed"), lines),),
        lambda: {"bounds.png": charts.draw_regions(panels, f"Success regions ({details})")},
        (NO_FEWER_ROWS,),
    )


def _bound_summary(name: str, limits: list[Limit], broken: int) -> dict[str, Any]:
    factor = charts.measure_tightness(limits)
    return {
        "bound": f"the bound on {name.split()[0]}",
        "limits": [{**asdict(limit), "factor": limit.factor} for limit in limits],
        "factor": None if factor is None else asdict(factor),
        "paper_factor": PAPER_FACTORS[name],
        "promised_but_failed": broken,
    }


def _bound_line(name: str, limits: list[Limit], broken: int) -> tuple[str, ...]:
    observed = [limit.observed for limit in limits if limit.observed is not None]
    return (
        name,
        _format_range([limit.theory for limit in limits]),
        _format_range(observed) if observed else "none",
        _format_factor(charts.measure_tightness(limits)),
        f"{len(observed)} of {len(limits)}",
        PAPER_FACTORS[name],
        str(broken),
    )


def _format_range(values: list[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"


def _format_factor(found: Tightness | None) -> str:
    if found is None:
        return framework.NOT_RUN
    middle, least, most = (
        f"{'>=' if found.is_at_least(value) else ''}{value:.3g}"
        for value in (found.median, found.least, found.most)
    )
    return f"{middle} ({least} to {most})"


def _summarize_bandwidth(
    panels: Sequence[Panel], grid: BandwidthGrid, size: framework.Size, rows: list[dict[str, Any]]
) -> framework.ExperimentResult:
    found = {panel.name: _stretches(panel) for panel in panels}
    summary = {
        "sigma_max": SIGMA_MAX,
        "most_rho": theory.MOST_RHO,
        "rho_step": round(grid.rhos[1] - grid.rhos[0], 4),
        "runs": grid.runs,
        "panels": {name: _rho_summary(stretches) for name, stretches in found.items()},
        "paper": {"lower": PAPER_LOWER, "upper": PAPER_UPPER},
    }
    header = (
        *("panel", "columns", "lower", "minus sigma_max"),
        *("upper", "minus sqrt(0.6)", "last column"),
    )
    lines = tuple(_rho_line(panel, found[panel.name]) for panel in panels)
    title = f"Limits of rho (median over columns); paper: lower {PAPER_LOWER}, upper {PAPER_UPPER}"
    details = f"{size}: {grid.runs} runs per column, sigma_max {SIGMA_MAX:g}"
    return framework.ExperimentResult(
        rows,
        summary,
        (framework.Table(title, header, lines),),
        lambda: {"bandwidth.png": charts.draw_regions(panels, f"Success by bandwidth ({details})")},
    )


def _stretches(panel: Panel) -> list[Stretch]:
    found = (charts.find_widest_stretch(panel.column(x)) for x in panel.xs)
    return [stretch for stretch in found if stretch is not None]


def _rho_summary(stretches: list[Stretch]) -> dict[str, Any]:
    if not stretches:
        return {"columns": []}
    lower, upper = median(s.low for s in stretches), median(s.high for s in stretches)
    return {
        "columns": [asdict(stretch) for stretch in stretches],
        "lower": lower,
        "lower_minus_sigma_max": round(lower - SIGMA_MAX, 4),
        "upper": upper,
        "upper_minus_most_rho": round(upper - theory.MOST_RHO, 4),
    }


def _rho_line(panel: Panel, stretches: list[Stretch]) -> tuple[str, ...]:
    columns = f"{len(stretches)} of {len(panel.xs)}"
    if not stretches:
        return (panel.name, columns, *[framework.NOT_RUN] * 5)
    found, last = _rho_summary(stretches), stretches[-1]
    return (
        panel.name,
        columns,
        f"{found['lower']:.3f}",
        f"{found['lower_minus_sigma_max']:+.3f}",
        f"{found['upper']:.3f}",
        f"{found['upper_minus_most_rho']:+.3f}",
        f"{last.low:.3f} to {last.high:.3f}",
    )
