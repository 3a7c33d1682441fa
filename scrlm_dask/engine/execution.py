"""How a pass runs: a part for each block, merged by a tree of fixed shape.

Every distributed quantity is a block's part, how two parts combine, and what is made of the result.
Reading and computing are one task, so that a worker holds one block a thread, also of the thread
that reads ahead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, TypeAlias
from uuid import uuid4

import dask
import dask.array as da
import numpy as np
from dask.delayed import Delayed

from scrlm_dask.engine.checkpointing import Check, CheckpointScope
from scrlm_dask.engine.failures import (
    RunIsOverError,
    drain_tasks,
    explain_killed_workers,
    track_task,
)
from scrlm_dask.engine.features import Features
from scrlm_dask.engine.read_ahead import compute_slot
from scrlm_dask.engine.threads import pinned_threads
from scrlm_dask.engine.tree_reduce import FAN_IN
from scrlm_dask.engine.workers import current_client, current_worker, process_reports
from scrlm_dask.errors import ClusterError, NonFiniteRowError, UnusableRowsError
from scrlm_dask.events import (
    BlockDone,
    Event,
    Listener,
    PhaseFinished,
    PhaseStarted,
    RunEnded,
    warn,
)
from scrlm_dask.monitoring.listeners import NotebookCell, in_notebook, make_publisher
from scrlm_dask.settings import monitoring_enabled
from scrlm_dask.storage.checkpoints import Checkpoint, Kinds

# (rows, 1) each, or (rows, q) for several numbers a row, cut like the blocks that are read
Columns: TypeAlias = Mapping[str, da.Array]

_SPREAD_SECONDS = 10.0  # then the blocks go where they go: a worker may be stuck, or lost

_listeners: dict[str, Listener] = {}  # by topic, of the runs that this process watches


class Execution:
    """One run: its phases, and those who watch it."""

    def __init__(self, listener: Listener, checkpoint: Checkpoint | None = None) -> None:
        self.phases: list[PhaseFinished] = []
        self.reports: dict[str, dict[str, Any]] = {}
        self._read_seconds: dict[str, float] | None = None  # of each process, when last asked
        self.pruned: dict[str, dict[str, Any]] = {}  # by pass, what was ruled out without a product
        self.keeper = CheckpointScope(checkpoint, self.tell)
        self._named: dict[str, str] = {}  # by pass, what the tasks of its blocks are called
        self._shared: dict[str, dict[str, Any]] = {}  # by pass, what all of its blocks need
        self._heard_by = [listener]
        if listener is warn and monitoring_enabled() and in_notebook():
            self._heard_by.append(NotebookCell())
        self._publish: Listener | None = None  # to the scheduler, where blocks are heard of anyway
        self._topic = f"scrlm-{uuid4().hex}"
        self._began = time.perf_counter()

    def __enter__(self) -> Execution:
        _listeners[self._topic] = self._pass_on
        client = current_client()
        if client is not None:
            client.subscribe_topic(self._topic, self._hear)
            self._publish = make_publisher(client, self._topic, self._pass_on)
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc_info: object) -> None:
        if exc_type is not None:
            leaving = issubclass(exc_type, KeyboardInterrupt | ClusterError)
            drain_tasks(self._topic, leaving=leaving)
        error = None if exc_type is None else exc_type.__name__
        self.tell(RunEnded(time.perf_counter() - self._began, error))
        client = current_client()
        if client is not None and client.status == "running":
            client.unsubscribe_topic(self._topic)
        _listeners.pop(self._topic, None)

    def add_listener(self, listener: Listener) -> None:
        self._heard_by.append(listener)

    def tell(self, event: Event) -> None:
        if self._publish is not None:
            self._publish(event)
        self._pass_on(event)

    def _pass_on(self, event: Event) -> None:
        for listener in self._heard_by:
            listener(event)

    @contextmanager
    def phase(self, name: str, blocks: int, rows: int, n_bytes: int) -> Iterator[None]:
        """Time a phase, and ask the workers for their reading and their memory at its end."""
        self.tell(PhaseStarted(name, blocks, rows, n_bytes))
        before = self._read_seconds if self._read_seconds is not None else self._ask_workers()
        begin = time.perf_counter()
        with _span(name):
            yield
        seconds = time.perf_counter() - begin
        read = _gained(before, self._ask_workers())
        peak = max((r["peak_memory_bytes"] for r in self.reports.values()), default=0)
        done = PhaseFinished(name, seconds, rows, n_bytes, blocks, peak, read)
        self.phases.append(done)
        self.tell(done)

    def _ask_workers(self) -> dict[str, float]:
        """Seconds that each has read so far; what else they report is kept."""
        self.reports = process_reports()
        read = {name: float(said.pop("read_seconds")) for name, said in self.reports.items()}
        self._read_seconds = read
        return read

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
        kinds: Kinds | None = None,
        check: Check | None = None,
        of: str = "",
        **shared: Any,
    ) -> Any:
        """`part(block, start, **columns, **shared)` of every block (or of `blocks`), combined.

        Values of `columns` hold numbers of each row, and a part gets those of its rows. Values of
        `shared` may be Delayed: they are computed once and sent to every worker. With `keep` the
        result stays with the workers and a Delayed comes back. With `piecewise` the part is given
        `done`, too, and says itself how many rows are done, and how many bytes. With `kinds`, the
        dataclasses that parts are made of, a run that keeps its work keeps this pass, group by
        group; `check` says whether what some blocks wrote elsewhere is still there, and `of` what
        the pass is computed from, where that may be otherwise in the next attempt.
        """
        parts = self.parts(name, features, part, blocks, columns or {}, shared, piecewise=piecewise)
        saved = self.keeper.step(name, kinds, check, of)
        pass_ = self.keeper.reduce(parts, combine, name, fan_in, saved)
        with self.reading(name, features, blocks, pass_.taken):
            if keep:
                return wait(persist(pass_.total))
            return dask.compute(pass_.total)[0]

    @contextmanager
    def reading(
        self,
        name: str,
        features: Features,
        blocks: Sequence[int] | None,
        taken: Sequence[int] = (),
    ) -> Iterator[None]:
        """The phase of a pass that reads these blocks; those `taken`, by position, are done."""
        numbers = range(features.n_blocks) if blocks is None else blocks
        rows = _rows_of(features, numbers)
        with self.phase(name, len(numbers), rows, rows * features.row_bytes):
            if taken:
                done = _rows_of(features, [numbers[i] for i in taken])
                self.tell(BlockDone(name, done, done * features.row_bytes))
            _spread(self._shared.pop(name, {}), len(numbers) - len(taken))
            with explain_killed_workers(name, features, numbers, self._named.get(name)):
                yield

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
        self._shared[name] = shared
        self._named[name] = f"{name}-{uuid4().hex}"
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
            name=self._named[name],
        )
        return list(parts.to_delayed().ravel())

    def _hear(self, event: tuple[float, dict[str, Any]]) -> None:
        self._pass_on(BlockDone(**event[1]["block"]))


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


def _spread(shared: dict[str, Any], n_blocks: int) -> None:
    """Have what blocks need on as many workers as there are blocks for, where these are few.

    Dask sends few tasks to where what they need lies. All would go to the worker that prepared it,
    and the others would get what they can steal. More than two a thread it deals out evenly, unless
    they come with columns or blocks that are held, and then they go to those.
    """
    client = current_client()
    if client is None:
        return
    from distributed import futures_of
    from distributed import wait as settled

    # who loses a worker or the scheduler meanwhile, or whose points cannot be prepared, hears of it
    # from the blocks
    with suppress(Exception):
        threads = client.nthreads()
        kept = {value.key for value in shared.values() if isinstance(value, Delayed)}
        futures = [future for future in futures_of(list(shared.values())) if future.key in kept]
        if not futures or not 1 < n_blocks <= 2 * sum(threads.values()):
            return
        # By tasks, not by `replicate`: Dask removes copies that no task waits for.
        token = uuid4().hex
        received = [
            client.submit(_received, *futures, key=(f"receive-{token}", i), workers=[worker])
            for i, worker in enumerate(list(threads)[:n_blocks])
        ]
        settled(received, timeout=_SPREAD_SECONDS)


def _received(*values: Any) -> None:
    """What a task needs is with its worker when it begins."""


def blocks_holding(rows: Any, block_rows: int) -> list[int]:
    """Numbers of the blocks in which the given row numbers lie."""
    return [int(i) for i in np.unique(np.asarray(rows) // block_rows)]


def _rows_of(features: Features, blocks: Sequence[int]) -> int:
    return sum(features.array.chunks[0][i] for i in blocks)


def _span(name: str) -> AbstractContextManager[Any]:
    """Under the phase's name Dask's dashboard shows what its tasks spend their time on."""
    if current_client() is None:
        return nullcontext()
    from distributed import span

    named: AbstractContextManager[Any] = span(name)
    return named


def _gained(before: dict[str, float], after: dict[str, float]) -> float:
    """Sum over the processes that are there; a worker that came meanwhile began at nothing."""
    return sum(value - before.get(name, 0.0) for name, value in after.items())


def _pinned(function: Callable[..., Any], *args: Any) -> Any:
    with compute_slot(), pinned_threads():
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
        with (
            track_task(topic) as still,
            compute_slot(still) as wanted,
            pinned_threads(),
        ):
            if not wanted:
                # not nothing: it would be merged, and kept as what the block gave
                raise RunIsOverError(f"{phase}: the run has ended")
            beside: dict[str, Any] = {
                name: column[:, 0] if column.shape[1] == 1 else column
                for name, column in zip(columns, column_blocks, strict=True)
            }
            beside |= {"done": done} if piecewise else {}
            result = part(block, start, **beside, **shared)
    except NonFiniteRowError as error:
        raise UnusableRowsError(
            f"row {start + error.row} (block {number}) of {what} holds NaN, infinity or a value "
            "too large for float32; clean or drop the row"
        ) from error
    if not piecewise:
        done(len(block), int(block.nbytes))
    return result


def _report(topic: str, event: BlockDone) -> None:
    """Tell whoever watches that a block is done: through the scheduler, or in this process."""
    worker = current_worker()
    if worker is not None:
        worker.log_event(topic, {"block": vars(event)})  # Dask adds keys of its own
        return
    listener = _listeners.get(topic)
    if listener is not None:
        listener(event)
