"""Tables of the results of commands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from scrlm_dask.text import format_bytes, plural, repeated

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from scrlm_dask.events import PhaseFinished
    from scrlm_dask.runs.lifecycle import FitResult
    from scrlm_dask.runs.record import KMeansRecord, ScanRecord

_MOST_CLUSTERS, _MOST_ITERATIONS, _BAR_WIDTH = 10, 20, 8
_Format = Callable[[float], str]


def _new_table(
    title: str, columns: Iterable[str], left: str | None = None, **options: Any
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
    """Return tables of a fit: result, bandwidth, clusters, iterations and phases."""
    from rich.console import Group

    names = ("rows", "features", "clusters", "outliers", "outlier_share", "rho", "radius")
    known = {key: content[key] for key in (*names, "inertia") if content[key] is not None}
    parts: list[Any] = [facts("Result", known)]
    record, model = result.typed_record, result.model
    scan = record.read_scan()
    if scan is not None:
        parts.append(scan_facts(scan))
    if model.n_clusters:
        parts.append(clusters_table(model))
    if record.kmeans is not None:
        parts.append(iterations_table(record.kmeans))
    parts.append(phases_table(record.phase_totals()))
    return Group(*parts)


def clusters_table(model: Any) -> Table:
    """Return a table of the first clusters and their sizes."""
    shown = min(model.n_clusters, _MOST_CLUSTERS)
    title = f"Clusters (first {shown} of {model.n_clusters})"
    extracted, config = len(model.losses) > 0, model.config
    names = ["cluster", "rows", "weight", "sigma"]
    # A center is a row of the features only with greedy extraction and without refinement.
    moved = extracted and (
        config.polish or config.refine.max_iter or config.extraction in ("residual", "merge")
    )
    names += ["loss", "initial row" if moved else "center row"] if extracted else []
    table = _new_table(title if shown < model.n_clusters else "Clusters", names)
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
    """Return a table of the trial bandwidths; a bar marks the trials in the chosen interval."""
    names = ("", "rho", "clusters", "outliers", "boundary", "neighbors", "held out")
    table = _new_table("Trial bandwidths on the sample", names, no_wrap=True)
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


def scan_facts(record: ScanRecord) -> Table:
    """Return a table of the chosen bandwidth, why it was chosen, and how reliable the choice is."""
    met = "met" if record.assumption_1 else "not met"
    content = {
        "rho": record.rho,
        "equivalent rho": f"{record.low:.4g} to {record.high:.4g}",
        "clusters": record.clusters,
        "reason": record.why,
        **{
            f"at rho {other.rho:.4g}": f"{other.clusters} clusters, ARI {other.ari:.3f}"
            for other in record.stability
        },
        "sigma_max <= rho < 0.775": f"{met} (sigma_max {record.sigma_max:.4g})",
        "candidates": f"{record.candidates} ({record.needed_candidates} required)",
        "sample": f"{record.sampled_rows:,} rows of {plural(record.blocks, 'block')}",
    }
    return facts("Bandwidth" if record.basis != "given" else "Sample", content)


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


def _cell(scores: dict[str, Any], name: str, form: _Format) -> str:
    mean, deviation = scores["mean"][name], scores["deviation"][name]
    if mean is None or mean != mean:  # NaN: undefined, such as precision without positives
        return "-"
    if len(scores["seeds"]) == 1:
        return form(mean)
    return f"{form(mean)}\n±{form(deviation)}"
