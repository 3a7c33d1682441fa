"""Run passes: a part for each block, combined by a tree of fixed shape.

Reading and computing a block are one task, so that a worker holds one block per thread, including
the threads that read ahead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias
from uuid import uuid4

import dask
import dask.array as da
import numpy as np
from dask.delayed import Delayed

from scrlm_dask import events
from scrlm_dask.engine import failures, workers
from scrlm_dask.engine.checkpointing import CheckpointScope, OutputsValid, SavedGroups
from scrlm_dask.engine.features import Features
from scrlm_dask.engine.read_ahead import compute_slot
from scrlm_dask.engine.threads import pinned_threads
from scrlm_dask.engine.tree_reduce import FAN_IN
from scrlm_dask.errors import ClusterError, NonFiniteRowError, UnusableRowsError
from scrlm_dask.monitoring.listeners import NotebookCell, in_notebook, make_publisher
from scrlm_dask.settings import monitoring_enabled
from scrlm_dask.storage.checkpoints import Checkpoint, Kinds

# arrays (rows, 1), or (rows, q) for several numbers per row, with the blocks that are read
Columns: TypeAlias = Mapping[str, da.Array]

_SPREAD_SECONDS = 10.0  # then the blocks start anyway: a worker may be stuck, or lost

_listeners: dict[str, events.Listener] = {}  # by topic, of the runs that this process watches


@dataclass(frozen=True)
class Pass:
    """One read of all blocks with a reduction.

    Parameters
    ----------
    name : str
        Name of the phase, of the tasks and of the checkpoint.
    part : callable
        `part(block, start, **columns, **broadcast)` of the block whose first row is `start`.
    combine : callable
        Combines two parts that follow each other.
    checkpoint_types : tuple of types, optional
        The dataclasses that parts are made of. Only passes that give them are checkpointed.
    fan_in : int
        Parts that are combined at a time; the result's last bits depend on it.
    outputs_valid : callable, optional
        Whether the outputs that a range of blocks wrote in an earlier attempt are still there.
    reports_progress : bool
        `part` is also given `done(rows, n_bytes)` and calls it while it works.
    per_block : tuple of str
        Attributes (rows,) of what `part` returns that stay on the workers, one array per block.
        Its attribute `part` is what is combined, unless there is `summarize`.
    summarize : callable, optional
        `summarize(result, **columns)` turns what `part` returned into what is combined.
    """

    name: str
    part: Callable[..., Any]
    combine: Callable[[Any, Any], Any]
    checkpoint_types: Kinds | None = None
    fan_in: int = FAN_IN
    outputs_valid: OutputsValid | None = None
    reports_progress: bool = False
    per_block: tuple[str, ...] = ()
    summarize: Callable[..., Any] | None = None


@dataclass(frozen=True)
class PassResult:
    """The combined parts of a pass, and the outputs of each block, which stay on the workers."""

    total: Any
    per_block: dict[str, list[Delayed]]  # arrays (rows, 1) by name


class Execution:
    """One run: its phases, its checkpoints and its listeners."""

    def __init__(self, listener: events.Listener, checkpoint: Checkpoint | None = None) -> None:
        self.phases: list[events.PhaseFinished] = []
        self.reports: dict[str, dict[str, Any]] = {}  # of each process, at the end of a phase
        self.checkpoints = CheckpointScope(checkpoint, self.emit)
        self.listeners = [listener]
        if listener is events.warn and monitoring_enabled() and in_notebook():
            self.listeners.append(NotebookCell())
        self._publish: events.Listener | None = None  # to the scheduler
        self._read_seconds: dict[str, float] | None = None  # of each process, at the last report
        self._topic = f"scrlm-{uuid4().hex}"
        self._began = time.perf_counter()

    def __enter__(self) -> Execution:
        notify = _listeners[self._topic] = partial(self.emit, publish=False)
        client = workers.current_client()
        if client is not None:
            client.subscribe_topic(self._topic, self._on_block_done)
            self._publish = make_publisher(client, self._topic, notify)
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc_info: object) -> None:
        if exc_type is not None:
            leaving = issubclass(exc_type, KeyboardInterrupt | ClusterError)
            failures.drain_tasks(self._topic, leaving=leaving)
        error = None if exc_type is None else exc_type.__name__
        self.emit(events.RunEnded(time.perf_counter() - self._began, error))
        client = workers.current_client()
        if client is not None and client.status == "running":
            client.unsubscribe_topic(self._topic)
        _listeners.pop(self._topic, None)

    def emit(self, event: events.Event, *, publish: bool = True) -> None:
        """Notify the listeners; publish the event on the scheduler unless it has seen it."""
        if publish and self._publish is not None:
            self._publish(event)
        for listener in self.listeners:
            listener(event)

    def run(
        self,
        pass_: Pass,
        features: Features,
        broadcast: dict[str, Any],
        *,
        blocks: Sequence[int] | None = None,
        columns: Columns | None = None,
        input_digest: str = "",
        leave_on_workers: bool = False,
    ) -> Any:
        """Run a pass over all blocks, or over `blocks`, and return the combined parts.

        `broadcast` are inputs of all blocks; a Delayed is computed once and sent to every worker.
        `columns` hold numbers of each row; a part gets those of its rows. `input_digest` identifies
        inputs that may differ in the next attempt: it becomes part of the checkpoint's name. With
        `leave_on_workers` the result is a persisted Delayed.
        """
        name = pass_.name
        tasks = self._block_tasks(pass_, features, broadcast, blocks, columns)
        saved = self.checkpoints.next_groups(
            name, pass_.checkpoint_types, pass_.outputs_valid, input_digest
        )
        reduction = self.checkpoints.reduce(tasks.parts, pass_.combine, name, pass_.fan_in, saved)
        with self._reading(tasks, reduction.reused_blocks):
            if leave_on_workers:
                return wait(persist(reduction.total))
            return dask.compute(reduction.total)[0]

    def run_per_block(
        self,
        pass_: Pass,
        features: Features,
        broadcast: dict[str, Any],
        *,
        blocks: Sequence[int] | None = None,
        columns: Columns | None = None,
        summary_columns: Columns | None = None,
        saved: SavedGroups | None = None,
    ) -> PassResult:
        """Run a pass as `run` does, and leave its per-block outputs on the workers.

        `summary_columns` are given to `summarize` instead of `part`: the per-block outputs do not
        depend on them, so the scheduler can forget them and a lost worker does not need them.
        With `saved` the (single) per-block output is checkpointed with the parts.
        """
        tasks = self._block_tasks(pass_, features, broadcast, blocks, columns)
        outputs = [_output_tasks(pass_, tasks.parts, output) for output in pass_.per_block]
        reduction = self.checkpoints.reduce(
            _summary_tasks(pass_, tasks.parts, summary_columns or {}),
            pass_.combine,
            pass_.name,
            pass_.fan_in,
            saved,
            [output for one in outputs for output in one],
        )
        with self._reading(tasks, reduction.reused_blocks):
            # together: the outputs are computed while the parts are combined and dropped
            total, *persisted = dask.persist(reduction.total, *reduction.per_block_outputs)
            result = total.compute()
        n = len(tasks.parts)
        per_block = {name: persisted[i * n : (i + 1) * n] for i, name in enumerate(pass_.per_block)}
        return PassResult(result, per_block)

    def map(
        self, name: str, part: Callable[..., Any], features: Features, broadcast: dict[str, Any]
    ) -> list[Delayed]:
        """Persist `part(block, start, **broadcast)` of every block on the workers."""
        tasks = self._block_tasks(Pass(name, part, _no_combine), features, broadcast, None, None)
        with self._reading(tasks):
            return [wait(value) for value in dask.persist(*tasks.parts)]

    @contextmanager
    def phase(self, name: str, blocks: int, rows: int, n_bytes: int) -> Iterator[None]:
        """Time a phase; collect read times and peak memory of the workers at its end."""
        self.emit(events.PhaseStarted(name, blocks, rows, n_bytes))
        if self._read_seconds is None:  # a process may have read before this run
            self._read_seconds = workers.run_on_all_workers(workers.read_seconds, float)
        before, begin = self._read_seconds, time.perf_counter()
        with nullcontext() if workers.current_client() is None else _span(name):
            yield
        seconds = time.perf_counter() - begin
        self.reports = workers.process_reports()
        after = {worker: report.pop("read_seconds") for worker, report in self.reports.items()}
        self._read_seconds = after
        # a worker that is new has not read before
        read = sum(after[worker] - before.get(worker, 0.0) for worker in after)
        peak = max((r["peak_memory_bytes"] for r in self.reports.values()), default=0)
        done = events.PhaseFinished(name, seconds, rows, n_bytes, blocks, peak, read)
        self.phases.append(done)
        self.emit(done)

    @contextmanager
    def read_phase(
        self,
        name: str,
        features: Features,
        blocks: Sequence[int] | None = None,
        tasks_name: str | None = None,
    ) -> Iterator[None]:
        """Time a phase that reads all blocks, or `blocks`, in tasks of the given name."""
        numbers = range(features.n_blocks) if blocks is None else blocks
        layout = features.layout
        rows = layout.rows_in(numbers)
        with (
            self.phase(name, len(numbers), rows, rows * layout.row_bytes),
            failures.explain_killed_workers(name, features, numbers, tasks_name),
        ):
            yield

    @contextmanager
    def _reading(self, tasks: _BlockTasks, reused_blocks: Sequence[int] = ()) -> Iterator[None]:
        """Time the phase of a pass; `reused_blocks` (positions) come from an earlier attempt."""
        layout = tasks.features.layout
        with self.read_phase(tasks.phase, tasks.features, tasks.blocks, tasks.name):
            if reused_blocks:
                done = layout.rows_in([tasks.blocks[i] for i in reused_blocks])
                self.emit(events.BlockDone(tasks.phase, done, done * layout.row_bytes))
            _spread(tasks.broadcast, len(tasks.blocks) - len(reused_blocks))
            yield

    def _block_tasks(
        self,
        pass_: Pass,
        features: Features,
        broadcast: dict[str, Any],
        blocks: Sequence[int] | None,
        columns: Columns | None,
    ) -> _BlockTasks:
        """Build one task per block."""
        array, numbers, columns = features.array, None, columns or {}
        if blocks is not None:
            array = array.blocks[list(blocks)]
            # a task of its own: inside the kwargs it would be sent along with every block
            numbers = task("blocks", np.array, list(blocks))
        name = f"{pass_.name}-{uuid4().hex}"
        call = _BlockCall(
            pass_.name,
            pass_.part,
            tuple(columns),
            self._topic,
            features.block_rows,
            features.label,
            pass_.reports_progress,
        )
        parts = array.map_blocks(
            _block_task,
            *columns.values(),
            call=call,
            numbers=numbers,
            broadcast=broadcast,
            chunks=((1,) * array.numblocks[0], (1,)),
            dtype=object,
            meta=np.empty((0, 0), object),
            name=name,
        )
        chosen = range(features.n_blocks) if blocks is None else blocks
        delayed = list(parts.to_delayed().ravel())
        return _BlockTasks(pass_.name, name, features, chosen, broadcast, delayed)

    def _on_block_done(self, event: tuple[float, dict[str, Any]]) -> None:
        self.emit(events.BlockDone(**event[1]["block"]), publish=False)


def task(name: str, function: Callable[..., Any], *args: Any) -> Delayed:
    """Return a single task. Its key is a tuple, which keeps Dask's back-pressure on the blocks."""
    return dask.delayed(_pinned, pure=False)(
        function, *args, dask_key_name=(f"{name}-{uuid4().hex}", 0)
    )


def persist(value: Delayed) -> Delayed:
    return dask.persist(value)[0]


def wait(value: Delayed) -> Delayed:
    """Wait for a persisted value; raise the error of its tasks, if any."""
    if workers.current_client() is not None:
        from distributed import futures_of

        for future in futures_of(value):
            if future.exception() is not None:
                future.result()
    return value


def blocks_with_rows(rows: Any, block_rows: int) -> list[int]:
    """Return the numbers of the blocks that contain the given rows."""
    return [int(i) for i in np.unique(np.asarray(rows) // block_rows)]


@dataclass(frozen=True)
class _BlockTasks:
    """The tasks of a pass, one per block, and what they read."""

    phase: str
    name: str  # first element of the tasks' keys
    features: Features
    blocks: Sequence[int]
    broadcast: dict[str, Any]
    parts: list[Delayed]


@dataclass(frozen=True)
class _BlockCall:
    """What is the same for all block tasks of a pass, apart from its inputs."""

    phase: str
    part: Callable[..., Any]
    columns: tuple[str, ...]
    topic: str
    block_rows: int
    label: str  # of the features
    reports_progress: bool


def _block_task(
    block: Any,
    *column_blocks: Any,
    call: _BlockCall,
    numbers: Any,
    broadcast: dict[str, Any],
    block_id: Any = None,
) -> Any:
    done = partial(_report, call)
    number = int(block_id[0] if numbers is None else numbers[block_id[0]])
    start = number * call.block_rows
    try:
        with (
            failures.track_task(call.topic) as is_active,
            compute_slot(is_active) as run_is_active,
            pinned_threads(),
        ):
            if not run_is_active:
                # raise: a value would be merged, and checkpointed as the part of this block
                raise failures.RunIsOverError(f"{call.phase}: the run has ended")
            inputs = _column_values(call.columns, column_blocks)
            inputs |= {"done": done} if call.reports_progress else {}
            result = call.part(block, start, **inputs, **broadcast)
    except NonFiniteRowError as error:
        raise UnusableRowsError(
            f"row {start + error.row} (block {number}) of {call.label} holds NaN, infinity or a "
            "value too large for float32; clean or drop the row"
        ) from error
    if not call.reports_progress:
        done(len(block), int(block.nbytes))
    return result


def _column_values(names: Sequence[str], blocks: Sequence[Any]) -> dict[str, Any]:
    """Return columns of one number per row as vectors (rows,), wider ones as they are."""
    return {
        name: block[:, 0] if block.shape[1] == 1 else block
        for name, block in zip(names, blocks, strict=True)
    }


def _output_tasks(pass_: Pass, results: Sequence[Delayed], name: str) -> list[Delayed]:
    key, extract = f"{pass_.name}-{name}-{uuid4().hex}", dask.delayed(_extract_output, pure=False)
    return [extract(result, name, dask_key_name=(key, i)) for i, result in enumerate(results)]


def _extract_output(result: Any, name: str) -> Any:
    return getattr(result, name)[:, None]


def _summary_tasks(pass_: Pass, results: Sequence[Delayed], columns: Columns) -> list[Delayed]:
    key, summarize = f"{pass_.name}-sums-{uuid4().hex}", dask.delayed(_summarize, pure=False)
    column_blocks = [list(column.to_delayed().ravel()) for column in columns.values()]
    return [
        summarize(result, pass_.summarize, tuple(columns), *blocks, dask_key_name=(key, i))
        for i, (result, *blocks) in enumerate(zip(results, *column_blocks, strict=True))
    ]


def _summarize(
    result: Any, summarize: Callable[..., Any] | None, names: tuple[str, ...], *blocks: Any
) -> Any:
    if summarize is None:
        return result.part
    return summarize(result, **_column_values(names, blocks))


def _no_combine(a: Any, b: Any) -> Any:
    raise NotImplementedError("the results of the blocks are not combined")


def _report(call: _BlockCall, rows: int, n_bytes: int) -> None:
    """Send the event of a finished block through the scheduler, or to this process."""
    event = events.BlockDone(call.phase, rows, n_bytes)
    worker, listener = workers.current_worker(), _listeners.get(call.topic)
    if worker is not None:
        worker.log_event(call.topic, {"block": vars(event)})  # Dask adds keys of its own
    elif listener is not None:
        listener(event)


def _spread(broadcast: dict[str, Any], n_blocks: int) -> None:
    """Copy persisted inputs to as many workers as there are blocks, if there are few blocks.

    Dask schedules few tasks where their inputs are: all of them would go to the worker that
    prepared the inputs, and the others would only steal some. With more than two tasks per thread
    Dask spreads them evenly, unless their columns or blocks are persisted: then they run there.
    """
    client = workers.current_client()
    if client is None:
        return
    from distributed import futures_of
    from distributed import wait as wait_for_futures

    # errors are ignored here: a lost worker or a failed preparation surfaces in the block tasks
    with suppress(Exception):
        threads = client.nthreads()
        keys = {value.key for value in broadcast.values() if isinstance(value, Delayed)}
        futures = [future for future in futures_of(list(broadcast.values())) if future.key in keys]
        if not futures or not 1 < n_blocks <= 2 * sum(threads.values()):
            return
        # by tasks, not by `replicate`: Dask removes copies that no task waits for
        token = uuid4().hex
        received = [
            client.submit(_receive, *futures, key=(f"receive-{token}", i), workers=[worker])
            for i, worker in enumerate(list(threads)[:n_blocks])
        ]
        wait_for_futures(received, timeout=_SPREAD_SECONDS)


def _receive(*values: Any) -> None:
    """Do nothing: the inputs of a task are on its worker when it starts."""


def _span(name: str) -> Any:
    """Group the tasks of a phase under its name in Dask's dashboard."""
    from distributed import span

    return span(name)


def _pinned(function: Callable[..., Any], *args: Any) -> Any:
    with compute_slot(), pinned_threads():
        return function(*args)
