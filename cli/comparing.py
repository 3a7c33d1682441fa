"""The table of methods beside each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Group

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
