"""Figures of a report as PNG files. Matplotlib is an optional dependency."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from typing import Any

import numpy as np

from scrlm_dask.kernels.bandwidth.choose import MOST_BOUNDARY_SHARE
from scrlm_dask.kernels.statistics.histograms import LogHistogram, coarse
from scrlm_dask.reporting.descriptions import sigma_units
from scrlm_dask.reporting.plots import (
    BLUE,
    GREY,
    ORANGE,
    draw_modularity,
    open_figure,
    plain,
    trial_curves,
)
from scrlm_dask.reporting.report_data import PlaneMap, ReportData
from scrlm_dask.runs.record import ResultRecord

_COLORS = (BLUE, ORANGE, "#3f8f6b", "#e09f3e", "#7d5ba6", GREY)
_BINS = 60
_NAMED_ON_MAP = 12
Draw = Callable[[Any], None]


def run_figures(run: ReportData, plane: PlaneMap | None) -> Iterator[tuple[str, str, bytes]]:
    """Yield name, title and PNG of each figure for which the run has data."""
    record, model = run.record, run.model
    yield "phases", "Time by phase", _png(lambda axes: _phases(axes, record))
    if model.n_clusters:
        yield "sizes", "Cluster sizes", _png(lambda axes: _sizes(axes, [run]))
        yield "sigmas", "Sigmas", _png(lambda axes: _sigmas(axes, run))
    yield "outliers", "Outliers", _png(lambda axes: _outliers(axes, run), height=1.3)
    if run.columns.inside.bins.total or run.columns.outside.bins.total:
        yield (
            "distances",
            "Distances to the nearest center",
            _png(lambda axes: _distances(axes, run)),
        )
    if run.columns.margins.bins.total:
        yield "margins", "Margins", _png(lambda axes: _margins(axes, run.columns.margins))
    if run.levels is not None:
        levels = run.levels
        title = "How the number of clusters was chosen"
        yield "modularity", title, _png(lambda axes: draw_modularity(axes, levels), height=3.6)
    elif run.trials:
        yield "rho", "How rho was chosen", _png(lambda axes: _trials(axes, run))
    if run.loss_curve is not None:
        yield "losses", "Losses of the candidates", _png(lambda axes: _losses(axes, run))
    if run.record.iterations:
        yield "inertia", "Inertia", _png(lambda axes: _inertia(axes, [run]))
    if plane is not None:
        yield "map", "Map of the centers", _png(lambda axes: _map(axes, run, plane), height=5.2)


def comparison_figures(runs: Sequence[ReportData]) -> Iterator[tuple[str, str, bytes]]:
    """Yield name, title and PNG of each figure that compares runs."""
    yield "compared-sizes", "Cluster sizes", _png(lambda axes: _sizes(axes, runs))
    if any(run.record.iterations for run in runs):
        yield "compared-inertia", "Inertia", _png(lambda axes: _inertia(axes, runs))
    yield "compared-phases", "Time by phase", _png(lambda axes: _phases_compared(axes, runs))


def _png(draw: Draw, height: float = 3.2) -> bytes:
    with open_figure(6.4, height, dpi=160) as figure:
        draw(figure.subplots())
        content = BytesIO()
        # without a date, so that the same run gives the same bytes
        figure.savefig(content, format="png", metadata={"Software": "scrlm-dask"})
    return content.getvalue()


def _phases(axes: Any, record: ResultRecord) -> None:
    totals = reversed(record.phase_totals().items())
    seconds = {plain(title): phase.seconds for title, phase in totals}
    bars = axes.barh(list(seconds), list(seconds.values()), color=BLUE, height=0.62)
    labels = [f"{value:.2f} s" for value in seconds.values()]
    axes.bar_label(bars, labels, padding=4, color=GREY, size=9)
    axes.margins(x=0.16)
    axes.set_xlabel("seconds")


def _phases_compared(axes: Any, runs: Sequence[ReportData]) -> None:
    spent = [{p.name: p.seconds for p in f.record.phase_totals().values()} for f in runs]
    names = list(dict.fromkeys(name for seconds_of in spent for name in seconds_of))
    left = np.zeros(len(runs))
    for number, name in enumerate(names):
        seconds = np.array([seconds_of.get(name, 0.0) for seconds_of in spent])
        axes.barh(
            _distinct_names(runs),
            seconds,
            left=left,
            label=plain(name),
            color=_COLORS[number % len(_COLORS)],
            alpha=1.0 if number < len(_COLORS) else 0.5,
            height=0.55,
        )
        left += seconds
    axes.set_xlabel("seconds")
    axes.invert_yaxis()
    axes.legend(frameon=False, fontsize=8, ncols=2)


def _sizes(axes: Any, runs: Sequence[ReportData]) -> None:
    for number, (run, name) in enumerate(zip(runs, _distinct_names(runs), strict=True)):
        sizes = np.sort(run.model.counts)[::-1]
        color = _COLORS[number % len(_COLORS)]
        marker = "o" if len(sizes) <= 60 else None
        axes.plot(
            np.arange(1, len(sizes) + 1), sizes, color=color, marker=marker, ms=3.5, label=name
        )
    if max(run.model.n_clusters for run in runs) > 20:
        axes.set_xscale("log")
    every = np.concatenate([run.model.counts for run in runs])
    if every.max(initial=1) > 50 * max(1, np.median(every) if len(every) else 1):
        axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set(xlabel="cluster rank (largest first)", ylabel="rows")
    if len(runs) > 1:
        axes.legend(frameon=False, fontsize=8)


def _sigmas(axes: Any, run: ReportData) -> None:
    model = run.model
    filled = model.counts > 0
    axes.scatter(
        model.counts[filled], model.sigmas[filled], s=14, color=BLUE, alpha=0.6, linewidths=0
    )
    sizes = model.counts[filled]
    if sizes.max(initial=1) > 20 * sizes.min(initial=sizes.max(initial=1)):
        axes.set_xscale("log")
    axes.set_ylim(0, 1.1 * float(np.nanmax(model.sigmas[filled], initial=0.0)) or 1.0)
    axes.set(xlabel="rows in the cluster", ylabel=f"sigma ({sigma_units(model)})")


def _outliers(axes: Any, run: ReportData) -> None:
    share = run.record.outlier_share
    axes.barh([0], [1 - share], color=BLUE, height=0.5)
    axes.barh([0], [share], left=[1 - share], color=ORANGE, height=0.5)
    axes.text(0, 0.42, f"labelled {100 * (1 - share):.2f} %", color=BLUE, va="bottom")
    axes.text(1, 0.42, f"outliers {100 * share:.2f} %", color=ORANGE, ha="right", va="bottom")
    axes.set(xlim=(0, 1), ylim=(-0.35, 1.0))
    axes.set_axis_off()


def _distances(axes: Any, run: ReportData) -> None:
    columns = run.columns
    _histogram(axes, columns.inside, BLUE, "labelled rows")
    _histogram(axes, columns.outside, ORANGE, "outliers")
    radius = run.record.radius
    if radius:
        axes.axvline(
            radius, color=GREY, linewidth=1.2, linestyle="--", label=f"radius {radius:.4g}"
        )
    axes.set(xlabel="distance after preprocessing", ylabel="rows")
    axes.legend(frameon=False, fontsize=8)


def _margins(axes: Any, margins: LogHistogram) -> None:
    _histogram(axes, margins, BLUE, None)
    axes.set(xlabel="distance to second-nearest minus nearest center", ylabel="labelled rows")


def _histogram(axes: Any, histogram: LogHistogram, color: str, label: str | None) -> None:
    if not histogram.bins.total:
        return
    bars = coarse(histogram, _BINS)
    axes.stairs(bars.counts, bars.edges, fill=True, color=color, alpha=0.75, label=label)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _losses(axes: Any, run: ReportData) -> None:
    curve = run.loss_curve
    assert curve is not None
    axes.plot(curve.ranks, curve.losses, color=BLUE, linewidth=1.8)
    axes.fill_between(curve.ranks, curve.losses, color=BLUE, alpha=0.12)
    axes.set(xlabel="candidate rank (lowest loss first)", ylabel="loss")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _trials(axes: Any, run: ReportData) -> None:
    """Draw number of clusters and boundary share over rho."""
    rhos, counts, boundary_shares = trial_curves(run.trials)
    axes.plot(rhos, counts, color=BLUE, linewidth=2, marker=".", markersize=4)
    axes.set(xscale="log", yscale="log", xlabel="rho (line: chosen value)")
    axes.set_ylabel("clusters", color=BLUE)
    axes.axvline(run.record.config["rho"], color=GREY, linewidth=1.5)
    right = axes.twinx()
    right.plot(rhos, boundary_shares, color=ORANGE, linewidth=1.5, marker=".", markersize=3)
    right.axhline(MOST_BOUNDARY_SHARE, color=ORANGE, linewidth=1, linestyle="--")
    right.set_yscale("log")
    right.set_ylabel("boundary share", color=ORANGE)


def _inertia(axes: Any, runs: Sequence[ReportData]) -> None:
    for number, (run, name) in enumerate(zip(runs, _distinct_names(runs), strict=True)):
        full = [done for done in run.record.iterations if not done.sampled]
        numbers, values = [done.number for done in full], [done.inertia for done in full]
        color = _COLORS[number % len(_COLORS)]
        axes.plot(numbers, values, color=color, marker="o", ms=3.5, label=name)
    axes.locator_params(axis="x", integer=True)
    axes.set(xlabel="k-means iteration", ylabel="inertia")
    if len(runs) > 1:
        axes.legend(frameon=False, fontsize=8)


def _map(axes: Any, run: ReportData, plane: PlaneMap) -> None:
    counts, xy = run.model.counts, plane.xy
    areas = 10 + 240 * counts / max(int(counts.max()), 1)
    order = run.by_size  # draw small clusters on top of large ones
    dots = axes.scatter(
        xy[order, 0],
        xy[order, 1],
        s=areas[order],
        c=run.model.sigmas[order],
        cmap="viridis",
        alpha=0.75,
        linewidths=0.4,
        edgecolors="white",
    )
    for cluster in order[:_NAMED_ON_MAP]:
        axes.annotate(
            str(cluster), xy[cluster], fontsize=7, ha="center", va="center", color="black"
        )
    axes.figure.colorbar(dots, ax=axes, label="sigma", shrink=0.7)
    axes.set_aspect("equal", "datalim")
    axes.set(xticks=[], yticks=[], xlabel=f"{plane.method}; area of a dot: rows of the cluster")


def _distinct_names(runs: Sequence[ReportData]) -> list[str]:
    """Return the names of the runs; equal names get a number."""
    names = [plain(run.name) for run in runs]
    return [
        name if names.count(name) == 1 else f"{name} ({number})"
        for number, name in enumerate(names, 1)
    ]
