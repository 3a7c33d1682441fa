"""Tables of the results of commands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from scrlm_dask.text import format_bytes, plural, repeated

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from scrlm_dask.events import PhaseFinished
    from scrlm_dask.kernels.bandwidth.modularity import CutTrial, Levels
    from scrlm_dask.runs.lifecycle import FitResult
    from scrlm_dask.runs.record import KMeansRecord, ScanRecord

_MOST_CLUSTERS, _MOST_ITERATIONS, _MOST_TRIALS, _BAR_WIDTH = 10, 20, 25, 8
_CLEAR = ("stretch", "dip")  # rules that choose rho if the data shows a clear scale
_Format = Callable[[float], str]


def _new_table(
    title: str | Text, columns: Iterable[str], left: str | None = None, **options: Any
) -> Table:
    """Return a table of right-aligned columns; the column `left` is left-aligned."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="left" if name == left else "right", **options)
    return table


def facts(title: str, content: dict[str, Any]) -> Table:
    """Return a table with one name and value per row."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right", overflow="fold")
    for name, value in content.items():
        table.add_row(name.replace("_", " "), _text(name, value))
    return table


def fit_summary(content: dict[str, Any], result: FitResult) -> Group:
    """Return tables of a fit: result, choices on the sample, clusters, iterations and phases."""
    from rich.console import Group

    record, model = result.typed_record, result.model
    scan = record.read_scan()
    parts: list[Any] = [facts("Result", _result_content(content, result, scan))]
    if scan is not None:
        parts.append(facts(_scan_title(scan), _scan_details(scan, content["radius"])))
    if model.n_clusters:
        parts.append(clusters_table(model))
    if record.kmeans is not None:
        parts.append(iterations_table(record.kmeans))
    parts.append(phases_table(record.phase_totals()))
    return Group(*parts)


def _result_content(
    content: dict[str, Any], result: FitResult, scan: ScanRecord | None
) -> dict[str, Any]:
    """Return the rows of the table of results; rows without a value are omitted."""
    from scrlm_dask.reporting import descriptions

    config, asked = result.typed_record.config, descriptions.requested_config(result.record)
    levels, radius = None if scan is None else scan.levels, content["radius"]
    shown = {name: content[name] for name in ("rows", "features", "clusters")}
    if levels is not None:
        shown["clusters"] = descriptions.describe_clusters(levels, content["clusters"])
    shown |= {
        "outliers": content["outliers"],
        "outlier_share": content["outlier_share"],
        "radius": radius and descriptions.describe_radius(radius, config, asked),
        "preprocess": descriptions.describe_preprocess(config, asked),
        # If modularity decided, rho was neither given nor chosen.
        "rho": content["rho"] if levels is None else None,
        "inertia": content["inertia"],
    }
    if radius is None:
        shown["outliers"] = "none: every row has the label of its nearest center"
        del shown["outlier_share"]
    return {name: value for name, value in shown.items() if value is not None}


def clusters_table(model: Any) -> Table:
    """Return a table of the first clusters and their sizes."""
    from scrlm_dask.reporting.descriptions import sigma_units

    shown, units = min(model.n_clusters, _MOST_CLUSTERS), f"sigma in {sigma_units(model)}"
    first = f"first {shown} of {model.n_clusters}; " if shown < model.n_clusters else ""
    extracted, config = len(model.losses) > 0, model.config
    names = ["cluster", "rows", "weight", "sigma"]
    # A center is a row of the features only with greedy extraction and without refinement.
    moved = extracted and (
        config.polish or config.refine.max_iter or config.extraction in ("residual", "merge")
    )
    names += ["loss", "initial row" if moved else "center row"] if extracted else []
    table = _new_table(f"Clusters ({first}{units})", names)
    for k in range(shown):
        numbers = f"{model.counts[k]:,}", f"{model.weights[k]:.4f}", f"{model.sigmas[k]:.4g}"
        start = (f"{model.losses[k]:,.1f}", f"{model.center_rows[k]:,}") if extracted else ()
        table.add_row(str(k), *numbers, *start)
    return table


def phases_table(phases: dict[str, PhaseFinished]) -> Table:
    """Return a table of time, rate, bytes read and memory per phase."""
    names = ("phase", "seconds", "rows/s", "read", "read time", "worker peak")
    table = _new_table("Phases", names, left="phase")
    for title, phase in phases.items():
        table.add_row(
            title,
            f"{phase.seconds:.2f}",
            f"{phase.rows / max(phase.seconds, 1e-9):,.0f}",
            format_bytes(phase.bytes),
            f"{phase.read_seconds:.2f} s",
            format_bytes(phase.peak_worker_bytes),
        )
    return table


def plan_summary(content: dict[str, Any]) -> Group:
    """Return tables of the predicted cost of a fit, per phase and in total."""
    from rich.console import Group
    from rich.table import Table

    names = ("rows", "features", "candidates", "clusters", "workers", "threads")
    table = Table(title="Phases", title_justify="left", show_footer=True)
    footers = {
        "phase": "total",
        "FLOPs": f"{content['flops']:.3g}",
        "read": format_bytes(content["bytes"]),
        "worker memory": format_bytes(content["worker_bytes"]),
        "seconds": f"{content['seconds']:.1f}",
    }
    for name, footer in footers.items():
        table.add_column(name, footer, justify="left" if name == "phase" else "right")
    table.add_row("start", "", "", "", f"{content['start_seconds']:.1f}")
    for phase in content["phases"]:
        times = phase["times"]
        table.add_row(
            repeated(phase["name"], times),
            f"{times * phase['flops']:.3g}",
            format_bytes(times * phase["bytes"]),
            format_bytes(phase["worker_bytes"]),
            f"{times * phase['seconds']:.1f}",
        )
    limit = content["memory_limit"]
    needs = {
        "memory per worker, at most": format_bytes(content["worker_bytes"]),
        "memory limit per worker": "no limit" if limit is None else format_bytes(limit),
        "memory of the client, at most": format_bytes(content["client_bytes"]),
    }
    return Group(facts("Plan", {name: content[name] for name in names} | needs), table)


def _text(name: str, value: Any) -> str:
    if value is None or value != value:  # NaN: undefined, such as outlier recall without outliers
        return "-"
    if name == "bytes":
        return format_bytes(value)
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if name.endswith(("share", "accuracy", "purity", "precision", "recall", "error", "outliers")):
        return f"{100 * value:.2f} %"
    return f"{value:.6g}"


def iterations_table(record: KMeansRecord) -> Table:
    """Return a table of the first and last iterations of k-means; bars show the inertia per row."""
    iterations = record.iterations
    names = ("", "inertia", "per row", "shift", "moved", "empty", "seconds")
    title = f"k-means stopped ({record.stopped})"
    table = _new_table(title, names, left="per row", no_wrap=True)
    # Not the total inertia: an iteration on a sample has fewer rows than an iteration on all rows.
    values = [it.inertia / max(it.rows, 1) for it in iterations]
    low, high = min(values, default=0.0), max(values, default=0.0)
    for i, (it, value) in enumerate(zip(iterations, values, strict=True)):
        if _MOST_ITERATIONS // 2 <= i < len(iterations) - _MOST_ITERATIONS // 2:
            if i == _MOST_ITERATIONS // 2:
                table.add_row("...", "", "", "", "", "", "")
            continue
        share = (value - low) / (high - low) if high > low else 0.0
        table.add_row(
            f"{it.number}{' (sample)' if it.sampled else ''}",
            f"{it.inertia:,.6g}",
            "█" * max(1, round(_BAR_WIDTH * share)),
            "-" if math.isinf(it.shift) else f"{it.shift:.2g}",
            "-" if it.moved is None else f"{it.moved:,}",
            str(it.empty),
            f"{it.seconds:.2f}",
        )
    return table


def scan_table(record: ScanRecord) -> Table:
    """Return a table of the trials: numbers of clusters if modularity decided, else bandwidths."""
    if record.levels is not None:
        return _levels_table(record.levels)
    from rich.text import Text

    title = Text(f"Trial bandwidths on the sample of {plural(record.sampled_rows, 'row')}")
    if record.basis not in _CLEAR:
        title.append(
            "\n(a fit with one of these rho uses more rows and candidates, and can find more "
            "clusters)"
        )
    names = ("", "rho", "clusters", "outliers", "boundary", "neighbors", "held out")
    table = _new_table(title, names, no_wrap=True)
    for trial in record.trials:
        table.add_row(
            "█" if record.low <= trial.rho <= record.high else "",
            f"{trial.rho:.4g}",
            f"{trial.clusters:,}",
            f"{1 - trial.coverage:.1%}",
            f"{trial.shell:.3f}",
            f"{trial.neighbors[1]:,.0f}",
            "-" if trial.held_out is None else f"{trial.held_out:.5g}",
        )
    return table


def _levels_table(levels: Levels) -> Table:
    """Return a table of the cuts that were tried; a bar marks cuts that are about as good."""
    names = ("", "level", "clusters", "neighbors in same cluster", "expected", "modularity")
    table = _new_table("Numbers of clusters on the sample", names, left="level", no_wrap=True)
    of_level = {levels.coarse: "coarse", levels.fine: "fine", levels.clusters: "default"}
    for trial in _thin_out(levels):
        table.add_row(
            "█" if levels.low <= trial.clusters <= levels.high else "",
            of_level.get(trial.clusters, ""),
            f"{trial.clusters:,}",
            f"{100 * trial.same:.1f} %",
            f"{100 * trial.expected:.1f} %",
            f"{trial.modularity():.3f}",
        )
    return table


def _thin_out(levels: Levels) -> list[CutTrial]:
    """Return at most 25 trials; the levels and the ends of the interval and of the trials stay."""
    trials = list(levels.trials)
    ends = {levels.low, levels.high, trials[0].clusters, trials[-1].clusters}
    kept = {levels.coarse, levels.clusters, levels.fine, *ends}
    while len(trials) > _MOST_TRIALS:
        # Remove the trial whose neighbors in the table are nearest to each other.
        crowded = [
            (trials[i + 1].clusters / trials[i - 1].clusters, i)
            for i, trial in enumerate(trials)
            if trial.clusters not in kept
        ]
        del trials[min(crowded)[1]]
    return trials


def scan_facts(record: ScanRecord) -> Table:
    """Return a table of the choices on the sample, and how reliable they are."""
    return facts(_scan_title(record), _scan_content(record))


def _scan_title(record: ScanRecord) -> str:
    if record.levels is not None:
        return "Number of clusters"
    return "Bandwidth" if record.basis != "given" else "Sample"


def _scan_details(record: ScanRecord, radius: float | None) -> dict[str, Any]:
    """Return names and values of the choices that the result of a fit does not show."""
    content = _scan_content(record)
    shown = ["preprocess"]
    if record.levels is not None:
        shown += ["clusters", "levels"]
    if radius is not None:
        shown.append("outside the radius")
    return {name: value for name, value in content.items() if name not in shown}


def _scan_content(record: ScanRecord) -> dict[str, Any]:
    """Return names and values of the choices on the sample."""
    from scrlm_dask.reporting.descriptions import describe_outside, describe_representation

    content = _rho_content(record) if record.levels is None else _levels_content(record.levels)
    content["preprocess"] = record.preprocess
    for trial in record.representations:
        content[f"modularity of {trial.preprocess}"] = describe_representation(trial)
    structured = record.levels is None or record.levels.structure != "none"
    if record.null is not None and structured:
        hint = "--outliers auto labels such rows -1"
        content["outside the radius"] = f"{describe_outside(record.null)} ({hint})"
    required = "" if record.levels else f" ({record.needed_candidates} required)"
    content["candidates"] = f"{record.candidates}{required}"
    content["sample"] = f"{record.sampled_rows:,} rows of {plural(record.blocks, 'block')}"
    return content


def _levels_content(levels: Levels) -> dict[str, Any]:
    """Return the rows of a choice by modularity."""
    from scrlm_dask.reporting.descriptions import (
        describe_agreement,
        describe_interval,
        describe_levels,
        describe_structure,
    )

    interval, others = describe_interval(levels), describe_levels(levels)
    number = f"{levels.clusters:,}{f' ({interval})' if interval else ''}"
    arbitrary = levels.structure == "none"
    return {
        "clusters": f"arbitrary division into {number}" if arbitrary else number,
        **({"levels": others} if others else {}),
        "structure": describe_structure(levels),
        "agreement of two samples": describe_agreement(levels),
    }


def _rho_content(record: ScanRecord) -> dict[str, Any]:
    """Return the rows of a choice of rho, or of a given rho."""
    content: dict[str, Any] = {"rho": record.rho}
    if record.low < record.high and record.basis != "dip":
        content["equivalent rho"] = f"{record.low:.4g} to {record.high:.4g}"
    content |= {"clusters": record.clusters, "reason": record.why}
    for other in record.stability:
        content[f"at rho {other.rho:.4g}"] = f"{other.clusters} clusters, ARI {other.ari:.3f}"
    # The paper's assumption is about standardized features, and does not cover merged clusters.
    if record.preprocess == "standardize" and record.basis in (*_CLEAR, "given"):
        met = "met" if record.assumption_1 else "not met"
        sigma = f"sigma_max {record.sigma_max:.4g} after preprocessing"
        content["sigma_max <= rho < 0.775"] = f"{met} ({sigma})"
    return content


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"


# Short headings, so that the table fits into 80 columns.
_COLUMNS: dict[str, tuple[str, _Format]] = {
    "accuracy": ("acc. %", _percent),
    "purity": ("purity %", _percent),
    "nmi": ("NMI", "{:.3f}".format),
    "ari": ("ARI", "{:.3f}".format),
    "outlier_precision": ("outl. prec. %", _percent),
    "outlier_recall": ("outl. recall %", _percent),
    "cpu_seconds": ("CPU s", _seconds),
    "wall_seconds": ("wall s", _seconds),
    "peak_bytes": ("peak MB", lambda value: f"{value / 1e6:.0f}"),
}


def comparison_table(content: dict[str, Any]) -> Group:
    """Return a table with one row per method, and the reasons why methods did not finish."""
    from rich import box
    from rich.console import Group
    from rich.table import Table

    title = f"{content['rows']:,} rows x {content['features']:,} features"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    table.add_column("method", no_wrap=True)
    for heading, _ in _COLUMNS.values():
        table.add_column(heading, justify="right", overflow="fold")
    reasons: list[Any] = []
    for scores in content["methods"]:
        cells = [_cell(scores, name, form) for name, (_, form) in _COLUMNS.items()]
        table.add_row(scores["method"], *cells)
        if scores["reason"] is not None:
            reasons.append(f"{scores['method']}: {scores['reason']}")
    return Group(table, *reasons)


def _cell(scores: dict[str, Any], name: str, form: _Format) -> str | Text:
    from rich.text import Text

    mean, deviation = scores["mean"][name], scores["deviation"][name]
    if mean is None or mean != mean:  # NaN: undefined, such as precision without positives
        return "-"
    if len(scores["seeds"]) == 1:
        return form(mean)
    return Text(f"{form(mean)}\n±{form(deviation)}")
