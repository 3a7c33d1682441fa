"""Run an experiment of the paper: measure missing cells, write tables and figures."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from io import BytesIO, StringIO
from typing import Any

from scrlm_dask.engine.execution import Execution, task
from scrlm_dask.engine.workers import compute, current_client
from scrlm_dask.errors import InputError
from scrlm_dask.events import BlockDone, Listener, Note, RunStarted, warn
from scrlm_dask.monitoring.json_log import plain
from scrlm_dask.optional import import_optional
from scrlm_dask.paper import framework
from scrlm_dask.paper.framework import Cell, Experiment, ExperimentResult, Result, Size
from scrlm_dask.paper.methods import define_methods
from scrlm_dask.paper.regions import define_bandwidth, define_bounds
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.run_directory import write_json

ON_MIXTURES: dict[str, Callable[[Size], Experiment]] = {
    "bounds": define_bounds,
    "bandwidth": define_bandwidth,
    "methods": define_methods,
}
IMAGES = "images"  # the only experiment with data sets as input
NAMES = (*ON_MIXTURES, IMAGES)
TABLE, SUMMARY = "results", "summary.json"
NO_FIGURES = (
    "no figures were drawn: Matplotlib is not installed; install scrlm-dask[plot] and run the "
    "command again. Finished cells are not repeated"
)


def write_results(
    folder: Location, result: ExperimentResult, head: dict[str, Any]
) -> dict[str, Any]:
    """Write all files; return the content of `summary.json`, which lists the files."""
    files = [*_write_tables(folder, result.rows), *_write_figures(folder, result), SUMMARY]
    notes = [*result.notes, *([] if find_spec("matplotlib") else [NO_FIGURES])]
    summary: dict[str, Any] = plain({**head, **result.summary, "notes": notes, "files": files})
    write_json(folder / SUMMARY, summary)  # written last: if it exists, all other files do
    return summary


def _write_tables(folder: Location, rows: list[dict[str, Any]]) -> list[str]:
    """Write CSV, and Parquet if pyarrow is installed; return the file names."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    (folder / f"{TABLE}.csv").write_text(text.getvalue())
    if find_spec("pyarrow") is None:
        return [f"{TABLE}.csv"]
    columns = {name: [row.get(name) for row in rows] for name in names}
    table = import_optional("pyarrow", "a table").table(columns)
    file = BytesIO()
    import_optional("pyarrow.parquet", "Parquet").write_table(table, file)
    _write_bytes(folder / f"{TABLE}.parquet", file.getvalue())
    return [f"{TABLE}.csv", f"{TABLE}.parquet"]


def _write_figures(folder: Location, result: ExperimentResult) -> list[str]:
    figures = result.figures() if find_spec("matplotlib") else {}
    for name, png in figures.items():
        _write_bytes(folder / name, png)
    return list(figures)


def _write_bytes(path: Location, data: bytes) -> None:
    with path.writing() as file:
        file.write(data)


Measure = Callable[[Any], Result]
Keep = Callable[[Any, Result], None]


def run_cells(
    execution: Execution, name: str, cells: Sequence[Cell], measure: Measure, keep: Keep
) -> None:
    """Measure every cell; call `keep` in this process with each result as soon as it is ready."""
    # The longest cells are first, so that no worker starts a long cell at the end.
    ordered = sorted(cells, key=lambda cell: cell.n_rows, reverse=True)

    def done(cell: Cell, result: Result) -> None:
        keep(cell, result)
        execution.emit(BlockDone(name, cell.n_rows, 0))

    with execution.phase(name, len(ordered), sum(cell.n_rows for cell in ordered), 0):
        if current_client() is None:
            _in_threads(name, ordered, measure, done)
        else:
            _on_workers(name, ordered, measure, done)


def _in_threads(name: str, cells: Sequence[Cell], measure: Measure, done: Keep) -> None:
    def step(number: int) -> None:
        done(cells[number], measure(cells[number]))

    compute([task(name, step, number) for number in range(len(cells))])


def _on_workers(name: str, cells: Sequence[Cell], measure: Measure, done: Keep) -> None:
    from distributed import as_completed

    client: Any = current_client()
    tasks = [task(name, measure, cell) for cell in cells]
    futures = client.compute(tasks)
    by_key = {future.key: cell for future, cell in zip(futures, cells, strict=True)}
    try:
        for future in as_completed(futures):
            # Not `with_results`: it returns the error of a cancelled future as a result.
            done(by_key[future.key], future.result())
    finally:
        client.cancel(futures)


@dataclass(frozen=True)
class ExperimentRun:
    """Results of a call of `run_experiment`: summary, tables, files and numbers of cells."""

    out: str
    summary: dict[str, Any]
    tables: tuple[framework.Table, ...]
    files: tuple[str, ...]
    n_cells: int
    n_kept: int  # cells that were finished by an earlier call


def run_experiment(
    name: str,
    out: Place,
    *,
    size: Size = "small",
    data: Mapping[str, Place | None] | None = None,
    storage_options: Options | None = None,
    listener: Listener = warn,
) -> ExperimentRun:
    """Run the experiment `name` of the paper in the folder `out`.

    Parameters
    ----------
    name : one of `NAMES`
    out : folder for finished cells, tables and figures; repeat an interrupted call to resume it
    size : `smoke` is a quick test, `small` takes minutes on two cores, `paper` uses the grids of
        the paper
    data : for `images`, names and paths of labelled features stores. A known data set with None
        instead of a path is downloaded; without `data`, all known data sets are downloaded.
    """
    _check(name, size, data)
    folder = framework.Folder(locate(out, storage_options))
    experiment = _define(name, size, folder.location, data, storage_options, listener)
    head = {"experiment": name, "size": size, "version": version("scrlm-dask")}
    folder.open({**head, "settings": experiment.settings})
    begin = time.perf_counter()
    results, n_kept = _measure_missing(experiment, folder, listener)
    result = experiment.finish(results)
    spent = {"cells": len(results), "kept": n_kept, "seconds": time.perf_counter() - begin}
    summary = write_results(folder.location, result, {**head, **spent})
    for text in summary["notes"]:
        listener(Note(text))
    files = tuple(summary["files"])
    return ExperimentRun(folder.location.url, summary, result.tables, files, len(results), n_kept)


def _check(name: str, size: str, data: Mapping[str, Any] | None) -> None:
    if name not in NAMES:
        raise InputError(f"experiment must be one of {', '.join(NAMES)}, got {name!r}")
    if size not in framework.SIZES:
        raise InputError(f"size must be one of {', '.join(framework.SIZES)}, got {size!r}")
    if data and name != IMAGES:
        raise InputError(
            f"experiment {name} does not accept data sets: it draws its own data; only {IMAGES} "
            "accepts data sets"
        )


def _define(
    name: str,
    size: Size,
    folder: Location,
    data: Mapping[str, Place | None] | None,
    storage_options: Options | None,
    listener: Listener,
) -> Experiment:
    if name in ON_MIXTURES:
        return ON_MIXTURES[name](size)
    from scrlm_dask.paper.datasets import stores_for
    from scrlm_dask.paper.images import define_images

    return define_images(size, stores_for(data, folder, listener), storage_options)


def _measure_missing(
    experiment: Experiment, folder: framework.Folder, listener: Listener
) -> tuple[dict[Cell, Result], int]:
    """Measure the cells without a stored result.

    Return the results of all cells, in order, and the number of cells that had a stored result.
    """
    stored = {cell: folder.read(cell) for cell in experiment.cells}
    results = {cell: result for cell, result in stored.items() if result is not None}
    missing = [cell for cell in experiment.cells if cell not in results]
    n_kept = len(results)
    if n_kept:
        listener(Note(f"resuming: {n_kept} of {len(stored)} cells are already finished"))

    def keep(cell: Cell, result: Result) -> None:
        folder.write(cell, result)
        results[cell] = result

    if missing:
        with Execution(listener) as execution:
            rows = sum(cell.n_rows for cell in missing)
            url = folder.location.url
            execution.emit(RunStarted("experiment", experiment.name, rows, 0, url))
            run_cells(execution, experiment.name, missing, experiment.measure, keep)
    return {cell: results[cell] for cell in experiment.cells}, n_kept
