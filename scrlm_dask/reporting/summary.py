"""Describe a run in sentences and small tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from scrlm_dask.reporting.report_data import ReportData
from scrlm_dask.runs.record import ResultRecord
from scrlm_dask.text import format_bytes, plural

Row = tuple[str, str]


def summary_sentences(run: ReportData) -> list[str]:
    """Return a few sentences about the run."""
    model, record = run.model, run.record
    sentences = [
        f"{method_name(record)} found {plural(model.n_clusters, 'cluster')} in {model.n_rows:,} "
        f"rows of {model.n_features:,} features{_outliers(run)}."
    ]
    if model.n_clusters:
        sentences.append(_sizes(run))
    sentences += _distances(run)
    if record.kmeans is not None and record.iterations:
        sentences.append(
            f"k-means took {plural(len(record.iterations), 'iteration')} and ended at an inertia "
            f"of {record.iterations[-1].inertia:.6g}: {record.kmeans.stopped}."
        )
    sentences.append(_time(record))
    return sentences


def method_name(record: ResultRecord) -> str:
    if record.method == "k-means":
        return "k-means"
    return "SCRLM" if record.kmeans is None else "SCRLM + k-means"


def run_facts(run: ReportData) -> list[Row]:
    """Return settings and input of the run as names and values."""
    record, features, config = run.record, run.record.features, run.record.config
    rows = [
        ("Run", run.location.url),
        ("Features", features.path or features.source),
        ("Shape", f"{features.rows:,} rows x {features.features:,} features"),
        ("Stored as", f"{features.dtype}, {features.blocks:,} blocks"),
        ("Method", method_name(record)),
    ]
    if run.encoded:
        rows.insert(2, ("Encoded", run.encoded))
    names = ("rho", "F", "n_clusters", "n_candidates", "loss_rows", "min_neighbors", "init")
    rows += [(name, _text(config[name])) for name in names if config.get(name) is not None]
    rows += [("radius", f"{record.radius:.6g}")] if record.radius else []
    rows += [("preprocess", str(config.get("preprocess"))), ("seed", str(config.get("seed")))]
    return [
        *rows,
        ("Started", record.started.replace("T", " ").replace("+00:00", " UTC")),
        ("Workers", f"{len(record.workers):,}"),
        ("Versions", ", ".join(f"{name} {v}" for name, v in record.versions.items())),
    ]


def comparison(runs: Sequence[ReportData]) -> list[tuple[str, list[str]]]:
    """Compare runs: return a name and the values of all runs per row."""

    def row(name: str, value: Any) -> tuple[str, list[str]]:
        return name, [value(run) for run in runs]

    return [
        row("method", lambda f: method_name(f.record)),
        row("features", lambda f: f.record.features.path or "-"),
        row("rows", lambda f: f"{f.model.n_rows:,}"),
        row("rho", lambda f: _text(f.record.config.get("rho"))),
        row("radius", lambda f: _text(f.record.radius)),
        row("clusters", lambda f: f"{f.model.n_clusters:,}"),
        row("outliers", lambda f: f"{100 * f.record.outlier_share:.2f} %"),
        row("largest cluster", lambda f: f"{f.model.counts.max(initial=0):,} rows"),
        row("median cluster", lambda f: f"{_median(f.model.counts):,.0f} rows"),
        row("median sigma", lambda f: f"{_median(f.model.sigmas):.4g}"),
        row("median distance", lambda f: _text(f.columns.median_distance)),
        row("inertia", lambda f: f"{f.model.inertia:.6g}"),
        row("seconds", lambda f: f"{f.record.seconds:.1f}"),
        row("largest worker", lambda f: format_bytes(_peak(f.record))),
    ]


def _outliers(run: ReportData) -> str:
    record, n_outliers = run.record, run.model.n_outliers
    if record.radius is None:
        return "; every row has the label of its nearest center"
    if n_outliers == 0:
        return " and no outliers"
    return f" and left {n_outliers:,} rows ({100 * record.outlier_share:.2f} %) as outliers"


def _sizes(run: ReportData) -> str:
    sizes = np.sort(run.model.counts)[::-1]
    half = int(np.searchsorted(np.cumsum(sizes), int(sizes.sum()) / 2)) + 1
    holders = "one holds" if half == 1 else f"{half:,} of them hold"
    return (
        f"The largest cluster holds {sizes[0]:,} rows, the median one {_median(sizes):,.0f} and "
        f"the smallest {sizes[-1]:,}; {holders} half of the rows that have a label."
    )


def _distances(run: ReportData) -> Iterator[str]:
    distance, margin = run.columns.median_distance, run.columns.median_margin
    if distance is not None:
        radius = run.record.radius
        against = f", {distance / radius:.0%} of the radius" if radius else ""
        yield f"Half of them lie within {distance:.4g} of their center{against}."
    if margin is not None:
        yield f"For half of them the second-nearest center is {margin:.4g} farther or more."


def _time(record: ResultRecord) -> str:
    longest = max(record.phase_totals().values(), key=lambda phase: phase.seconds)
    share = longest.seconds / max(record.seconds, 1e-9)
    return (
        f"It took {record.seconds:.1f} s, {min(share, 1.0):.0%} of them for {longest.name}, "
        f"and {format_bytes(_peak(record))} of memory in the largest worker."
    )


def _peak(record: ResultRecord) -> int:
    return max(phase.peak_worker_bytes for phase in record.phases)


def _median(values: Any) -> float:
    return float(np.median(values)) if len(values) else 0.0


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
