"""Runs and models as a notebook shows them. Everything that comes from outside is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from scrlm_dask.text import format_bytes, plural

_STYLE = (
    "font-family:system-ui,sans-serif;font-size:13px;border:1px solid #d9dee3;border-radius:6px;"
    "padding:8px 12px;display:inline-block;min-width:420px;max-width:100%"
)
_CELL = "text-align:left;padding:2px 14px 2px 0;vertical-align:top"
_MOST_CLUSTERS = 5


def facts_html(title: str, facts: Iterable[tuple[str, str]]) -> str:
    """Names and values below a title."""
    rows = "".join(
        f'<tr><td style="{_CELL};opacity:.65">{escape(name)}</td>'
        f'<td style="{_CELL}">{escape(value)}</td></tr>'
        for name, value in facts
    )
    return f'<div style="{_STYLE}"><b>{escape(title)}</b><table>{rows}</table></div>'


def model_html(model: Any) -> str:
    return facts_html("SCRLM model" if len(model.losses) else "Model", _model_facts(model))


def run_html(model: Any, record: dict[str, Any]) -> str:
    """What a run found, and where its time went."""
    phases = record.get("phases", [])
    spent = dict.fromkeys(dict.fromkeys(phase["name"] for phase in phases), 0.0)
    for phase in phases:
        spent[phase["name"]] += phase["seconds"]
    times = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in spent.items())
    iterations = record.get("kmeans", {}).get("iterations", [])
    facts = [
        ("features", str(record["features"].get("path") or record["features"].get("source"))),
        *_model_facts(model),
        ("time", f"{record['seconds']:.2f} s: {times}"),
    ]
    if iterations:
        steps = plural(len(iterations), "iteration")
        facts.append(("k-means", f"{steps}; {record['kmeans']['stopped']}"))
    return facts_html(f"Run of {record['method']}", facts)


def progress_html(state: dict[str, Any]) -> str:
    """How a run stands, from `RunState.snapshot`: a bar a phase."""
    rows = "".join(_bar(phase) for phase in state["phases"])
    ended = "done" if state["error"] is None else f"ended by {state['error']}"
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
    name = phase["name"] if phase["times"] == 1 else f"{phase['name']} x {phase['times']}"
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


def _model_facts(model: Any) -> Sequence[tuple[str, str]]:
    counts = sorted((int(count) for count in model.counts), reverse=True)
    more = ", ..." if len(counts) > _MOST_CLUSTERS else ""
    sizes = ", ".join(f"{count:,}" for count in counts[:_MOST_CLUSTERS])
    share = model.n_outliers / max(model.n_rows, 1)
    return [
        ("clusters", f"{model.n_clusters:,}"),
        ("rows of the largest", f"{sizes}{more}" or "-"),
        ("rows", f"{model.n_rows:,} of {plural(model.n_features, 'feature')}"),
        ("outliers", f"{model.n_outliers:,} ({100 * share:.2f} %)"),
        ("inertia", f"{model.inertia:.6g}"),
    ]
