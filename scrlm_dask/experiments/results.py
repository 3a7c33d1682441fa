"""What an experiment leaves in its folder: tables, figures and a summary."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from importlib.util import find_spec
from io import BytesIO, StringIO
from typing import Any

from scrlm_dask.experiments.experiment import Findings
from scrlm_dask.extras import require
from scrlm_dask.storage.locations import Location
from scrlm_dask.storage.runs import write_json
from scrlm_dask.watching.lines import plain

TABLE, SUMMARY = "results", "summary.json"
NO_FIGURES = (
    "no figures: Matplotlib is not installed; install scrlm-dask[plot] and run the command again, "
    "which repeats no cell"
)


def write_findings(
    folder: Location, found: Findings, head: dict[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Write everything; returns the summary as it was written, and the names of the files."""
    files = [*_write_tables(folder, found.rows), *_write_figures(folder, found)]
    notes = list(found.notes) + ([] if find_spec("matplotlib") else [NO_FIGURES])
    summary = {**head, **found.summary, "notes": notes, "files": [*files, SUMMARY]}
    summary = plain(summary)
    # last: where it is, the rest is, too
    write_json(folder / SUMMARY, summary)
    return summary, [*files, SUMMARY]


def _write_tables(folder: Location, rows: list[dict[str, Any]]) -> list[str]:
    """CSV always, Parquet where pyarrow is installed."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    (folder / f"{TABLE}.csv").write_text(text.getvalue())
    if find_spec("pyarrow") is None:
        return [f"{TABLE}.csv"]
    columns = {name: [row.get(name) for row in rows] for name in names}
    content = BytesIO()
    table = require("pyarrow", "a table").table(columns)
    require("pyarrow.parquet", "Parquet").write_table(table, content)
    _write_bytes(folder / f"{TABLE}.parquet", content.getvalue())
    return [f"{TABLE}.csv", f"{TABLE}.parquet"]


def _write_figures(folder: Location, found: Findings) -> Iterable[str]:
    if find_spec("matplotlib") is None:
        return
    for name, content in found.figures().items():
        _write_bytes(folder / name, content)
        yield name


def _write_bytes(place: Location, content: bytes) -> None:
    with place.writing() as file:
        file.write(content)
