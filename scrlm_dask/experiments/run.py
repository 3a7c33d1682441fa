"""Run one of the paper's experiments, or go on with it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from scrlm_dask.errors import InputError
from scrlm_dask.events import Listener, Note, RunStarted, warn
from scrlm_dask.experiments.catalog import IMAGES, NAMES, ON_MIXTURES
from scrlm_dask.experiments.cells import Cell, Folder
from scrlm_dask.experiments.experiment import SIZES, Experiment, Result, Size, Table
from scrlm_dask.experiments.results import write_findings
from scrlm_dask.experiments.running import run_cells
from scrlm_dask.passes.execution import Execution
from scrlm_dask.storage.locations import Location, Options, Place, locate


@dataclass(frozen=True)
class Ran:
    """What was found, how much of it was there already, and the files that hold it."""

    out: str
    summary: dict[str, Any]
    tables: tuple[Table, ...]
    files: tuple[str, ...]
    n_cells: int
    n_kept: int  # of them, from before


def run(
    name: str,
    out: Place,
    *,
    size: Size = "small",
    data: Mapping[str, Place | None] | None = None,
    storage_options: Options | None = None,
    listener: Listener = warn,
) -> Ran:
    """Run the experiment `name` of the paper in the folder `out`.

    `smoke` shows that it runs, `small` takes minutes on two cores, `paper` has the paper's own
    grids. Finished cells are kept in `out`, and the same call again goes on with the others.
    `data` is for `images`: features stores with labels by name; None instead of a path fetches one
    of the known sets, which is also what happens to all of them without `data`.
    """
    _check(name, size, data)
    folder = Folder(locate(out, storage_options))
    experiment = _made(name, size, folder.location, data, storage_options, listener)
    head = {"experiment": name, "size": size, "version": version("scrlm-dask")}
    folder.open({**head, "settings": experiment.settings})
    begin = time.perf_counter()
    results, n_kept = _measured(experiment, folder, listener)
    found = experiment.finish(results)
    spent = {"cells": len(results), "kept": n_kept, "seconds": time.perf_counter() - begin}
    summary, files = write_findings(folder.location, found, {**head, **spent})
    for text in summary["notes"]:
        listener(Note(text))
    return Ran(folder.location.url, summary, found.tables, tuple(files), len(results), n_kept)


def _check(name: str, size: str, data: Mapping[str, Any] | None) -> None:
    if name not in NAMES:
        raise InputError(f"there is no experiment {name!r}; use one of {', '.join(NAMES)}")
    if size not in SIZES:
        raise InputError(f"the size {size!r} is not known; use one of {', '.join(SIZES)}")
    if data and name != IMAGES:
        raise InputError(f"the experiment {name} draws its own data; leave data sets out")


def _made(
    name: str,
    size: Size,
    folder: Location,
    data: Mapping[str, Place | None] | None,
    storage_options: Options | None,
    listener: Listener,
) -> Experiment:
    if name in ON_MIXTURES:
        return ON_MIXTURES[name](size)
    from scrlm_dask.experiments.datasets import stores_for
    from scrlm_dask.experiments.images import images

    return images(size, stores_for(data, folder, listener), storage_options)


def _measured(
    experiment: Experiment, folder: Folder, listener: Listener
) -> tuple[dict[Cell, Result], int]:
    """The results of all cells, in their order, and how many of them were there already."""
    before = {cell: folder.read(cell) for cell in experiment.cells}
    results: dict[Cell, Result] = {c: found for c, found in before.items() if found is not None}
    left = [cell for cell in experiment.cells if cell not in results]
    n_kept = len(results)
    if n_kept:
        listener(Note(f"{n_kept} of {len(before)} cells are done already"))

    def keep(cell: Cell, result: Result) -> None:
        folder.keep(cell, result)
        results[cell] = result

    if left:
        with Execution(listener) as execution:
            rows = sum(cell.n_rows for cell in left)
            where = folder.location.url
            execution.tell(RunStarted("experiment", experiment.name, rows, 0, where))
            run_cells(execution, experiment.name, left, experiment.measure, keep)
    return {cell: results[cell] for cell in experiment.cells}, n_kept
