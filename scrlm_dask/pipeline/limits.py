"""Whether a run fits its workers; if not, what would make it fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from scrlm_dask.errors import InputError
from scrlm_dask.passes.clients import WorkerMemory
from scrlm_dask.passes.layout import Layout
from scrlm_dask.pipeline.memory import MemoryPlan

# Above this share of its limit Dask gives a worker no more tasks, and as the process keeps its
# memory for the next block, it would get none any more.
USABLE_SHARE = 0.8
_LEAST_BLOCK_ROWS = 1024  # smaller blocks cost more time than they are worth
_STEP = 10**7  # to which the memory limit is rounded


def fits(plan: MemoryPlan, worker: WorkerMemory) -> bool:
    need = plan.worker_bytes(worker.n_threads, worker.n_ahead)
    return worker.limit is None or need <= USABLE_SHARE * worker.limit


def check_memory(
    what: str,
    planned: Callable[[Layout], MemoryPlan],
    layout: Layout,
    workers: Sequence[WorkerMemory],
) -> None:
    """Refuse in the first second what would fail in the fourth hour.

    `planned` says what the run needs for rows that are cut into blocks in one way or another.
    """
    plan = planned(layout)
    for worker in workers:
        if worker.limit is None or fits(plan, worker):
            continue
        need = plan.worker_bytes(worker.n_threads, worker.n_ahead)
        ways = list(_ways_out(need, planned, layout, worker))
        *most, last = ways or ["it a machine with more memory"]
        raise InputError(
            f"{what} needs {need / 1e9:.2f} GB of a worker with {worker.n_threads} thread(s), "
            f"which may plan with {USABLE_SHARE:.0%} of its {worker.limit / 1e9:.2f} GB; give "
            f"{', '.join(most)}{' or ' if most else ''}{last}"
        )


def _ways_out(
    need: int, planned: Callable[[Layout], MemoryPlan], layout: Layout, worker: WorkerMemory
) -> Iterator[str]:
    """Each setting by which alone the run would fit."""
    if worker.own_process:
        enough = -(-int(need / USABLE_SHARE) // _STEP) * _STEP
        yield f"more memory (--memory-limit {enough // 10**6}MB)"
    plan = planned(layout)
    for n_threads in range(worker.n_threads - 1, 0, -1):
        if fits(plan, replace(worker, n_threads=n_threads)):
            yield f"fewer threads (--nthreads {n_threads})"
            break
    block_rows = _smaller_blocks(planned, layout, worker)
    if block_rows is not None:
        yield f"smaller blocks (--block-rows {block_rows})"


def _smaller_blocks(
    planned: Callable[[Layout], MemoryPlan], layout: Layout, worker: WorkerMemory
) -> int | None:
    """Rows of the largest blocks that fit: whole chunks, or halves of one, or halves of those."""
    chunk = layout.chunk_rows
    low, high = 0, (min(layout.block_rows, layout.n_rows) - 1) // chunk  # in chunks; low fits
    while low < high:
        middle = -(-(low + high) // 2)
        if fits(planned(layout.cut_into(middle * chunk)), worker):
            low = middle
        else:
            high = middle - 1
    if low > 0:
        return low * chunk
    rows = min(chunk, layout.block_rows, layout.n_rows) // 2
    while rows >= _LEAST_BLOCK_ROWS:
        if fits(planned(layout.cut_into(rows)), worker):
            return rows
        rows //= 2
    return None
