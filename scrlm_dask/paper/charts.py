"""Figures of the experiments: success regions with theoretical bounds, charts and pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import groupby, takewhile
from statistics import fmean, median, pstdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.reporting.plots import BLUE, GREY, ORANGE, STYLE, plain


@dataclass(frozen=True)
class Point:
    """One cell in the grid of a panel; `success` is None if the cell was not run."""

    x: float
    y: float
    success: bool | None
    inside: bool  # whether y satisfies the panel's bounds
    promised: bool  # whether all bounds of Corollary 7 hold, also on numbers other than y


@dataclass(frozen=True)
class Panel:
    """A grid of points (x, y) and the theoretical bounds on y at each x."""

    name: str
    title: str
    x_label: str
    y_label: str
    points: tuple[Point, ...]
    bounds: tuple[dict[float, float], ...]  # x -> bound on y; each is drawn as a line
    log_y: bool = True

    @property
    def xs(self) -> list[float]:
        """Distinct values of x, ascending."""
        return sorted({point.x for point in self.points})

    @property
    def ys(self) -> list[float]:
        """Distinct values of y, ascending."""
        return sorted({point.y for point in self.points})

    def column(self, x: float) -> list[Point]:
        """Return the points at x, ordered by y."""
        return sorted((point for point in self.points if point.x == x), key=lambda p: p.y)


@dataclass(frozen=True)
class Limit:
    """The theoretical bound on y at one x, and the smallest y of the grid that was sufficient."""

    x: float
    theory: float
    observed: float | None  # None if not even the largest y of the grid was sufficient
    at_least: bool = False  # the smallest y was sufficient, so the true factor may be larger

    @property
    def factor(self) -> float | None:
        """Ratio of the bound to the observed value."""
        return None if self.observed is None else self.theory / self.observed


@dataclass(frozen=True)
class Tightness:
    """Ratios of a theoretical bound to the observed requirement over the columns of a panel.

    A column is not counted if not even its largest y was sufficient.
    """

    least: float
    median: float
    most: float
    counted: int
    columns: int
    open_from: float | None = None  # the smallest factor that is only a lower bound

    def is_at_least(self, value: float) -> bool:
        """Return whether a value (least, median or most) is only a lower bound."""
        return self.open_from is not None and self.open_from <= value


def find_least_enough(column: Sequence[Point]) -> float | None:
    """Return the smallest y such that this point and all points above it succeeded.

    `column` is ordered by y.
    """
    successes = takewhile(lambda point: point.success, reversed(column))
    return min((point.y for point in successes), default=None)


def find_limits(panel: Panel) -> list[Limit]:
    """Return one limit per column of a panel, for the first bound of the panel."""
    limits = []
    for column in map(panel.column, panel.xs):
        x, lowest = column[0].x, column[0].y
        observed = find_least_enough(column)
        limits.append(Limit(x, panel.bounds[0][x], observed, at_least=observed == lowest))
    return limits


def measure_tightness(limits: Sequence[Limit]) -> Tightness | None:
    """Return the tightness of a bound, or None if no column succeeded."""
    factors = [limit.factor for limit in limits if limit.factor is not None]
    if not factors:
        return None
    open_factors = (limit.factor for limit in limits if limit.at_least and limit.factor is not None)
    spread = (min(factors), median(factors), max(factors))
    return Tightness(*spread, len(factors), len(limits), min(open_factors, default=None))


def find_broken_promises(panel: Panel) -> list[Point]:
    """Return the points that failed although the theory guarantees success."""
    return [point for point in panel.points if point.promised and point.success is False]


@dataclass(frozen=True)
class Stretch:
    """Adjacent points of a column that all succeeded, from y = `low` to y = `high`."""

    x: float
    low: float
    high: float


def find_widest_stretch(column: Sequence[Point]) -> Stretch | None:
    """Return the widest stretch of a column; of equally wide stretches, the one with the lowest y.

    `column` is ordered by y.
    """
    groups = groupby(column, lambda point: bool(point.success))
    runs = [list(points) for success, points in groups if success]
    stretches = [Stretch(run[0].x, run[0].y, run[-1].y) for run in runs]
    return max(stretches, key=lambda s: s.high - s.low, default=None)


_FAILED, _LIGHT, _DARK, _IMPOSSIBLE, _BROKEN = range(5)  # kinds of cells of a region
_COLORS = ("#ffffff", "#b9cfe0", "#3c5a78", "#efe9dc", ORANGE)
_WORDS = (
    "failed",
    "succeeded",
    "succeeded, y within the theoretical bounds",
    "fewer rows than candidates",
    "failed, but all bounds of Corollary 7 hold",
)
_LINES = (ORANGE, BLUE, "#3f8f6b", "#e09f3e", "#7d5ba6", "#8c564b", "#17a2b8", GREY, "#c06c9b")
_MARKERS = "osD^vPX<>"
_MOST_LINES = 50  # with more rows of cells, grid lines would hide the cells


@dataclass(frozen=True)
class Line:
    """A line of a chart: mean and standard deviation over seeds at each x."""

    name: str
    x: tuple[float, ...]
    means: tuple[float, ...]
    spreads: tuple[float, ...]


def mean_line(name: str, values: Mapping[float, Sequence[float]]) -> Line:
    """Return the line for `values`, a mapping of x to the values of all seeds."""
    means, spreads = map(fmean, values.values()), map(pstdev, values.values())
    return Line(name, tuple(values), tuple(means), tuple(spreads))


@dataclass(frozen=True)
class Chart:
    """A chart of several lines; if not `joined`, their points are not connected."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    log_x: bool = True
    log_y: bool = False
    joined: bool = True


def draw_regions(panels: Sequence[Panel], title: str) -> bytes:
    """Draw four panels: light where runs succeeded, dark where y is also within its bounds."""

    def draw(figure: Any) -> None:
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        for axes, panel in zip(figure.subplots(2, 2).ravel(), panels, strict=True):
            _draw_region(axes, panel)
        seen = sorted({_kind(point) for panel in panels for point in panel.points})
        handles: list[Any] = [
            Patch(facecolor=_COLORS[kind], edgecolor=GREY, linewidth=0.6, label=_WORDS[kind])
            for kind in seen
        ]
        handles.append(Line2D([], [], color=ORANGE, linewidth=2, label="theoretical bound on y"))
        figure.legend(handles=handles, loc="outside lower center", ncols=3)

    return _png(10.5, 9.0, title, draw)


def draw_charts(charts: Sequence[Chart], title: str, columns: int = 3) -> bytes:
    """Draw charts side by side.

    Lines with the same name have the same color and marker in all charts.
    """
    names = list(dict.fromkeys(line.name for chart in charts for line in chart.lines))
    columns = min(columns, len(charts))
    rows = -(-len(charts) // columns)

    def draw(figure: Any) -> None:
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, chart in zip(grid, charts, strict=False):
            _draw_chart(axes, chart, names)
        for axes in grid[len(charts) :]:
            axes.set_axis_off()
        legends = [zip(*axes.get_legend_handles_labels(), strict=True) for axes in grid]
        handles = {name: handle for legend in legends for handle, name in legend}
        labels = [name for name in names if name in handles]
        figure.legend(
            [handles[name] for name in labels],
            labels,
            loc="outside lower center",
            ncols=min(7 if columns > 2 else 5, len(labels)),
        )

    return _png(max(6.0, 4.4 * columns), 3.9 * rows + 0.6, title, draw)


def draw_pictures(pictures: Mapping[str, NDArray[np.uint8]], title: str) -> bytes:
    """Draw the centers (k, height, width[, 3]) of each data set as pictures, ten per line."""
    mosaics = {name: _mosaic(values) for name, values in pictures.items()}
    tallest = max(mosaic.shape[0] / mosaic.shape[1] for mosaic in mosaics.values())

    def draw(figure: Any) -> None:
        grid = figure.subplots(1, len(mosaics), squeeze=False)[0]
        for axes, (name, mosaic) in zip(grid, mosaics.items(), strict=True):
            axes.imshow(mosaic, cmap="gray_r", interpolation="nearest")
            axes.set_title(plain(name))
            axes.set_axis_off()

    return _png(5.4 * len(mosaics), 5.2 * tallest + 0.8, title, draw)


def _kind(point: Point) -> int:
    if point.success is None:
        return _IMPOSSIBLE
    if point.success:
        return _DARK if point.inside else _LIGHT
    return _BROKEN if point.promised else _FAILED


def _draw_region(axes: Any, panel: Panel) -> None:
    from matplotlib.colors import ListedColormap

    xs, ys = panel.xs, panel.ys
    kinds = np.full((len(ys), len(xs)), np.nan)
    for point in panel.points:
        kinds[ys.index(point.y), xs.index(point.x)] = _kind(point)
    axes.pcolormesh(
        _edges(xs, log=True),
        _edges(ys, log=panel.log_y),
        kinds,
        cmap=ListedColormap(_COLORS),
        vmin=-0.5,
        vmax=len(_COLORS) - 0.5,
        edgecolors="#e3e6ea",
        linewidth=0.3 if len(ys) <= _MOST_LINES else 0.0,
    )
    for bound in panel.bounds:
        heights = list(bound.values())
        if len(set(heights)) == 1:
            axes.axhline(heights[0], color=ORANGE, linewidth=2)
        else:
            axes.plot(list(bound), heights, color=ORANGE, linewidth=2)
    axes.set_xscale("log", base=2)
    if panel.log_y:
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter(_whole)
    axes.xaxis.set_major_formatter(_whole)
    axes.set_xlim(*_edges(xs, log=True)[[0, -1]])
    axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
    axes.grid(False)


def _edges(values: Sequence[float], log: bool) -> NDArray[np.float64]:
    """Return cell borders halfway between the values, extended symmetrically at both ends."""
    centers = np.log(values) if log else np.asarray(values, np.float64)
    gaps = np.diff(centers) if len(centers) > 1 else np.ones(1)
    inner = centers[:-1] + gaps / 2
    first, last = centers[0] - gaps[0] / 2, centers[-1] + gaps[-1] / 2
    edges = np.concatenate([[first], inner[: len(centers) - 1], [last]])
    return np.exp(edges) if log else edges


def _whole(value: float, _: int) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _draw_chart(axes: Any, chart: Chart, names: Sequence[str]) -> None:
    for line in chart.lines:
        number = names.index(line.name)
        axes.errorbar(
            line.x,
            line.means,
            yerr=line.spreads,
            label=line.name,
            color=_LINES[number % len(_LINES)],
            marker=_MARKERS[number % len(_MARKERS)],
            markersize=6,
            linewidth=1.8 if chart.joined else 0,
            elinewidth=1,
            capsize=2,
            alpha=0.9,
            zorder=2 + len(names) - number,  # the first line is SCRLM: draw it on top
        )
    ticks = sorted({x for line in chart.lines for x in line.x})
    if chart.log_x:
        axes.set_xscale("log")
    if chart.log_x and chart.joined:
        axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
        axes.minorticks_off()
    elif chart.log_x:
        _plain_ticks(axes.xaxis)
    if chart.log_y:
        axes.set_yscale("log")
        _plain_ticks(axes.yaxis)
    axes.set(title=chart.title, xlabel=chart.x_label, ylabel=chart.y_label)
    axes.grid(True, color="#e3e6ea", linewidth=0.6)
    axes.set_axisbelow(True)


def _plain_ticks(axis: Any) -> None:
    """Label ticks at 1, 2 and 5 of each decade, without exponents."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(lambda value, _: f"{value:,g}")
    axis.set_minor_formatter(NullFormatter())


def _mosaic(values: NDArray[np.uint8], across: int = 10) -> NDArray[np.uint8]:
    """Arrange pictures (k, h, w[, 3]) in a grid with `across` columns and gaps between them."""
    k, h, w, *rest = values.shape
    across = min(across, k)
    down = -(-k // across)
    whole = np.zeros((down * (h + 1) - 1, across * (w + 1) - 1, *rest), np.uint8)
    if rest:
        whole[:] = 255
    for number, picture in enumerate(values):
        top, left = (number // across) * (h + 1), (number % across) * (w + 1)
        whole[top : top + h, left : left + w] = picture
    return whole


def _png(width: float, height: float, title: str, draw: Callable[[Any], None]) -> bytes:
    # Not pyplot: it looks for a display and keeps figures in memory.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({**STYLE, "legend.frameon": False}):
        figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
        draw(figure)
        # The title makes the file understandable without the command that wrote it.
        figure.suptitle(title, x=0.01, ha="left", color=GREY, size=11)
        content = BytesIO()
        figure.savefig(content, format="png", metadata={"Software": "scrlm-dask"})
    return content.getvalue()
