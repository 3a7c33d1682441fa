"""HTML of models and progress for notebooks. All names and values are escaped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape as escape_html
from typing import Any

from scrlm_dask.text import first_few, format_bytes, plural, printable, repeated

_STYLE = (
    "font-family:system-ui,sans-serif;font-size:13px;border:1px solid #d9dee3;border-radius:6px;"
    "padding:8px 12px;display:inline-block;min-width:420px;max-width:100%"
)
_CELL = "text-align:left;padding:2px 14px 2px 0;vertical-align:top"
_MAX_CLUSTERS = 5


def escape(text: str) -> str:
    """Return the text without tags, and without characters that change its direction."""
    return escape_html(printable(text))


def facts_html(title: str, facts: Iterable[tuple[str, str]]) -> str:
    """Return HTML of a title and a table of names and values."""
    rows = "".join(
        f'<tr><td style="{_CELL};opacity:.65">{escape(name)}</td>'
        f'<td style="{_CELL}">{escape(value)}</td></tr>'
        for name, value in facts
    )
    return f'<div style="{_STYLE}"><b>{escape(title)}</b><table>{rows}</table></div>'


def model_html(model: Any) -> str:
    """Return HTML of the main numbers of a model."""
    return facts_html("SCRLM model" if len(model.losses) else "Model", model_facts(model))


def progress_html(state: dict[str, Any]) -> str:
    """Return HTML of a progress bar per phase from `RunState.snapshot`."""
    rows = "".join(_bar(phase) for phase in state["phases"])
    ended = "done" if state["error"] is None else f"failed with {state['error']}"
    words = [ended if not state["running"] else "running", f"{state['seconds']:.1f} s"]
    if state["seconds_left"] is not None:
        words.append(f"at most {state['seconds_left']:.0f} s left")
    if state["centers"] is not None:
        words.append(plural(state["centers"], "center"))
    if "outlier_share" in state["labelled"]:
        words.append(f"{100 * state['labelled']['outlier_share']:.2f} % outliers")
    if state["iterations"]:
        words.append(f"inertia {state['iterations'][-1]['inertia']:.6g}")
    peak = max((phase["peak_worker_bytes"] for phase in state["phases"]), default=0)
    if peak and state["planned_worker_bytes"]:
        words.append(
            f"memory {format_bytes(peak)} of {format_bytes(state['planned_worker_bytes'])} planned"
        )
    title, line = escape(state["title"]), escape(", ".join(words))
    return f'<div style="{_STYLE}"><b>{title}</b><table>{rows}</table>{line}</div>'


def _bar(phase: dict[str, Any]) -> str:
    name = repeated(phase["name"], phase["times"])
    left = phase["seconds_left"]
    words = f"{100 * phase['share']:.0f} %, {phase['rows_per_second']:,.0f} rows/s"
    words += f", {left:.0f} s left" if left is not None else f", {phase['seconds']:.1f} s"
    color = "#2f6690" if phase["running"] else "#3f8f6b"
    track = "background:#e3e8ed;border-radius:4px;width:180px;height:10px;margin-top:5px"
    bar = f"background:{color};border-radius:4px;width:{100 * phase['share']:.1f}%;height:10px"
    return (
        f'<tr><td style="{_CELL}">{escape(name)}</td><td style="{_CELL}"><div style="{track}">'
        f'<div style="{bar}"></div></div></td><td style="{_CELL}">{escape(words)}</td></tr>'
    )


def model_facts(model: Any) -> Sequence[tuple[str, str]]:
    """Return the main numbers of a model as names and formatted values."""
    counts = sorted(map(int, model.counts), reverse=True)
    sizes = first_few([f"{count:,}" for count in counts], _MAX_CLUSTERS, total=False)
    share = model.n_outliers / max(model.n_rows, 1)
    # Infinite if every row has the label of its nearest center.
    radius = f"{model.radius:.6g}" if math.isfinite(model.radius) else "-"
    return [
        ("clusters", f"{model.n_clusters:,}"),
        ("largest clusters (rows)", sizes or "-"),
        ("rows", f"{model.n_rows:,} of {plural(model.n_features, 'feature')}"),
        ("outliers", f"{model.n_outliers:,} ({100 * share:.2f} %)"),
        ("radius", radius),
        ("preprocess", model.affine.kind),
        ("inertia", f"{model.inertia:.6g}"),
    ]
