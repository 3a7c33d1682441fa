"""HTML report of one run, or of several runs in comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import reduce
from importlib.metadata import version
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from scrlm_dask.errors import InputError, MissingError, StoreError
from scrlm_dask.events import Listener, Note, warn
from scrlm_dask.kernels.evaluation import metrics
from scrlm_dask.reporting.descriptions import sigma_units
from scrlm_dask.reporting.figures import comparison_figures, run_figures
from scrlm_dask.reporting.plots import check_matplotlib
from scrlm_dask.reporting.report_data import ReportData, plane_map, read_report_data
from scrlm_dask.reporting.summary import comparison, run_facts, shows_structure, summary_sentences
from scrlm_dask.reporting.thumbnails import Item, data_uri, encode_pixels, show_item
from scrlm_dask.runs.record import read_result
from scrlm_dask.sources.items import NpyItems, open_shown_items
from scrlm_dask.storage import outputs
from scrlm_dask.storage.arrays import read_rows
from scrlm_dask.storage.locations import (
    Location,
    Options,
    Place,
    TrustedOrigins,
    locate,
    locate_recorded,
    trust,
)
from scrlm_dask.storage.run_directory import RunDirectory, write_json
from scrlm_dask.storage.traces import InputTrace, trace_input
from scrlm_dask.text import printable_lines

REPORT = "report.html"
GENERATOR = "scrlm-dask report"  # marks a file that a new report may overwrite
SHOWN_CLUSTERS = 30
Figures = Sequence[tuple[str, str, bytes]]


@dataclass(frozen=True)
class ShownItems:
    """Texts or pictures of the example rows in a report."""

    of_rows: Mapping[int, Item] = field(default_factory=dict)
    picture_shape: tuple[int, ...] = ()  # shape of a row; empty if rows are not pictures


def render(
    runs: Sequence[ReportData],
    figures: Sequence[Figures],
    compared: Figures,
    agreement: Sequence[Mapping[str, str]],
    items: ShownItems,
) -> str:
    """Return the HTML page; the template escapes all names and values."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True,
        finalize=lambda value: printable_lines(value) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.from_string((files(__package__) / "report.html").read_text())
    names = [run.name for run in runs]
    several = len(runs) > 1
    return template.render(
        generator=GENERATOR,
        version=version("scrlm-dask"),
        title=f"Report of {len(runs)} runs" if several else f"Report of {names[0]}",
        subtitle=", ".join(run.location.url for run in runs),
        names=names,
        comparison=comparison(runs) if several else [],
        agreement=agreement,
        compared_figures=[_figure(*figure) for figure in compared],
        runs=[_run(run, shown, items) for run, shown in zip(runs, figures, strict=True)],
    )


def shown_clusters(run: ReportData) -> list[int]:
    """Return the numbers of the clusters that the report shows, the largest cluster first."""
    return [int(cluster) for cluster in run.by_size[:SHOWN_CLUSTERS]]


def _run(run: ReportData, figures: Figures, items: ShownItems) -> dict[str, Any]:
    model, record = run.model, run.record
    shown = shown_clusters(run)
    several = f"Largest {len(shown)} of {model.n_clusters:,} clusters"
    return {
        "name": run.name,
        "sentences": summary_sentences(run),
        "notes": run.notes,
        "numbers": [
            (f"{model.n_clusters:,}", "clusters" if shows_structure(run) else "arbitrary clusters"),
            (f"{model.n_rows:,}", "rows"),
            (f"{100 * record.outlier_share:.2f} %", "outliers"),
            (f"{record.seconds:.1f} s", "total time"),
        ],
        "figures": [_figure(*figure) for figure in figures],
        "clusters_title": several if len(shown) < model.n_clusters else "Clusters",
        "clusters": [_cluster(run, cluster) for cluster in shown],
        "extracted": len(model.losses) > 0,
        "sigma_units": sigma_units(model),
        "pairs": [_pair(run, number) for number in range(len(run.pairs.first))],
        "radius": record.radius,
        "prototypes": [_prototype(run, cluster, items) for cluster in shown],
        "facts": run_facts(run),
    }


def _figure(name: str, title: str, png: bytes) -> dict[str, str]:
    return {"name": name, "title": title, "uri": data_uri(png)}


def _cluster(run: ReportData, cluster: int) -> dict[str, str]:
    model = run.model
    return {
        "number": str(cluster),
        "rows": f"{model.counts[cluster]:,}",
        "share": f"{100 * model.counts[cluster] / model.n_rows:.2f} %",
        "weight": f"{model.weights[cluster]:.4f}",
        "sigma": f"{model.sigmas[cluster]:.4g}",
        "loss": f"{model.losses[cluster]:,.1f}" if len(model.losses) else "",
        "nearest": _nearest(run, cluster),
    }


def _nearest(run: ReportData, cluster: int) -> str:
    distances = np.linalg.norm(run.points - run.points[cluster], axis=1)
    distances[cluster] = np.inf
    other = int(distances.argmin())
    return f"{other} (distance {distances[other]:.4g})" if np.isfinite(distances[other]) else "-"


def _pair(run: ReportData, number: int) -> dict[str, str]:
    model, pairs = run.model, run.pairs
    both = [int(pairs.first[number]), int(pairs.second[number])]
    distance, radius = float(pairs.distances[number]), run.record.radius
    return {
        "names": " and ".join(str(cluster) for cluster in both),
        "distance": f"{distance:.4g}",
        "share": f"{distance / radius:.0%}" if radius else "",
        "rows": " and ".join(f"{model.counts[cluster]:,}" for cluster in both),
        "sigmas": " and ".join(f"{model.sigmas[cluster]:.4g}" for cluster in both),
    }


def _prototype(run: ReportData, cluster: int, items: ShownItems) -> dict[str, Any]:
    """Return the rows nearest to a center, and the center as a picture if rows are pictures."""
    center, shape = None, items.picture_shape
    if shape and np.prod(shape) == run.model.n_features:
        center = encode_pixels(run.model.centers[cluster].reshape(shape))
    rows = [int(row) for row in run.columns.nearest.of(cluster)]
    return {
        "number": cluster,
        "rows": f"{run.model.counts[cluster]:,}",
        "center": center,
        "shown": [{**vars(items.of_rows.get(row, Item())), **_name_row(run, row)} for row in rows],
    }


def _name_row(run: ReportData, row: int) -> dict[str, str | None]:
    """Return the id of a row; without ids, its number, and its origin if it is known."""
    ids, origins = run.labelled.ids, run.labelled.origins
    if ids is not None:
        return {"name": str(read_rows(ids, row, row + 1, "the ids")[0]), "origin": None}
    name = f"store row {row:,}"
    if origins is None:
        return {"name": name, "origin": None}
    (number,), (file,) = origins.read(row, row + 1)
    names = run.sources.names
    # the facts of the run contain the path of an only source file
    of_file = f" of {names[file]}" if len(names) > 1 else ""
    return {"name": name, "origin": f"source row {number:,}{of_file}"}


@dataclass(frozen=True)
class ReportFiles:
    """Files that a report wrote.

    Attributes
    ----------
    page : str
        Path or URL of the page.
    figures : tuple of str
        Paths or URLs of the figures.
    """

    page: str
    figures: tuple[str, ...]


def write_report(
    runs: Sequence[Place],
    out: Place | None = None,
    *,
    items: str | Path | None = None,
    items_column: str | None = None,
    rows_each: int = 8,
    storage_options: Options | None = None,
    allow_origins: Sequence[str] = (),
    listener: Listener = warn,
) -> ReportFiles:
    """Write an HTML report of one run, or a comparison of several runs, with PNG figures.

    The default for `out` is `report.html` in the run directory, or in the current folder for
    several runs. `items` is a .npy file, a Parquet file or a folder with a text or a picture for
    every row.
    """
    target = _target(runs, out, storage_options)
    folder = _figures_folder(target)
    for run in runs:
        outputs.check_not_inside(folder, locate(run, storage_options), "the run")
    outputs.check_not_inside(folder, items, "the items")
    outputs.check_output_free(folder, True, outputs.REPORT_KIND)
    check_matplotlib("a report")
    read = [read_report_data(run, rows_each, storage_options, allow_origins) for run in runs]
    for data in read:
        if data.labelled.ids_note is not None:
            listener(Note(data.labelled.ids_note, warning=True))
    items_at = None if items is None else locate(items)
    inputs = (*(each for run in read for each in run.inputs), *trace_input("the items", items_at))
    allowed = trust([run.location for run in read], allow_origins, storage_options)
    shown = _items(read, items, items_column, allowed)
    figures = [list(run_figures(run, plane_map(run.points))) for run in read]
    several = len(read) > 1
    compared = list(comparison_figures(read)) if several else []
    page = render(read, figures, compared, _agreement(read), shown)
    InputTrace(inputs).check()
    named = {
        f"{f'{number}-' if several else ''}{name}.png": png
        for number, each in enumerate(figures, 1)
        for name, _, png in each
    } | {f"{name}.png": png for name, _, png in compared}
    _write_files(target, folder, page, named)
    return ReportFiles(target.url, tuple(f"{folder.url}/{name}" for name in named))


def _write_files(
    target: Location, folder: Location, page: str, figures: Mapping[str, bytes]
) -> None:
    """Write the page and its figures; if this fails, an earlier report stays as it was."""
    with outputs.replacing(folder, True, outputs.REPORT_KIND) as at:
        if not at.is_remote:
            Path(at.url).mkdir(exist_ok=True)
        record = {outputs.KIND: outputs.REPORT_KIND, "status": "running", outputs.FILES: [*figures]}
        write_json(at / outputs.REPORT_RECORD, record | outputs.describe_owner(at))
        for name, png in figures.items():
            outputs.check_owner(at)
            with (at / name).writing() as file:
                file.write(png)
        outputs.check_owner(at)
        target.write_text(page)
        write_json(at / outputs.REPORT_RECORD, record | {"status": "complete"})


def _target(runs: Sequence[Place], out: Place | None, storage_options: Options | None) -> Location:
    """Return the location of the report; raise if the report would overwrite other files."""
    if not runs:
        raise InputError("no runs given; at least one run is required")
    for run in runs:
        read_result(RunDirectory(locate(run, storage_options)))
    if out is None:
        here = locate(REPORT)
        target = here if len(runs) > 1 else locate(runs[0], storage_options) / REPORT
    else:
        target = locate(out, storage_options)
    if not target.url.endswith(".html"):
        raise InputError(f"the name of the report must end in .html, got {target}")
    if not target.is_remote and not Path(target.url).parent.is_dir():
        raise StoreError(f"the folder of the report {target} does not exist; create it first")
    exists, folder = target.exists(), _figures_folder(target)
    if exists and not (target.is_file() and GENERATOR.encode() in target.read_bytes()[:1000]):
        raise StoreError(f"{target} exists and is not a report; use another name (--out)")
    if not exists and folder.is_occupied():
        raise StoreError(
            f"the folder {folder} for the figures exists but does not belong to a report; use "
            "another name (--out)"
        )
    return target


def _figures_folder(target: Location) -> Location:
    return Location(target.url.removesuffix(".html"), target.options)


def _items(
    runs: Sequence[ReportData],
    items: str | Path | None,
    column: str | None,
    trusted: TrustedOrigins,
) -> ShownItems:
    """Read the items of the example rows."""
    if items is None:
        return ShownItems()
    rows, opened = set[int](), None
    for run in runs:
        _check_order(run, items, trusted)
        opened = open_shown_items(items, column, run.model.n_rows)
        for cluster in shown_clusters(run):
            rows.update(int(row) for row in run.columns.nearest.of(cluster))
    assert opened is not None
    shape = opened.values.shape[1:] if isinstance(opened, NpyItems) else ()
    return ShownItems({row: show_item(value) for row, value in opened.read(rows)}, tuple(shape))


def _check_order(run: ReportData, items: str | Path, trusted: TrustedOrigins) -> None:
    """Raise if the items may be in another order than the rows of the run."""
    recorded = run.features
    if recorded is None:
        return
    location = locate_recorded(recorded.path, trusted)
    if recorded.were_shuffled(trusted):
        raise InputError(
            f"the rows of {recorded.path} were shuffled during ingest, so the items {items} are in "
            "a different order; ingest the features without --shuffle"
        )
    try:
        with suppress(MissingError):  # features may be removed after a run
            recorded.open_unchanged(location)
    except StoreError as error:
        raise StoreError(
            f"{error}, so the items {items} may belong to other rows; fit again, or omit --items"
        ) from error


def _agreement(runs: Sequence[ReportData]) -> list[dict[str, str]]:
    """Compare the labels of each pair of runs that used the same features."""
    rows = []
    for a, b in combinations(runs, 2):
        digest = a.record.features.digest
        if digest is None or digest != b.record.features.digest:
            continue
        scores = metrics.scores(_table(a, b))
        rows.append(
            {
                "names": f"{a.name} and {b.name}",
                "ari": f"{scores.ari:.4f}",
                "nmi": f"{scores.nmi:.4f}",
                "accuracy": f"{100 * scores.accuracy:.2f} %",
            }
        )
    return rows


def _table(a: ReportData, b: ReportData) -> metrics.Contingency:
    """Count the rows for each pair of labels of two runs."""
    tables = (
        metrics.contingency(
            piece.labels, b.labelled.read(piece.start, piece.start + len(piece.labels)).labels
        )
        for piece in a.labelled.pieces()
    )
    return reduce(metrics.merge_contingency, tables)
