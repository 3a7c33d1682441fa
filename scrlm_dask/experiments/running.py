"""The cells of an experiment, each a task of the current client or of threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dask

from scrlm_dask.events import BlockDone
from scrlm_dask.experiments.cells import Cell
from scrlm_dask.experiments.experiment import Result
from scrlm_dask.passes.clients import current_client
from scrlm_dask.passes.execution import Execution, task

Keep = Callable[[Any, Result], None]


def run_cells(
    execution: Execution,
    name: str,
    cells: Sequence[Cell],
    measure: Callable[[Any], Result],
    keep: Keep,
) -> None:
    """Measure every cell; `keep` gets each as soon as it is done, in this process."""
    # the long ones first: at the end nobody waits for one that began last
    ordered = sorted(cells, key=lambda cell: cell.n_rows, reverse=True)

    def done(cell: Cell, result: Result) -> None:
        keep(cell, result)
        execution.tell(BlockDone(name, cell.n_rows, 0))

    with execution.phase(name, len(ordered), sum(cell.n_rows for cell in ordered), 0):
        if current_client() is None:
            _in_threads(name, ordered, measure, done)
        else:
            _on_workers(name, ordered, measure, done)


def _in_threads(
    name: str, cells: Sequence[Cell], measure: Callable[[Any], Result], done: Keep
) -> None:
    def step(number: int) -> None:
        done(cells[number], measure(cells[number]))

    dask.compute([task(name, step, number) for number in range(len(cells))])


def _on_workers(
    name: str, cells: Sequence[Cell], measure: Callable[[Any], Result], done: Keep
) -> None:
    from distributed import as_completed

    client: Any = current_client()
    tasks = [task(name, measure, cell) for cell in cells]
    futures = client.compute(tasks)
    by_key = {future.key: cell for future, cell in zip(futures, cells, strict=True)}
    try:
        for future in as_completed(futures):
            # not `with_results`: that gives what cancelled a future as if it were a result
            done(by_key[future.key], future.result())
    finally:
        client.cancel(futures)
