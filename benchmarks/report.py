"""Results of the benchmarks: tables as Markdown and JSON, and a description of the machine."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np  # noqa: F401  loads the BLAS library that threadpoolctl reports
from threadpoolctl import threadpool_info

from scrlm_dask.clusters.local import available_cores
from scrlm_dask.engine.workers import machine_memory

_PACKAGES = ("numpy", "dask", "zarr", "numba", "scikit-learn")


@dataclass(frozen=True)
class Table:
    """A table of measurements; all rows have the same keys."""

    title: str
    rows: list[dict[str, Any]]
    note: str = ""

    def markdown(self) -> str:
        names = list(self.rows[0]) if self.rows else []
        lines = [[name.replace("_", " ") for name in names], ["---"] * len(names)]
        lines += [[cell(row[name]) for name in names] for row in self.rows]
        table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
        return "\n\n".join(text for text in (f"### {self.title}", self.note, table) if text)


@dataclass
class Outcome:
    """Result of a part: its status (done, skipped or failed), and its tables and plots so far."""

    status: str = "done"
    why: str = ""
    seconds: float = 0.0
    tables: list[Table] = field(default_factory=list)
    plots: list[str] = field(default_factory=list)

    def markdown(self, name: str) -> str:
        status = f"{self.status}{': ' if self.why else ''}{self.why} ({self.seconds:.0f} s)"
        texts = [f"## {name}", status, *(table.markdown() for table in self.tables)]
        return "\n\n".join([*texts, *(f"![{name}]({plot})" for plot in self.plots)])


def write_results(out: Path, size: str, outcomes: dict[str, Outcome]) -> None:
    """Write all results so far; called after each part, so an interrupted run keeps its results."""
    here = machine()
    facts = "\n".join(f"- {name}: {value}" for name, value in here.items())
    parts = [outcome.markdown(name) for name, outcome in outcomes.items()]
    text = "\n\n".join([f"# Benchmarks, size {size}", facts, *parts])
    (out / "results.md").write_text(text + "\n")
    found = {name: asdict(outcome) for name, outcome in outcomes.items()}
    content = {"size": size, "machine": here, "parts": found}
    (out / "results.json").write_text(json.dumps(content, indent=2) + "\n")


def machine() -> dict[str, str]:
    """Return processor, usable cores, memory, and versions of the main packages."""
    return {
        "CPU": _cpu_model(),
        "cores": str(available_cores()),
        "memory": f"{machine_memory() / 1e9:.0f} GB",
        "system": platform.platform(),
        "Python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES},
        "BLAS": ", ".join(_blas()),
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _blas() -> list[str]:
    libraries = (pool for pool in threadpool_info() if pool["user_api"] == "blas")
    return sorted(
        {
            " ".join(
                str(pool.get(key) or "") for key in ("internal_api", "version", "architecture")
            )
            for pool in libraries
        }
    )


def cell(value: Any) -> str:
    """Format a value for a table: three significant digits, and spaces between thousands."""
    if value is None:
        return ""
    if isinstance(value, float) and abs(value) < 1000:
        return f"{value:.3g}"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,.0f}".replace(",", " ")
    return str(value)
