"""Measure the overhead of a pass, and the speedup of two workers compared with one.

    python -m benchmarks.run --only overhead

The task of a block reads the block, waits for a compute slot, and computes. Dask's task stream
contains the times in which a worker ran such tasks. The rest of wall time x workers is overhead:
building and sending the graph, merging, and waiting for a task or for the last worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from dask.utils import key_split
from distributed import Client, get_task_stream

from .common import resize
from .product import products
from .shapes import PASSES, Pass, Shape


def overhead(
    client: Client, place: Path, shape: Shape, numbers: Iterable[int], repeats: int
) -> Iterator[dict[str, Any]]:
    """Measure all `PASSES` for each number of workers; `numbers` is descending."""
    store = shape.store(place)
    for number in numbers:
        resize(client, number)
        for work in PASSES:
            yield _measured(client, store, shape, work, number, repeats)


def _measured(
    client: Client, store: Path, shape: Shape, work: Pass, number: int, repeats: int
) -> dict[str, Any]:
    with get_task_stream(client) as stream:
        runs = work.run(client, store, shape, repeats)
    wall = sum(run.phase.seconds for run in runs)
    busy = busy_seconds(stream.data, work.phase)
    product = min(spent.wall for spent in products(client, *work.operands(shape), repeats))
    return {
        "pass": work.name,
        "workers": number,
        "blocks": runs[0].phase.blocks,
        "block_MB": 4 * shape.features * shape.rows / runs[0].phase.blocks / 1e6,
        "wall_s": min(run.phase.seconds for run in runs),
        "cpu_s": min(run.cpu for run in runs),
        "thread_seconds_reading": min(run.phase.read_seconds for run in runs),
        "overhead_share": 1 - busy / (wall * number),
        "product_wall_s": product,
    }


def busy_seconds(stream: Iterable[dict[str, Any]], phase: str) -> float:
    """Return the seconds in which a worker ran a task of the phase, summed over the workers."""
    spans = sorted(
        (task["worker"], moment["start"], moment["stop"])
        for task in stream
        if key_split(task["key"]) == phase
        for moment in task["startstops"]
        if moment["action"] == "compute"
    )
    return sum(
        covered((start, stop) for _, start, stop in own) for _, own in groupby(spans, itemgetter(0))
    )


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of intervals, which are sorted by start."""
    total, end = 0.0, float("-inf")
    for start, stop in spans:
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def speed_ups(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the speedups over one worker, of the pass and of the product."""
    alone = {row["pass"]: row for row in rows if row["workers"] == 1}
    return [
        {
            "pass": row["pass"],
            "workers": row["workers"],
            "wall_s": row["wall_s"],
            "speed_up": alone[row["pass"]]["wall_s"] / row["wall_s"],
            "product_wall_s": row["product_wall_s"],
            "product_speed_up": alone[row["pass"]]["product_wall_s"] / row["product_wall_s"],
        }
        for row in sorted(rows, key=itemgetter("pass", "workers"))
    ]
