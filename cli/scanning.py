"""Tables of a scan of rho."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .tables import facts

if TYPE_CHECKING:
    from rich.table import Table


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
