"""Plots of the benchmark tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from scrlm_dask.reporting.plots import BLUE, GREY, ORANGE, STYLE, check_plot

from .report import Table, cell
from .scaling import by_curve, exponent

_MEANINGS = {"N": "rows N", "p": "features p", "n": "candidates n", "k": "clusters k"}
_TITLES = {"loss": "Loss pass", "k-means": "k-means iteration"}
_Draw = Callable[[Any, list[Table]], None]


def draw(name: str, tables: list[Table], path: Path) -> None:
    """Draw the plot of a part; raise `InputError` if Matplotlib is not installed."""
    check_plot(path)
    # Not pyplot: it looks for a display and keeps figures in memory.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    size, drawn = PLOTS[name]
    with rc_context(STYLE):
        figure = Figure(figsize=size, dpi=150, layout="constrained")
        drawn(figure, tables)
        figure.savefig(path)


def _scaling(figure: Any, tables: list[Table]) -> None:
    """Draw a row of panels per pass: CPU seconds by three sizes, wall seconds by workers."""
    points, walls = tables[0].rows, tables[2].rows
    names = list(dict.fromkeys(point["pass"] for point in points))
    fixed = {point["in"]: point["value"] for point in points}  # the last point of each curve
    text = ", ".join(f"{axis} = {cell(value)}" for axis, value in fixed.items())
    figure.suptitle(f"Unless varied: {text}", x=0.01, ha="left", color=GREY, size=11)
    figure.get_layout_engine().set(hspace=0.06)
    panels = figure.subplots(len(names), 4, squeeze=False)
    for line, name in zip(panels, names, strict=True):
        own = [(axis, curve) for (of, axis), curve in by_curve(points) if of == name]
        for axes, (axis, curve) in zip(line, own, strict=False):
            _draw_curve(axes, name, axis, curve)
        _draw_workers(line[-1], name, [row for row in walls if row["pass"] == name])


def _draw_curve(axes: Any, name: str, axis: str, curve: list[dict[str, Any]]) -> None:
    x = [point["value"] for point in curve]
    for what, label, style in (
        ("cpu_s", _TITLES[name].lower(), _OURS),
        ("product_cpu_s", "bare product", _PRODUCT),
    ):
        power = f"{axis}$^{{{exponent(curve, what):.2f}}}$"
        axes.loglog(x, [point[what] for point in curve], label=f"{label} ~ {power}", **style)
    _format_axes(axes, f"{_TITLES[name]} by {axis}", _MEANINGS[axis], "CPU seconds", x)


def _draw_workers(axes: Any, name: str, rows: list[dict[str, Any]]) -> None:
    x = [row["workers"] for row in rows]
    gains = (f"{rows[-1][what]:.2f} x on {x[-1]}" for what in ("speed_up", "product_speed_up"))
    ours, product = ([row[what] for row in rows] for what in ("wall_s", "product_wall_s"))
    axes.loglog(x, ours, label=f"{_TITLES[name].lower()}, {next(gains)}", **_OURS)
    axes.loglog(x, product, label=f"bare product, {next(gains)}", **_PRODUCT)
    ideal = [ours[0] * x[0] / number for number in x]
    axes.loglog(x, ideal, label="ideal", color=GREY, linestyle=":", linewidth=1.2)
    _format_axes(axes, f"{_TITLES[name]} by workers", "workers", "wall seconds", x)


def _format_axes(axes: Any, title: str, x_label: str, y_label: str, ticks: list[int]) -> None:
    axes.set_title(title)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    # One tick per measured value; most values are not powers of ten.
    axes.set_xticks(ticks, [cell(tick) for tick in ticks])
    axes.tick_params(axis="x", labelrotation=30 if ticks[-1] > 9999 else 0)
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(lambda value, _: _minor(value, axes.get_ylim()))
    axes.margins(y=0.25)
    axes.grid(True, which="major", color=GREY, alpha=0.18)
    axes.legend(frameon=False, fontsize=8.5, loc="best")


def _minor(value: float, limits: tuple[float, float]) -> str:
    """Return the label of a minor tick; only axes with few powers of ten have such labels."""
    digit = float(f"{value:e}".split("e")[0])
    few = limits[1] < 40 * limits[0]
    return f"{value:.2g}" if few and round(digit) in (2, 5) else ""


def _baselines(figure: Any, tables: list[Table]) -> None:
    """Draw CPU seconds and accuracy of all methods that finished."""
    rows = [row for row in tables[0].rows if row["cpu_s"] is not None][::-1]
    seconds, accuracy = figure.subplots(1, 2, sharey=True)
    names = [row["method"] for row in rows]
    colors = [BLUE if name.startswith("scrlm_dask") else GREY for name in names]
    bars = seconds.barh(names, [row["cpu_s"] for row in rows], color=colors)
    seconds.bar_label(bars, fmt="{:.3g}", padding=3, color=GREY)
    seconds.set_title("CPU seconds")
    seconds.set_xlabel("CPU seconds, all threads and workers")
    seconds.margins(x=0.15)
    bars = accuracy.barh(names, [row["accuracy"] for row in rows], color=colors)
    accuracy.bar_label(bars, fmt="{:.1%}", padding=3, color=GREY)
    accuracy.set_title("Accuracy")
    accuracy.set_xlabel("share of correct rows, without outliers")
    accuracy.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    accuracy.set_xlim(0, 1.15)


def _overhead(figure: Any, tables: list[Table]) -> None:
    """Draw how wall time x workers is spent."""
    rows = tables[0].rows
    axes = figure.subplots()
    names = [f"{_TITLES[row['pass']]}\nworkers: {row['workers']}" for row in rows]
    busy = [1 - row["overhead_share"] for row in rows]
    axes.barh(names, busy, color=BLUE, label="kernels and reading")
    rest = [row["overhead_share"] for row in rows]
    bars = axes.barh(names, rest, left=busy, color=ORANGE, label="overhead")
    axes.bar_label(bars, [f"{share:.1%}" for share in rest], padding=3, color=ORANGE)
    axes.set_xlim(0, 1.1)
    axes.set_title("Time of a pass", pad=28)
    axes.set_xlabel("share of wall time x workers")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(0, 1.0))


_OURS: dict[str, Any] = {"color": BLUE, "marker": "o", "linewidth": 2, "markersize": 5}
_PRODUCT: dict[str, Any] = {
    "color": ORANGE,
    "marker": "s",
    "linewidth": 1.5,
    "linestyle": "--",
    "markersize": 4,
}
PLOTS: dict[str, tuple[tuple[float, float], _Draw]] = {
    "scaling": ((17, 7.6), _scaling),
    "overhead": ((8, 3.6), _overhead),
    "baselines": ((11, 4.2), _baselines),
}
