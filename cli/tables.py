"""Tables for people, from what the commands return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .console import size
from .lloyd import iterations_table

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
        from .scanning import scan_facts

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
            size(sum(phase["bytes"] for phase in same)),
            f"{sum(phase['read_seconds'] for phase in same):.2f} s",
            size(max(phase["peak_worker_bytes"] for phase in same)),
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
        "read": size(content["bytes"]),
        "worker memory": size(content["worker_bytes"]),
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
            size(times * phase["bytes"]),
            size(phase["worker_bytes"]),
            f"{times * phase['seconds']:.1f}",
        )
    limit = content["memory_limit"]
    needs = {
        "a worker needs at most": size(content["worker_bytes"]),
        "and has": "no limit" if limit is None else size(limit),
        "the client needs at most": size(content["client_bytes"]),
    }
    return Group(facts("Planned", {name: content[name] for name in names} | needs), table)


def few(items: list[Any], most: int = 5) -> str:
    """The first of many, and how many there are."""
    shown = ", ".join(str(item) for item in items[:most])
    return f"{shown}, ... ({len(items):,} in all)" if len(items) > most else shown


def _text(name: str, value: Any) -> str:
    if value is None or value != value:  # NaN: undefined, such as recall of outliers without any
        return "-"
    if name == "bytes":
        return size(value)
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if name.endswith(("share", "accuracy", "purity", "precision", "recall", "error", "outliers")):
        return f"{100 * value:.2f} %"
    return f"{value:.6g}"
