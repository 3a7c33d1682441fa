"""How much of a pass' time is neither kernels nor reading, and two workers against one.

    python -m benchmarks.run --only overhead

The task of a block reads it, waits while another one computes, and computes. So while any such task
is on a worker, that worker reads or computes; Dask's task stream says when that was. What is left
of wall time x workers is overhead: building and sending the graph, merging, waiting for a task or
for the last worker.
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
    """Both passes on fewer and fewer workers, the numbers falling."""
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
    """Seconds in which a worker had a block of the phase in hand, added up over the workers."""
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
    """Length of the union of intervals, sorted by their start."""
    total, end = 0.0, float("-inf")
    for start, stop in spans:
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def speed_ups(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Wall seconds of each number of workers against those of one, and the product's."""
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
