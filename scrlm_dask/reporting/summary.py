"""Summary of a run in sentences and small tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from scrlm_dask.reporting.descriptions import (
    choice_sentences,
    describe_agreement,
    describe_others,
    describe_outside,
    describe_preprocess,
    describe_radius,
    describe_representation,
    describe_structure,
)
from scrlm_dask.reporting.report_data import ReportData, SourceFiles
from scrlm_dask.runs.record import ResultRecord
from scrlm_dask.text import format_bytes, plural

Row = tuple[str, str]


def summary_sentences(run: ReportData) -> list[str]:
    """Return a few sentences that summarize the run."""
    model, record = run.model, run.record
    sentences = [_result(run)]
    if run.levels is not None:
        sentences += choice_sentences(run.levels)
    if model.n_clusters:
        sentences.append(_sizes(run))
    sentences += _distances(run)
    if record.kmeans is not None and record.iterations:
        sentences.append(
            f"k-means stopped after {plural(len(record.iterations), 'iteration')} with inertia "
            f"{record.iterations[-1].inertia:.6g}: {record.kmeans.stopped}."
        )
    sentences.append(_time(record))
    return sentences


def _result(run: ReportData) -> str:
    """Return a sentence on clusters and outliers; clusters without structure were not found."""
    model, name = run.model, method_name(run.record)
    clusters = plural(model.n_clusters, "cluster")
    rows = f"{plural(model.n_rows, 'row')} with {plural(model.n_features, 'feature')}"
    if shows_structure(run):
        return f"{name} found {clusters} in {rows}; {_outliers(run)}."
    return f"{name} divided {rows} into {clusters}; {_outliers(run)}."


def shows_structure(run: ReportData) -> bool:
    """Return whether the clusters were found, and are not an arbitrary division of the rows."""
    return run.levels is None or run.levels.structure != "none"


def method_name(record: ResultRecord) -> str:
    """Return the display name of the method."""
    if record.method == "k-means":
        return "k-means"
    return "SCRLM" if record.kmeans is None else "SCRLM + k-means"


def run_facts(run: ReportData) -> list[Row]:
    """Return input and settings of the run as names and values."""
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
    elif run.sources.names:
        rows.insert(2, _source_fact(run.sources))
    names = ["F", "n_clusters", "n_candidates", "loss_rows", "min_neighbors", "init"]
    if run.levels is None:  # otherwise rho was neither given nor chosen
        names.insert(0, "rho")
    rows += [(name, _text(config[name])) for name in names if config.get(name) is not None]
    rows += _choice_facts(run)
    rows += [("preprocess", describe_preprocess(config, run.asked))]
    rows += [("radius", describe_radius(record.radius, config, run.asked))] if record.radius else []
    return [
        *rows,
        ("seed", str(config.get("seed"))),
        ("Started", record.started.replace("T", " ").replace("+00:00", " UTC")),
        ("Workers", f"{len(record.workers):,}"),
        ("Versions", ", ".join(f"{name} {v}" for name, v in record.versions.items())),
    ]


def _source_fact(sources: SourceFiles) -> Row:
    """Return the path of the only source file, or the number and the folder of several files."""
    if len(sources.names) == 1:
        return "Source file", f"{sources.folder}{sources.names[0]}"
    folder = f" in {sources.folder}" if sources.folder else ""
    return "Source files", f"{len(sources.names):,}{folder}"


def _choice_facts(run: ReportData) -> Iterator[Row]:
    """Yield the choices that the scan of a sample made, other than rho."""
    scan = run.scan
    if scan is None:
        return
    levels = scan.levels
    if levels is not None:
        yield "structure", describe_structure(levels)
        others = describe_others(levels)
        yield from [("other numbers of clusters", others)] if others else []
        yield "agreement of two samples", describe_agreement(levels)
    for trial in scan.representations:
        yield f"modularity of {trial.preprocess}", describe_representation(trial)
    structured = scan.levels is None or scan.levels.structure != "none"
    if scan.null is not None and run.record.radius is None and structured:
        hint = '--outliers auto (outlier_share="auto") labels such rows -1'
        yield "outside the radius", f"{describe_outside(scan.null)}; {hint}"


def comparison(runs: Sequence[ReportData]) -> list[tuple[str, list[str]]]:
    """Compare runs: return table rows, each with a name and one value per run."""

    def row(name: str, value: Any) -> tuple[str, list[str]]:
        return name, [value(run) for run in runs]

    return [
        row("method", lambda f: method_name(f.record)),
        row("features", lambda f: f.record.features.path or "-"),
        row("rows", lambda f: f"{f.model.n_rows:,}"),
        row("preprocess", lambda f: str(f.record.config.get("preprocess"))),
        row("rho", lambda f: _text(f.record.config.get("rho") if f.levels is None else None)),
        row("radius", lambda f: _text(f.record.radius)),
        row("clusters", lambda f: f"{f.model.n_clusters:,}"),
        row("structure", lambda f: "-" if f.levels is None else f.levels.structure),
        row("outliers", lambda f: f"{100 * f.record.outlier_share:.2f} %"),
        row("largest cluster", lambda f: f"{f.model.counts.max(initial=0):,} rows"),
        row("median cluster", lambda f: f"{_median(f.model.counts):,.0f} rows"),
        row("median sigma", lambda f: f"{_median(f.model.sigmas):.4g}"),
        row("median distance", lambda f: _text(f.columns.median_distance)),
        row("inertia", lambda f: f"{f.model.inertia:.6g}"),
        row("seconds", lambda f: f"{f.record.seconds:.1f}"),
        row("peak worker memory", lambda f: format_bytes(_peak(f.record))),
    ]


def _outliers(run: ReportData) -> str:
    record, n_outliers = run.record, run.model.n_outliers
    if record.radius is None:
        return "every row is assigned to its nearest center"
    if n_outliers == 0:
        return "there are no outliers"
    verb = "is an outlier" if n_outliers == 1 else "are outliers"
    return (
        f"{plural(n_outliers, 'row')} ({100 * record.outlier_share:.2f} %) {verb}, farther than "
        f"{record.radius:.4g} from every center"
    )


def _sizes(run: ReportData) -> str:
    sizes = np.sort(run.model.counts)[::-1]
    half = int(np.searchsorted(np.cumsum(sizes), int(sizes.sum()) / 2)) + 1
    largest = "It contains" if half == 1 else f"The {half:,} largest clusters contain"
    return (
        f"The largest cluster has {plural(int(sizes[0]), 'row')}, the median cluster "
        f"{_median(sizes):,.0f} and the smallest {sizes[-1]:,}. "
        f"{largest} at least half of the labelled rows."
    )


def _distances(run: ReportData) -> Iterator[str]:
    distance, margin = run.columns.median_distance, run.columns.median_margin
    if distance is not None:
        radius = run.record.radius
        share = f" ({distance / radius:.0%} of the radius)" if radius else ""
        yield f"Half of the labelled rows are within {distance:.4g} of their center{share}."
    if margin is not None:
        yield (
            "For half of the labelled rows, the second-nearest center is at least "
            f"{margin:.4g} farther away than the nearest."
        )


def _time(record: ResultRecord) -> str:
    longest = max(record.phase_totals().values(), key=lambda phase: phase.seconds)
    share = longest.seconds / max(record.seconds, 1e-9)
    return (
        f"The run took {record.seconds:.1f} s, of which {min(share, 1.0):.0%} was spent in the "
        f"phase {longest.name}. The peak memory of a worker was {format_bytes(_peak(record))}."
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
