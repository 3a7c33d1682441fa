"""`scrlm report`: one page that needs no other file, and its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.kernels.metrics import Contingency, contingency, merge_contingency, scores
from scrlm_dask.reporting.findings import Findings, read_findings
from scrlm_dask.reporting.items import Item, NpyItems, open_items
from scrlm_dask.reporting.maps import plane_map
from scrlm_dask.reporting.page import GENERATOR, render, shown_clusters
from scrlm_dask.reporting.plots import check_plots, comparison_figures, run_figures
from scrlm_dask.storage.features import is_shuffled
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.runs import RunDirectory

REPORT = "report.html"


@dataclass(frozen=True)
class Report:
    """Where the page lies, and its figures beside it."""

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
) -> Report:
    """A page on one run, or one that compares several, and its figures as PNG files.

    It goes to `report.html` in the run, or, of several runs, in the current folder. `items` has a
    text or a picture for every row: a .npy or Parquet file or a folder.
    """
    target = _target(runs, out, storage_options)
    check_plots()
    found = [read_findings(run, rows_each, storage_options) for run in runs]
    shown, shape = _items(found, items, items_column, storage_options)
    figures = [list(run_figures(each, plane_map(each.points))) for each in found]
    several = len(found) > 1
    compared = list(comparison_figures(found)) if several else []
    page = render(found, figures, compared, _agreement(found), shown, shape)
    named = {
        f"{f'{number}-' if several else ''}{name}.png": png
        for number, each in enumerate(figures, 1)
        for name, _, png in each
    } | {f"{name}.png": png for name, _, png in compared}
    folder = _figures_folder(target)
    if not target.is_remote:
        Path(folder.url).mkdir(parents=True, exist_ok=True)
    target.write_text(page)  # first: it says whose the folder is
    for name, png in named.items():
        with (folder / name).writing() as file:
            file.write(png)
    return Report(target.url, tuple(f"{folder.url}/{name}" for name in named))


def _target(runs: Sequence[Place], out: Place | None, storage_options: Options | None) -> Location:
    """Where the report goes: never over a file that is none."""
    if not runs:
        raise InputError("no run was given; name at least one")
    for run in runs:
        RunDirectory(locate(run, storage_options)).result()
    if out is None:
        here = locate(REPORT)
        target = here if len(runs) > 1 else locate(runs[0], storage_options) / REPORT
    else:
        target = locate(out, storage_options)
    if not target.url.endswith(".html"):
        raise InputError(f"the report {target} does not end in .html; give a name that does")
    if not target.is_remote and not Path(target.url).parent.is_dir():
        raise StoreError(f"the folder of the report {target} does not exist; make it first")
    there, folder = target.exists(), _figures_folder(target)
    if there and not (target.is_file() and GENERATOR.encode() in target.read_bytes()[:1000]):
        raise StoreError(
            f"{target} exists and is no report, so it is left alone: choose another name (--out)"
        )
    if not there and folder.is_occupied():
        raise StoreError(
            f"{folder}, where the figures would go, exists without a report beside it, so it is "
            "left alone: choose another name (--out)"
        )
    return target


def _figures_folder(target: Location) -> Location:
    return Location(target.url.removesuffix(".html"), target.options)


def _items(
    runs: Sequence[Findings],
    items: str | Path | None,
    column: str | None,
    storage_options: Options | None,
) -> tuple[Mapping[int, Item], tuple[int, ...] | None]:
    """The items of the rows that are shown, and the shape of pictures where centers have one."""
    if items is None:
        return {}, None
    wanted: set[int] = set()
    opened = None
    for found in runs:
        path = found.record["features"].get("path")
        if path is not None and is_shuffled(locate(path, storage_options)):
            raise InputError(
                f"the rows of {path} were shuffled when they were ingested, so that the items "
                f"{items} are in another order; ingest the features without --shuffle"
            )
        opened = open_items(items, column, found.model.n_rows)
        for cluster in shown_clusters(found):
            wanted.update(int(row) for row in found.columns.nearest.of(cluster))
    assert opened is not None
    shape = opened.values.shape[1:] if isinstance(opened, NpyItems) else ()
    return opened.get(wanted), tuple(shape) or None


def _agreement(runs: Sequence[Findings]) -> list[dict[str, str]]:
    """How far the labels of runs on the same features agree, pair by pair."""
    rows = []
    for a, b in combinations(runs, 2):
        path = a.record["features"].get("path")
        same = path is not None and path == b.record["features"].get("path")
        if not same or a.model.n_rows != b.model.n_rows:
            continue
        found = scores(_table(a, b))
        rows.append(
            {
                "names": f"{a.name} and {b.name}",
                "ari": f"{found.ari:.4f}",
                "nmi": f"{found.nmi:.4f}",
                "accuracy": f"{100 * found.accuracy:.2f} %",
            }
        )
    return rows


def _table(a: Findings, b: Findings) -> Contingency:
    """How often each label of one met each of the other."""
    tables = (
        contingency(
            piece.labels, b.labelled.read(piece.start, piece.start + len(piece.labels)).labels
        )
        for piece in a.labelled.pieces()
    )
    total = next(tables)
    for table in tables:
        total = merge_contingency(total, table)
    return total
