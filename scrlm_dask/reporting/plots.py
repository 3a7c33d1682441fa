"""Plots of row statistics and of a bandwidth search. Matplotlib is an optional dependency."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.kernels.bandwidth.choose import MOST_BOUNDARY_SHARE, Choice
from scrlm_dask.kernels.bandwidth.ladder import BandwidthTrial
from scrlm_dask.kernels.bandwidth.modularity import CLEAR_GAP, RESOLUTION, WEAK_GAP, Levels
from scrlm_dask.kernels.statistics.histograms import Histogram
from scrlm_dask.kernels.statistics.row_statistics import Distances, Norms, Spectrum, Statistics
from scrlm_dask.optional import missing_package
from scrlm_dask.text import printable

BLUE, ORANGE, GREY = "#2f6690", "#d1495b", "#6b7280"
STYLE: Any = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlepad": 10,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "text.usetex": False,  # also if a user's settings select LaTeX, which names could control
}


# Values that replace zero, which a logarithmic axis cannot show.
_MIN_BOUNDARY_SHARE = 1e-4
_MIN_CLUSTERS = 0.5
_FEW_CLUSTERS = 10  # on an axis up to this number, every trial has a tick


def check_plot(path: str | Path) -> None:
    """Raise if a plot cannot be saved to a path; called before anything is computed."""
    target = Path(path)
    if target.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise InputError(f"the plot {path} must end in .png, .pdf or .svg, such as out.png")
    if not target.absolute().parent.is_dir():
        raise StoreError(f"the folder of the plot {path} does not exist; create it first")
    check_matplotlib("plots")


def check_matplotlib(what: str) -> None:
    """Raise unless Matplotlib is installed; `what` names the feature that requires it."""
    if find_spec("matplotlib") is None:
        raise missing_package("Matplotlib", what, "plot")


def plot_statistics(statistics: Statistics, name: str, preprocess: str, path: str | Path) -> None:
    """Save a figure of spectrum, row norms and distances between rows to a file."""
    check_plot(path)
    with open_figure(13, 4.2) as figure:
        spectrum, norms, distances = figure.subplots(1, 3)
        space = "as stored" if preprocess == "none" else f"after {preprocess}"
        _draw_spectrum(spectrum, statistics.spectrum, space)
        _draw_norms(norms, statistics.norms)
        _draw_distances(distances, statistics.distances, space)
        # the plot may be read long after the command, so it names its data
        shape = f"{statistics.n_rows:,} usable rows x {len(statistics.means):,} features"
        figure.suptitle(f"{plain(name)}: {shape}", x=0.01, ha="left", color=GREY, size=11)
        figure.savefig(path)


def plain(name: str) -> str:
    r"""Return a name as Matplotlib shows it unchanged, except for control characters.

    Matplotlib reads a text between dollar signs as a formula, and omits labels that start with an
    underscore from a legend.

    >>> print(plain("a$b$"))
    a\$b\$
    """
    shown = printable(name).replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


@contextmanager
def open_figure(width: float, height: float, dpi: int = 150) -> Iterator[Any]:
    """Yield a styled figure that notebooks show even without `%matplotlib inline`."""
    # pyplot is not used: it needs a display and keeps every figure in memory
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        def _repr_png_(self) -> bytes:
            content = BytesIO()
            self.savefig(content, format="png", dpi=72)
            return content.getvalue()

    with rc_context(STYLE):
        yield ShownFigure(figsize=(width, height), dpi=dpi, layout="constrained")


def trial_curves(
    trials: Sequence[BandwidthTrial],
) -> tuple[list[float], list[float], list[float]]:
    """Return rho, clusters and boundary share of the trials; zeros are replaced for log axes."""
    rhos = [trial.rho for trial in trials]
    counts = [max(trial.clusters, _MIN_CLUSTERS) for trial in trials]
    return rhos, counts, [max(trial.boundary_share, _MIN_BOUNDARY_SHARE) for trial in trials]


def draw_scan(
    trials: Sequence[BandwidthTrial],
    choice: Choice,
    distances: Histogram,
    radius: float,
    title: str,
    path: str | Path | None,
) -> Any:
    """Return a figure of a bandwidth search; save it if a path is given."""
    if path is not None:
        check_plot(path)
    with open_figure(8, 9) as figure:
        counts, coverage, boundary, pairs = figure.subplots(4, 1)
        rhos, numbers, boundary_shares = trial_curves(trials)
        lines = (
            (counts, numbers, "Clusters"),
            (coverage, [trial.coverage for trial in trials], "Share of rows inside a radius"),
            (boundary, boundary_shares, "Boundary share (rows near the radius / rows inside)"),
        )
        for axes, values, heading in lines:
            axes.plot(rhos, values, color=BLUE, linewidth=2, marker=".", markersize=4)
            axes.axvspan(choice.low, choice.high, color=ORANGE, alpha=0.15)
            axes.axvline(choice.rho, color=ORANGE, linewidth=1.5)
            axes.set_xscale("log")
            axes.set_title(heading)
        counts.set_yscale("log")
        boundary.set_yscale("log")
        boundary.axhline(MOST_BOUNDARY_SHARE, color=GREY, linewidth=1, linestyle="--")
        boundary.set_xlabel(f"rho (chosen: {choice.rho:.4g}, {choice.basis})")
        _draw_sample(pairs, distances, radius)
        figure.suptitle(plain(title), x=0.01, ha="left", color=GREY, size=11)
        if path is not None:
            figure.savefig(path)
    return figure


def draw_levels(levels: Levels, title: str, path: str | Path | None) -> Any:
    """Return a figure of modularity over the number of clusters; save it if a path is given."""
    if path is not None:
        check_plot(path)
    with open_figure(8, 7) as figure:
        quality, neighbors = figure.subplots(2, 1, sharex=True)
        draw_modularity(quality, levels)
        quality.set_title(
            f"Modularity: share in the same cluster - {RESOLUTION:g} x share by chance", pad=38
        )
        quality.set(xlabel="", ylabel="")  # the title and the lower axes have the same labels
        quality.tick_params(labelbottom=False)
        _draw_neighbors(neighbors, levels)
        figure.suptitle(
            f"{plain(title)}\n{_title_of(levels)}", x=0.01, ha="left", color=GREY, size=11
        )
        if path is not None:
            figure.savefig(path)
    return figure


def _title_of(levels: Levels) -> str:
    """Return the structure of the data as a title."""
    words = (
        f"Structure: {levels.structure} ({levels.gap:z.2f} above one normal distribution; clear "
        f"from {CLEAR_GAP:g}, weak from {WEAK_GAP:g})"
    )
    if levels.structure == "none":
        return (
            f"{words}\nThe data shows no clusters: a division into {levels.clusters:,} is arbitrary"
        )
    return words


def draw_modularity(axes: Any, levels: Levels) -> None:
    """Draw modularity over the number of clusters, with the chosen numbers above the axes."""
    numbers = [trial.clusters for trial in levels.trials]
    values = [trial.modularity() for trial in levels.trials]
    axes.plot(numbers, values, color=BLUE, linewidth=2, marker=".", markersize=5)
    _mark_levels(axes, levels)
    named = (
        ("coarse", levels.coarse, 0),
        ("fine", levels.fine, 0),
        ("default", levels.clusters, 1),
    )
    for name, number, row in named:
        if number is None:
            continue
        # The default is one line higher, so that the labels of near levels do not overlap.
        axes.annotate(
            f"{name} {number:,}",
            (number, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 4 + 14 * row),
            textcoords="offset points",
            ha="center",
            color=ORANGE if row else GREY,
            weight="bold" if row else "normal",
        )
    axes.set_ylabel("modularity")


def _draw_neighbors(axes: Any, levels: Levels) -> None:
    """Draw the share of neighbors in the same cluster, and the share expected by chance."""
    axes.set_title("Nearest neighbors in the same cluster")
    numbers = [trial.clusters for trial in levels.trials]
    lines = (
        ("in the sample", [trial.same for trial in levels.trials], BLUE),
        ("by chance", [trial.expected for trial in levels.trials], GREY),
    )
    for name, shares, color in lines:
        axes.plot(numbers, shares, color=color, linewidth=2, marker=".", markersize=5, label=name)
    _mark_levels(axes, levels)
    axes.set_ylim(0.0, 1.05)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    # Outside the axes, the legend cannot hide a line.
    axes.legend(
        frameon=False, loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=2, labelcolor=GREY
    )


def _mark_levels(axes: Any, levels: Levels) -> None:
    """Mark the default, the interval and the levels, on an axis of numbers of clusters."""
    from matplotlib.ticker import LogLocator, NullFormatter

    label = "number of clusters"
    if levels.low < levels.high:
        label += f" (shaded: {levels.low:,} to {levels.high:,} would do as well)"
        axes.axvspan(levels.low, levels.high, color=ORANGE, alpha=0.15, linewidth=0)
    axes.axvline(levels.clusters, color=ORANGE, linewidth=1.5)
    for number in (levels.coarse, levels.fine):
        if number is not None:
            axes.axvline(number, color=GREY, linewidth=1.2, linestyle="--")
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    if levels.trials[-1].clusters <= _FEW_CLUSTERS:
        axes.set_xticks([trial.clusters for trial in levels.trials])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel(label)


def _draw_sample(axes: Any, distances: Histogram, radius: float) -> None:
    axes.set_title("Distances between rows of the sample")
    axes.stairs(distances.counts, distances.edges, fill=True, color=BLUE, alpha=0.85)
    # logarithmic, because few pairs are inside clusters
    axes.set_yscale("log")
    axes.axvline(radius, color=ORANGE, linewidth=1.5)
    axes.set(xlabel=f"distance after preprocessing (line: radius {radius:.4g})", ylabel="pairs")


def _draw_spectrum(axes: Any, spectrum: Spectrum | None, space: str) -> None:
    axes.set_title("Spectrum")
    if spectrum is None or not spectrum.axes:
        _draw_empty(axes)
        return
    shares = np.cumsum(spectrum.variances) / spectrum.variances.sum()
    numbers = np.arange(1, len(shares) + 1)
    axes.plot(numbers, shares, color=BLUE, linewidth=2)
    axes.fill_between(numbers, shares, color=BLUE, alpha=0.12)
    axes.axvline(spectrum.axes, color=ORANGE, linewidth=1.2, linestyle="--")
    left = spectrum.axes > 0.5 * len(shares)
    axes.annotate(
        f"{spectrum.axes:,} of {len(shares):,} axes\nexplain 90 %",
        (spectrum.axes, 0.08),
        xytext=(-6 if left else 6, 0),
        textcoords="offset points",
        ha="right" if left else "left",
        color=ORANGE,
    )
    axes.set_xlim(0, len(shares))
    axes.set_ylim(0, 1.03)
    sampled = f", sample of {spectrum.sampled_rows:,} rows" if spectrum.sampled_rows else ""
    axes.set(xlabel=f"principal axes ({space}{sampled})", ylabel="explained variance")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")


def _draw_norms(axes: Any, norms: Norms | None) -> None:
    axes.set_title("Row norms")
    if norms is None:
        _draw_empty(axes)
        return
    _draw_histogram(axes, norms.histogram)
    axes.locator_params(axis="y", integer=True)
    axes.set(xlabel="norm (as stored)", ylabel="rows")


def _draw_distances(axes: Any, distances: Distances | None, space: str) -> None:
    axes.set_title("Distances between rows")
    if distances is None:
        _draw_empty(axes)
        return
    # logarithmic, because the pairs inside clusters determine rho, and there are few of them
    axes.set_yscale("log")
    _draw_histogram(axes, distances.histogram)
    axes.set_ylim(0.8, 20.0 * distances.histogram.counts.max())  # space for the annotation
    axes.set_xlim(0, 1.02 * max(distances.histogram.edges[-1], distances.radius or 0))
    if distances.radius is not None:
        axes.axvline(distances.radius, color=ORANGE, linewidth=1.5)
        left = distances.radius > 0.4 * axes.get_xlim()[1]
        axes.annotate(
            f"radius {distances.radius:.3g}\n{_share(distances.share_inside)} inside",
            (distances.radius, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(-6 if left else 6, -2),
            textcoords="offset points",
            ha="right" if left else "left",
            va="top",
            color=ORANGE,
        )
    axes.set(xlabel=f"distance {space} ({distances.n_rows:,} rows)", ylabel="pairs")


def _draw_histogram(axes: Any, histogram: Histogram) -> None:
    axes.stairs(histogram.counts, histogram.edges, fill=True, color=BLUE, alpha=0.85)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")


def _share(value: float | None) -> str:
    return "none" if not value else f"{100 * value:.2g} %"


def _draw_empty(axes: Any) -> None:
    axes.text(0.5, 0.5, "too few usable rows", ha="center", va="center", color=GREY)
    axes.set_axis_off()
