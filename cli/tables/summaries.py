"""Tables for people, from what the commands return."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scrlm_dask.text import format_bytes

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


_MOST_CLUSTERS = 10


def facts(title: str, content: dict[str, Any]) -> Table:
    """Names and values, one a row."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right", overflow="fold")
    for name, value in content.items():
        table.add_row(name.replace("_", " "), _text(name, value))
    return table


def fit_summary(content: dict[str, Any], model: Any) -> Group:
    """What a fit found, its largest clusters, and where the time went."""
    from rich.console import Group

    names = ("rows", "features", "clusters", "outliers", "outlier_share", "rho", "radius")
    found = {key: content[key] for key in (*names, "inertia") if content[key] is not None}
    parts: list[Any] = [facts("Found", found)]
    if content.get("scan", {}).get("rungs"):
        parts.append(scan_facts(content["scan"]))
    if model.n_clusters:
        parts.append(clusters_table(model))
    if "kmeans" in content:
        parts.append(iterations_table(content["kmeans"]))
    parts.append(phases_table(content["phases"]))
    return Group(*parts)


def clusters_table(model: Any) -> Table:
    from rich.table import Table

    shown = min(model.n_clusters, _MOST_CLUSTERS)
    title = f"The first {shown} of {model.n_clusters} clusters" if shown < model.n_clusters else ""
    table = Table(title=title or "Clusters", title_justify="left")
    extracted = len(model.losses) > 0
    names = ["cluster", "rows", "weight", "sigma"]
    config = model.config
    # only the paper's greedy extraction leaves centers on rows
    moved = extracted and (
        config.polish or config.refine.max_iter or config.extraction in ("residual", "merge")
    )
    where = "began at row" if moved else "center is row"
    for name in [*names, "loss", where] if extracted else names:
        table.add_column(name, justify="right")
    for k in range(shown):
        cells = [
            str(k),
            f"{model.counts[k]:,}",
            f"{model.weights[k]:.4f}",
            f"{model.sigmas[k]:.4g}",
        ]
        if extracted:
            cells += [f"{model.losses[k]:,.1f}", f"{model.center_rows[k]:,}"]
        table.add_row(*cells)
    return table


def phases_table(phases: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table(title="Phases", title_justify="left")
    for name in ("phase", "seconds", "rows/s", "read", "reading", "worker peak"):
        table.add_column(name, justify="left" if name == "phase" else "right")
    for name in dict.fromkeys(phase["name"] for phase in phases):
        # iterations are one phase to a person
        same = [phase for phase in phases if phase["name"] == name]
        seconds = sum(phase["seconds"] for phase in same)
        rate = sum(phase["rows"] for phase in same) / max(seconds, 1e-9)
        table.add_row(
            name if len(same) == 1 else f"{name} x {len(same)}",
            f"{seconds:.2f}",
            f"{rate:,.0f}",
            format_bytes(sum(phase["bytes"] for phase in same)),
            f"{sum(phase['read_seconds'] for phase in same):.2f} s",
            format_bytes(max(phase["peak_worker_bytes"] for phase in same)),
        )
    return table


def plan_summary(content: dict[str, Any]) -> Group:
    """What a fit would take, phase by phase and in all."""
    from rich.console import Group
    from rich.table import Table

    names = ("rows", "features", "candidates", "clusters", "workers", "threads")
    table = Table(title="Phases", title_justify="left", show_footer=True)
    footers = {
        "phase": "in all",
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
            phase["name"] if times == 1 else f"{phase['name']} x {times}",
            f"{times * phase['flops']:.3g}",
            format_bytes(times * phase["bytes"]),
            format_bytes(phase["worker_bytes"]),
            f"{times * phase['seconds']:.1f}",
        )
    limit = content["memory_limit"]
    needs = {
        "a worker needs at most": format_bytes(content["worker_bytes"]),
        "and has": "no limit" if limit is None else format_bytes(limit),
        "the client needs at most": format_bytes(content["client_bytes"]),
    }
    return Group(facts("Planned", {name: content[name] for name in names} | needs), table)


def first_few(items: list[Any], most: int = 5) -> str:
    """The first of many, and how many there are."""
    shown = ", ".join(str(item) for item in items[:most])
    return f"{shown}, ... ({len(items):,} in all)" if len(items) > most else shown


def _text(name: str, value: Any) -> str:
    if value is None or value != value:  # NaN: undefined, such as recall of outliers without any
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


_BAR = 8


_MOST_ROWS = 20


def iterations_table(record: dict[str, Any]) -> Table:
    """Each iteration with its inertia as a bar; of many, the first and the last ones."""
    from rich.table import Table

    iterations = record["iterations"]
    table = Table(title=f"k-means ended by {record['stopped']}", title_justify="left")
    for name in ("", "inertia", "per row", "shift", "moved", "empty", "seconds"):
        table.add_column(name, justify="left" if name == "per row" else "right", no_wrap=True)
    # a row's share: samples have fewer rows
    values = [it["inertia"] / max(it["rows"], 1) for it in iterations]
    low, high = min(values, default=0.0), max(values, default=0.0)
    for i, (it, value) in enumerate(zip(iterations, values, strict=True)):
        if _MOST_ROWS // 2 <= i < len(iterations) - _MOST_ROWS // 2:
            if i == _MOST_ROWS // 2:
                table.add_row("...", "", "", "", "", "", "")
            continue
        share = (value - low) / (high - low) if high > low else 0.0
        table.add_row(
            f"{it['number']}{' (sample)' if it['sampled'] else ''}",
            f"{it['inertia']:,.6g}",
            "█" * max(1, round(_BAR * share)),
            "-" if it["shift"] is None else f"{it['shift']:.2g}",
            "-" if it["moved"] is None else f"{it['moved']:,}",
            str(it["empty"]),
            f"{it['seconds']:.2f}",
        )
    return table


def scan_table(record: dict[str, Any]) -> Table:
    """A rung a line; those of the chosen interval are marked."""
    from rich.table import Table

    table = Table(title="Ladder of rho on the sample", title_justify="left")
    names = ("", "rho", "clusters", "outliers", "shell", "neighbours", "held out")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for rung in record["rungs"]:
        inside = record["low"] <= rung["rho"] <= record["high"]
        held_out = rung["held_out"]
        table.add_row(
            "█" if inside else "",
            f"{rung['rho']:.4g}",
            f"{rung['clusters']:,}",
            f"{1 - rung['coverage']:.1%}",
            f"{rung['shell']:.3f}",
            f"{rung['neighbors'][1]:,.0f}",
            "-" if held_out is None else f"{held_out:.5g}",
        )
    return table


def scan_facts(record: dict[str, Any]) -> Table:
    """What was chosen, why, and how far it can be trusted."""
    content = {
        "rho": record["rho"],
        "would do as well": f"{record['low']:.4g} to {record['high']:.4g}",
        "clusters": record["clusters"],
        "why": record["why"],
    }
    for nudged in record["stability"]:
        name = f"at rho {nudged['rho']:.4g}"
        content[name] = f"{nudged['clusters']} clusters, ARI {nudged['ari']:.3f}"
    met = "met" if record["assumption_1"] else "not met"
    content["sigma_max <= rho < 0.775"] = f"{met}: sigma_max is {record['sigma_max']:.4g}"
    content["candidates"] = f"{record['candidates']}, of {record['needed_candidates']} needed"
    content["sample"] = f"{record['sampled_rows']:,} rows of {record['blocks']} block(s)"
    return facts("rho chosen" if record["basis"] != "given" else "Sample", content)


_Format = Callable[[float], str]


def _percent(value: float) -> str:
    return f"{100 * value:.2f}"


def _three(value: float) -> str:
    return f"{value:.3f}"


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.2f}"


def _megabytes(value: float) -> str:
    return f"{value / 1e6:.0f}"


# short, so that all fit 80 columns beside each other
_COLUMNS: dict[str, tuple[str, _Format]] = {
    "accuracy": ("acc. %", _percent),
    "purity": ("purity %", _percent),
    "nmi": ("NMI", _three),
    "ari": ("ARI", _three),
    "outlier_precision": ("outl. prec. %", _percent),
    "outlier_recall": ("outl. recall %", _percent),
    "cpu_seconds": ("CPU s", _seconds),
    "wall_seconds": ("wall s", _seconds),
    "peak_bytes": ("peak MB", _megabytes),
}


def comparison_table(content: dict[str, Any]) -> Group:
    """A method a line, with its spread over several seeds; below, why some did not finish."""
    from rich import box
    from rich.console import Group
    from rich.table import Table

    title = f"{content['rows']:,} rows x {content['features']:,} features"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    table.add_column("method", no_wrap=True)
    for heading, _ in _COLUMNS.values():
        table.add_column(heading, justify="right", overflow="fold")
    reasons: list[Any] = []
    for found in content["methods"]:
        cells = [_cell(found, name, form) for name, (_, form) in _COLUMNS.items()]
        table.add_row(found["method"], *cells)
        if found["reason"] is not None:
            reasons.append(f"{found['method']}: {found['reason']}")
    return Group(table, *reasons)


def _cell(found: dict[str, Any], name: str, form: _Format) -> str:
    mean, deviation = found["mean"][name], found["deviation"][name]
    if mean is None or mean != mean:  # NaN: undefined, such as precision where nothing was called
        return "-"
    if len(found["seeds"]) == 1:
        return form(mean)
    return f"{form(mean)}\n±{form(deviation)}"
