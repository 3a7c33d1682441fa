"""Run passes: compute a partial result, the part, per block; combine parts in a tree.

The shape of the tree is fixed, so the order in which blocks finish does not affect the result.

Reading a block and computing its part is one task. A worker therefore has at most one block per
thread in memory, including the threads that prefetch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
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
from scrlm_dask.engine.features import Features, send_numbers
from scrlm_dask.engine.read_ahead import compute_slot
from scrlm_dask.engine.threads import pinned_threads
from scrlm_dask.engine.tree_reduce import FAN_IN, combine_parts
from scrlm_dask.errors import ClusterError, NonFiniteRowError
from scrlm_dask.monitoring.listeners import NotebookCell, in_notebook, make_publisher
from scrlm_dask.settings import monitoring_enabled
from scrlm_dask.storage.checkpoints import Checkpoint, Kinds
from scrlm_dask.storage.feature_store import block_rows_for
from scrlm_dask.storage.masks import remove_mask

# Values per row, by name: arrays (rows, 1), or (rows, q) for q numbers per row. Their chunks have
# the rows of the blocks of the pass.
Columns: TypeAlias = Mapping[str, da.Array]

_SPREAD_SECONDS = 10.0  # time limit for copying inputs, because a worker may hang or be lost

# A warning reports more blocks than this of fewer bytes than this, and their fixed cost.
# The cost was measured with benchmarks/small_blocks.py; all of these blocks are batched.
MANY_BLOCKS, SMALL_BLOCK_BYTES, _BLOCK_SECONDS = 2000, 10**6, 0.0005

_listeners: dict[str, events.Listener] = {}  # listeners of the runs of this process, by topic


@dataclass(frozen=True)
class Pass:
    """One read of all blocks with a reduction.

    Parameters
    ----------
    name : str
        Name of the phase, of the tasks and of the checkpoint.
    part : callable
        `part(block, start, **columns, **broadcast)` computes the part of a block; `start` is the
        number of its first row.
    combine : callable
        `combine(a, b)` combines two consecutive parts.
    checkpoint_types : tuple of types, optional
        Dataclasses that parts consist of. Passes without them are not checkpointed.
    fan_in : int
        Number of parts combined at a time; the last bits of the result depend on it.
    outputs_valid : callable, optional
        Returns whether the outputs that a range of blocks wrote in an earlier attempt still exist.
    reports_progress : bool
        If True, `part` also receives `done(rows, n_bytes)` and calls it while it works.
    per_block : tuple of str
        Attributes (rows,) of the result of `part` that stay on the workers, one array per block.
        The attribute `part` of the result is combined, unless `summarize` is given.
    summarize : callable, optional
        `summarize(result, **columns)` converts the result of `part` to the value to combine.
    write : callable, optional
        `write(results, start, **broadcast)` receives the results of `part` for all blocks of a
        task, the first of which starts at row `start`. It writes them to an output in one call,
        which costs less than one call per small block, and returns the parts to combine.
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
    write: Callable[..., Iterable[Any]] | None = None


@dataclass(frozen=True)
class PassResult:
    """Combined parts of a pass, and per-block outputs, which stay on the workers."""

    total: Any
    per_block: dict[str, list[Delayed]]  # by name of the output: one array (rows, 1) per task


class Execution:
    """Execution of one run: phases, checkpoints and listeners."""

    def __init__(self, listener: events.Listener, checkpoint: Checkpoint | None = None) -> None:
        self.phases: list[events.PhaseFinished] = []
        self.reports: dict[str, dict[str, Any]] = {}  # of the last phase, by worker process
        self.checkpoints = CheckpointScope(checkpoint, self.emit)
        self.listeners = [listener]
        if listener is events.warn and monitoring_enabled() and in_notebook():
            self.listeners.append(NotebookCell())
        self._client: Any | None = None  # subscribed to the events of the blocks
        self._publish: events.Listener | None = None  # sends an event to the scheduler
        self._read_seconds: dict[str, float] | None = None  # at the last report, by worker process
        self._warned = False  # of many small blocks
        self._topic = f"scrlm-{uuid4().hex}"
        self._began = time.perf_counter()

    def __enter__(self) -> Execution:
        notify = _listeners[self._topic] = partial(self.emit, publish=False)
        self._client = client = workers.current_client()
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
        # not `current_client`: other threads of the process can change Dask's configuration
        if self._client is not None and self._client.status == "running":
            self._client.unsubscribe_topic(self._topic)
        _listeners.pop(self._topic, None)

    def emit(self, event: events.Event, *, publish: bool = True) -> None:
        """Send an event to the listeners and, with `publish`, to the scheduler."""
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

        `blocks` are ascending. `broadcast` contains the inputs that all blocks share; a Delayed is
        computed once and sent to every worker. `columns` contain values per row of the pass; `part`
        receives the values of its rows. `input_digest` identifies inputs that may differ in the
        next attempt, and is part of the checkpoint's name. With `leave_on_workers` the result is
        not sent to the client: it stays on a worker, and a persisted Delayed is returned.
        """
        name = pass_.name
        combine = partial(combine_parts, combine=pass_.combine, fan_in=pass_.fan_in)
        tasks = self._block_tasks(pass_, features, broadcast, blocks, columns, combine)
        saved = self.checkpoints.next_groups(
            name, pass_.checkpoint_types, pass_.outputs_valid, input_digest
        )
        saved = None if saved is None else batch_groups(saved, tasks.features, len(tasks.blocks))
        reduction = self.checkpoints.reduce(tasks.parts, pass_.combine, name, pass_.fan_in, saved)
        with self._reading(tasks, reduction.reused_blocks):
            # not `compute`: it releases the tasks before an error with them can be explained
            total = persist(reduction.total)
            return wait(total) if leave_on_workers else workers.gather(total)[0]

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

        `summary_columns` are passed to `summarize` instead of `part`. The per-block outputs do not
        depend on these columns, so Dask can release the columns, and does not need them to compute
        lost outputs again. With `saved`, the per-block output is checkpointed with the parts; the
        pass must then have a single one.
        """
        tasks = self._block_tasks(pass_, features, broadcast, blocks, columns, list)
        saved = None if saved is None else batch_groups(saved, tasks.features, len(tasks.blocks))
        outputs = [_output_tasks(pass_, tasks.parts, output) for output in pass_.per_block]
        reduction = self.checkpoints.reduce(
            _summary_tasks(pass_, tasks, summary_columns or {}),
            pass_.combine,
            pass_.name,
            pass_.fan_in,
            saved,
            [output for one in outputs for output in one],
        )
        with self._reading(tasks, reduction.reused_blocks):
            # in one call, so that parts are combined and released while the outputs are computed
            total, *persisted = workers.persist(reduction.total, *reduction.per_block_outputs)
            result = workers.gather(total)[0]
        n = len(tasks.parts)
        per_block = {name: persisted[i * n : (i + 1) * n] for i, name in enumerate(pass_.per_block)}
        return PassResult(result, per_block)

    def map(
        self, name: str, part: Callable[..., Any], features: Features, broadcast: dict[str, Any]
    ) -> list[Delayed]:
        """Compute `part(block, start, **broadcast)` per block; leave the results on the workers.

        The results are arrays; those of the blocks of one task are concatenated.
        """
        pass_ = Pass(name, part, _no_combine)
        tasks = self._block_tasks(pass_, features, broadcast, None, None, _concatenate)
        with self._reading(tasks):
            return [wait(value) for value in workers.persist(*tasks.parts)]

    @contextmanager
    def phase(self, name: str, blocks: int, rows: int, n_bytes: int) -> Iterator[None]:
        """Measure a phase; at its end, collect read times and peak memory of the workers."""
        self.emit(events.PhaseStarted(name, blocks, rows, n_bytes))
        if self._read_seconds is None:  # a process may have read rows before this run
            self._read_seconds = workers.run_on_all_workers(workers.read_seconds, float)
        before, begin = self._read_seconds, time.perf_counter()
        with nullcontext() if workers.current_client() is None else _span(name):
            yield
        seconds = time.perf_counter() - begin
        self.reports = workers.process_reports()
        after = {worker: report.pop("read_seconds") for worker, report in self.reports.items()}
        self._read_seconds = after
        # a new worker has not read before; a restarted worker may have the address of a former one
        since = {worker: seconds - before.get(worker, 0.0) for worker, seconds in after.items()}
        read = sum(new if new >= 0.0 else after[worker] for worker, new in since.items())
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
        """Measure a phase that reads all blocks, or `blocks`, in tasks of the given name."""
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
        """Measure the phase of a pass.

        `reused_blocks` are the positions of the blocks that are loaded from checkpoints.
        """
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
        collect: Callable[[Iterable[Any]], Any],
    ) -> _BlockTasks:
        """Build one task per block, or per batch of small blocks.

        `collect` converts the results of the blocks of a task to the result of the task.
        """
        self._warn_of_small_blocks(features)
        chosen = range(features.n_blocks) if blocks is None else blocks
        array, numbers = features.array, None
        if blocks is not None:
            array = features.read(blocks)
            numbers = send_numbers(blocks)
        columns = _in_chunks_of(array, columns or {})
        name = f"{pass_.name}-{uuid4().hex}"
        call = _BlockCall(
            pass_.name,
            pass_.part,
            tuple(columns),
            self._topic,
            features.block_rows,
            features.blocks_per_task(len(chosen)),
            features.label,
            pass_.reports_progress,
            workers.current_client() is not None,
            collect,
            pass_.write,
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
        delayed = list(parts.to_delayed().ravel())
        return _BlockTasks(pass_.name, name, features, array, chosen, broadcast, numbers, delayed)

    def _warn_of_small_blocks(self, features: Features) -> None:
        """Warn once per run of many small blocks, because their fixed cost dominates."""
        layout = features.layout
        small = layout.block_bytes < SMALL_BLOCK_BYTES and features.may_warn
        if self._warned or not small or layout.n_blocks <= MANY_BLOCKS:
            return
        self._warned = True
        better = block_rows_for(features.array.shape, features.array.dtype, None)
        text = (
            f"{features.label} is read in {layout.n_blocks} blocks of {layout.block_bytes / 1e3:g} "
            f"kB, which adds about {layout.n_blocks * _BLOCK_SECONDS:.0f} s of CPU time to each "
            f"pass; omit --block-rows (block_rows), or use about {better} rows per block"
        )
        self.emit(events.Note(text, warning=True))

    def _on_block_done(self, event: tuple[float, dict[str, Any]]) -> None:
        self.emit(events.BlockDone(**event[1]["block"]), publish=False)


def task(name: str, function: Callable[..., Any], *args: Any) -> Delayed:
    """Return a single task that calls the function in a compute slot.

    Its key is a tuple, which preserves Dask's back-pressure on block tasks.
    """
    return dask.delayed(_pinned, pure=False)(
        function, *args, dask_key_name=(f"{name}-{uuid4().hex}", 0)
    )


def as_task(value: Any) -> Delayed:
    """Return a task that returns the value: Dask then sends it once per worker, not per block."""
    # A partial function, because Dask would search the value for tasks: a table of thousands of
    # files, or of labels with many names, has hundreds of thousands of parts.
    return task("given", partial(_same, value))


def _same(value: Any) -> Any:
    return value


def persist(value: Delayed) -> Delayed:
    """Start to compute a value; leave the result on the workers."""
    persisted: Delayed = workers.persist(value)[0]
    return persisted


def wait(value: Delayed) -> Delayed:
    """Wait for a persisted value; raise the error of its tasks, if any."""
    if workers.current_client() is not None:
        from distributed import futures_of

        for future in futures_of(value):
            if future.exception() is not None:
                future.result()
    return value


def batch_groups(saved: SavedGroups, features: Features, n_blocks: int) -> SavedGroups:
    """Return the checkpoint of a pass over `n_blocks` blocks, with one part per task."""
    return replace(saved, blocks_per_part=features.blocks_per_task(n_blocks), n_blocks=n_blocks)


def blocks_with_rows(rows: Any, block_rows: int) -> list[int]:
    """Return the numbers of the blocks that contain the given rows."""
    return [int(i) for i in np.unique(np.asarray(rows) // block_rows)]


@dataclass(frozen=True)
class _BlockTasks:
    """Tasks of a pass, one per chunk of `array`, and their inputs."""

    phase: str
    name: str  # first element of the tasks' keys
    features: Features
    array: da.Array
    blocks: Sequence[int]
    broadcast: dict[str, Any]
    numbers: Delayed | None  # of the blocks; without this reference, Dask would release them
    parts: list[Delayed]


@dataclass(frozen=True)
class _BlockCall:
    """Settings shared by all block tasks of a pass."""

    phase: str
    part: Callable[..., Any]
    columns: tuple[str, ...]
    topic: str
    block_rows: int
    blocks_per_task: int
    label: str  # name of the features in messages
    reports_progress: bool
    on_cluster: bool  # False: the tasks run in the process of the listener, perhaps inside a task
    collect: Callable[[Iterable[Any]], Any]
    write: Callable[..., Iterable[Any]] | None


def _block_task(
    block: Any,
    *column_blocks: Any,
    call: _BlockCall,
    numbers: Any,
    broadcast: dict[str, Any],
    block_id: Any = None,
) -> Any:
    first = block_id[0] * call.blocks_per_task
    blocks = range(first, first + call.blocks_per_task)  # positions among the blocks of the pass
    if numbers is not None:
        blocks = numbers[blocks.start : blocks.stop]
    with (
        failures.track_task(call.topic) as is_active,
        compute_slot(is_active) as run_is_active,
        pinned_threads(),
    ):
        if not run_is_active:
            # raise, because a return value would be combined and checkpointed as a part
            raise failures.RunIsOverError(f"{call.phase}: the run has ended")
        columns = _column_values(call.columns, column_blocks)
        results: Iterable[Any] = _block_results(block, blocks, call, columns, broadcast)
        if call.write is not None:
            results = call.write(list(results), int(blocks[0]) * call.block_rows, **broadcast)
        result = call.collect(results)
    if not call.reports_progress:
        _report(call, len(block), int(block.nbytes))
    return result


def _block_results(
    rows: Any,
    blocks: Sequence[int],
    call: _BlockCall,
    columns: dict[str, Any],
    broadcast: dict[str, Any],
) -> Iterator[Any]:
    """Yield the result of `part` for each block of a task."""
    inputs = {"done": partial(_report, call)} if call.reports_progress else {}
    for i in range(-(-len(rows) // call.block_rows)):
        here = slice(i * call.block_rows, (i + 1) * call.block_rows)
        start = int(blocks[i]) * call.block_rows
        block = remove_mask(rows[here], call.label, start)
        own = {
            name: remove_mask(values[here], f"the {name}", start)
            for name, values in columns.items()
        }
        try:
            yield call.part(block, start, **own, **inputs, **broadcast)
        except NonFiniteRowError as error:
            where = f"row {start + error.row} (block {blocks[i]}) of {call.label}"
            raise error.named(where) from error


def _in_chunks_of(array: da.Array, columns: Columns) -> dict[str, da.Array]:
    return {name: column.rechunk({0: array.chunks[0]}) for name, column in columns.items()}


def _column_values(names: Sequence[str], blocks: Sequence[Any]) -> dict[str, Any]:
    """Return columns by name; columns of one number per row become vectors (rows,)."""
    return {
        name: block[:, 0] if block.shape[1] == 1 else block
        for name, block in zip(names, blocks, strict=True)
    }


def _output_tasks(pass_: Pass, results: Sequence[Delayed], name: str) -> list[Delayed]:
    key, extract = f"{pass_.name}-{name}-{uuid4().hex}", dask.delayed(_extract_output, pure=False)
    return [extract(result, name, dask_key_name=(key, i)) for i, result in enumerate(results)]


def _extract_output(results: list[Any], name: str) -> Any:
    return _concatenate(getattr(result, name) for result in results)[:, None]


def _concatenate(results: Iterable[Any]) -> Any:
    parts = list(results)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _summary_tasks(pass_: Pass, tasks: _BlockTasks, columns: Columns) -> list[Delayed]:
    key, summarize = f"{pass_.name}-sums-{uuid4().hex}", dask.delayed(_summarize, pure=False)
    columns = _in_chunks_of(tasks.array, columns)
    column_blocks = [list(column.to_delayed().ravel()) for column in columns.values()]
    settings = _Summary(pass_, tuple(columns), tasks.features.block_rows)
    return [
        summarize(results, settings, *blocks, dask_key_name=(key, i))
        for i, (results, *blocks) in enumerate(zip(tasks.parts, *column_blocks, strict=True))
    ]


@dataclass(frozen=True)
class _Summary:
    """Settings shared by all summary tasks of a pass."""

    pass_: Pass
    columns: tuple[str, ...]
    block_rows: int


def _summarize(results: list[Any], settings: _Summary, *blocks: Any) -> Any:
    pass_ = settings.pass_
    values = _column_values(settings.columns, blocks)
    summaries = (
        _summary(
            pass_, result, values, slice(i * settings.block_rows, (i + 1) * settings.block_rows)
        )
        for i, result in enumerate(results)
    )
    return combine_parts(summaries, pass_.combine, pass_.fan_in)


def _summary(pass_: Pass, result: Any, columns: dict[str, Any], rows: slice) -> Any:
    if pass_.summarize is None:
        return result.part
    return pass_.summarize(result, **{name: values[rows] for name, values in columns.items()})


def _no_combine(a: Any, b: Any) -> Any:
    raise NotImplementedError("the results of the blocks are not combined")


def _report(call: _BlockCall, rows: int, n_bytes: int) -> None:
    """Send the event of a finished block to the scheduler, or to the listener in this process."""
    event = events.BlockDone(call.phase, rows, n_bytes)
    listener = _listeners.get(call.topic)
    worker = workers.current_worker() if call.on_cluster else None
    if worker is not None:
        # under a key of its own, because Dask adds keys to the message
        worker.log_event(call.topic, {"block": vars(event)})
    elif listener is not None:
        listener(event)


def _spread(broadcast: dict[str, Any], n_blocks: int) -> None:
    """Copy persisted inputs to as many workers as there are blocks, if there are few blocks.

    With few tasks, Dask schedules them all on the worker that prepared the inputs, and other
    workers get tasks only by work stealing. With more than two tasks per thread, Dask spreads the
    tasks evenly, or runs them on the workers on which their columns or blocks are persisted.
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
        # copy by tasks instead of `replicate`, because Dask removes copies that no task waits for
        token = uuid4().hex
        received = [
            client.submit(_receive, *futures, key=(f"receive-{token}", i), workers=[worker])
            for i, worker in enumerate(list(threads)[:n_blocks])
        ]
        wait_for_futures(received, timeout=_SPREAD_SECONDS)


def _receive(*values: Any) -> None:
    """Do nothing: a task starts when its inputs are on its worker."""


def _span(name: str) -> Any:
    """Group the tasks of a phase under its name in Dask's dashboard."""
    from distributed import span

    return span(name)


def _pinned(function: Callable[..., Any], *args: Any) -> Any:
    with compute_slot(), pinned_threads():
        return function(*args)
