"""How a pass runs: a part for each block, merged by a tree of fixed shape.

Every distributed quantity is a block's part, how two parts combine, and what is made of the result.
Reading and computing are one task, so that a worker holds one block a thread. The tree is laid over
the block numbers: the order in which blocks finish never reaches the numbers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import reduce
from typing import Any, TypeAlias
from uuid import uuid4

import dask
import dask.array as da
import numpy as np
from dask.delayed import Delayed

from scrlm_dask.errors import InputError, NonFiniteRowError
from scrlm_dask.events import BlockDone, Listener, PhaseFinished, PhaseStarted
from scrlm_dask.passes.clients import current_client, process_reports
from scrlm_dask.passes.features import Features
from scrlm_dask.passes.stragglers import in_hand, wait_for_stragglers
from scrlm_dask.resources import pinned_threads

FAN_IN = 8
_LARGE_PART_BYTES = 2**20

Columns: TypeAlias = Mapping[str, da.Array]  # (rows, 1) each, cut like the blocks that are read

_listeners: dict[str, Listener] = {}  # by topic, of the runs that this process watches


class Execution:
    """One run: its phases, and those who watch it."""

    def __init__(self, listener: Listener) -> None:
        self.phases: list[PhaseFinished] = []
        self.reports: dict[str, dict[str, Any]] = {}
        self._listener = listener
        self._topic = f"scrlm-{uuid4().hex}"

    def __enter__(self) -> Execution:
        _listeners[self._topic] = self._listener
        client = current_client()
        if client is not None:
            client.subscribe_topic(self._topic, self._hear)
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc_info: object) -> None:
        if exc_type is not None:
            wait_for_stragglers(self._topic)
        client = current_client()
        if client is not None and client.status == "running":
            client.unsubscribe_topic(self._topic)
        _listeners.pop(self._topic, None)

    def tell(self, event: Any) -> None:
        self._listener(event)

    @contextmanager
    def phase(self, name: str, blocks: int, rows: int, n_bytes: int) -> Iterator[None]:
        """Time a phase, and ask the workers for their memory at its end."""
        self.tell(PhaseStarted(name, blocks, rows, n_bytes))
        begin = time.perf_counter()
        yield
        seconds = time.perf_counter() - begin
        self.reports = process_reports()
        peak = max((r["peak_memory_bytes"] for r in self.reports.values()), default=0)
        done = PhaseFinished(name, seconds, rows, n_bytes, blocks, peak)
        self.phases.append(done)
        self.tell(done)

    def map_reduce(
        self,
        name: str,
        features: Features,
        part: Callable[..., Any],
        combine: Callable[[Any, Any], Any],
        *,
        blocks: Sequence[int] | None = None,
        fan_in: int = FAN_IN,
        keep: bool = False,
        columns: Columns | None = None,
        piecewise: bool = False,
        **shared: Any,
    ) -> Any:
        """`part(block, start, **columns, **shared)` of every block (or of `blocks`), combined.

        Values of `columns` hold one number a row, and a part gets those of its rows. Values of
        `shared` may be Delayed: they are computed once and sent to every worker. With `keep` the
        result stays with the workers and a Delayed comes back. With `piecewise` the part is given
        `done`, too, and says itself how many rows are done, and how many bytes.
        """
        parts = self.parts(name, features, part, blocks, columns or {}, shared, piecewise=piecewise)
        total = tree_reduce(parts, combine, name, fan_in)
        with self.reading(name, features, blocks):
            if keep:
                return wait(persist(total))
            return dask.compute(total)[0]

    def reading(
        self, name: str, features: Features, blocks: Sequence[int] | None
    ) -> AbstractContextManager[None]:
        """The phase of a pass that reads these blocks."""
        rows = features.n_rows if blocks is None else _rows_of(features, blocks)
        n_blocks = features.n_blocks if blocks is None else len(blocks)
        return self.phase(name, n_blocks, rows, rows * features.row_bytes)

    def parts(
        self,
        name: str,
        features: Features,
        part: Callable[..., Any],
        blocks: Sequence[int] | None,
        columns: Columns,
        shared: dict[str, Any],
        *,
        piecewise: bool = False,
    ) -> list[Delayed]:
        """A task a block, to be combined or kept by the caller."""
        array, numbers = features.array, None
        if blocks is not None:
            array = array.blocks[list(blocks)]
            # a task of its own: inside the kwargs it would be sent along with every block
            numbers = task("blocks", np.array, list(blocks))
        parts = array.map_blocks(
            _block_task,
            *columns.values(),
            phase=name,
            columns=tuple(columns),
            topic=self._topic,
            part=part,
            numbers=numbers,
            block_rows=features.block_rows,
            what=features.what,
            piecewise=piecewise,
            shared=shared,
            chunks=((1,) * array.numblocks[0], (1,)),
            dtype=object,
            meta=np.empty((0, 0), object),
            name=f"{name}-{uuid4().hex}",
        )
        return list(parts.to_delayed().ravel())

    def _hear(self, event: tuple[float, dict[str, Any]]) -> None:
        self._listener(BlockDone(**event[1]["block"]))


def tree_reduce(
    parts: Sequence[Delayed],
    combine: Callable[[Any, Any], Any],
    name: str,
    fan_in: int = FAN_IN,
) -> Delayed:
    """Combine the parts in their order, `fan_in` at a time, level by level."""
    token = uuid4().hex
    level = 0
    while len(parts) > 1:
        parts = [
            dask.delayed(_combine_all, pure=False)(
                combine,
                list(parts[i : i + fan_in]),
                dask_key_name=(f"{name}-merge-{token}", level, i),
            )
            for i in range(0, len(parts), fan_in)
        ]
        level += 1
    return parts[0]


def fan_in_for(part_bytes: int) -> int:
    """Large parts are merged in pairs, so that few of them wait.

    Whoever asks must count from the shape of the data alone: the bits depend on the answer.
    """
    return 2 if part_bytes > _LARGE_PART_BYTES else FAN_IN


def task(name: str, function: Callable[..., Any], *args: Any) -> Delayed:
    """A single task. Its key is a tuple, which keeps Dask's back-pressure on the blocks."""
    return dask.delayed(_pinned, pure=False)(
        function, *args, dask_key_name=(f"{name}-{uuid4().hex}", 0)
    )


def persist(value: Delayed) -> Delayed:
    return dask.persist(value)[0]


def wait(value: Delayed) -> Delayed:
    """Wait for a persisted value, and raise what its tasks raised."""
    if current_client() is not None:
        from distributed import futures_of

        for future in futures_of(value):
            if future.exception() is not None:
                future.result()
    return value


def blocks_holding(rows: Any, block_rows: int) -> list[int]:
    """Numbers of the blocks in which the given row numbers lie."""
    return [int(i) for i in np.unique(np.asarray(rows) // block_rows)]


def _rows_of(features: Features, blocks: Sequence[int]) -> int:
    return sum(features.array.chunks[0][i] for i in blocks)


def _combine_all(combine: Callable[[Any, Any], Any], parts: list[Any]) -> Any:
    return reduce(combine, parts)


def _pinned(function: Callable[..., Any], *args: Any) -> Any:
    with pinned_threads():
        return function(*args)


def _block_task(
    block: Any,
    *column_blocks: Any,
    phase: str,
    columns: tuple[str, ...],
    topic: str,
    part: Callable[..., Any],
    numbers: Any,
    block_rows: int,
    what: str,
    piecewise: bool,
    shared: dict[str, Any],
    block_id: Any = None,
) -> Any:
    def done(rows: int, n_bytes: int) -> None:
        _report(topic, BlockDone(phase, rows, n_bytes))

    number = int(block_id[0] if numbers is None else numbers[block_id[0]])
    start = number * block_rows
    try:
        with in_hand(topic) as wanted, pinned_threads():
            if not wanted:
                return None
            beside: dict[str, Any] = {
                name: column[:, 0] for name, column in zip(columns, column_blocks, strict=True)
            }
            beside |= {"done": done} if piecewise else {}
            result = part(block, start, **beside, **shared)
    except NonFiniteRowError as error:
        raise InputError(
            f"row {start + error.row} (block {number}) of {what} holds NaN, infinity or a value "
            "too large for float32; clean or drop the row"
        ) from error
    if not piecewise:
        done(len(block), int(block.nbytes))
    return result


def _report(topic: str, event: BlockDone) -> None:
    """Tell whoever watches that a block is done: through the scheduler, or in this process."""
    if "distributed" in sys.modules:
        from distributed import get_worker

        try:
            worker = get_worker()
        except ValueError:
            pass
        else:
            worker.log_event(topic, {"block": vars(event)})  # Dask adds keys of its own
            return
    listener = _listeners.get(topic)
    if listener is not None:
        listener(event)
