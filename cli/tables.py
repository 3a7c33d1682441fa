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
    moved = model.config.polish or model.config.refine.max_iter if extracted else False
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
    for name in ("phase", "seconds", "rows/s", "read", "peak memory of a worker"):
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
            size(max(phase["peak_worker_bytes"] for phase in same)),
        )
    return table


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
