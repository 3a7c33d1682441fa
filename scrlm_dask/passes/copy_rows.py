"""Rows from tables into a features store: each block written whole, by one worker.

What is read together is one task: a task's span is as many blocks as a row group, or what else can
only be decoded at once, and its blocks go out one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.engine.execution import Execution, persist, task, wait
from scrlm_dask.engine.features import Features, placeholder_blocks
from scrlm_dask.errors import InputError
from scrlm_dask.events import BlockDone
from scrlm_dask.kernels.randomness.sampling import Permutation
from scrlm_dask.sources.base import Source
from scrlm_dask.sources.label_encoding import merge_names, names_among
from scrlm_dask.sources.tables import Rows, ShuffleLayout, Table, shuffle_file, write_shuffled_part
from scrlm_dask.storage.feature_store import write_features_block
from scrlm_dask.storage.locations import Location

_Done = Callable[[int, int], None]


def ingest_pass(
    execution: Execution,
    table: Table,
    url: Location,
    *,
    n_features: int,
    dtype: str,
    block_rows: int,
    missing: Sequence[int],
    keep_nan: bool,
) -> int:
    """Write the missing blocks of the store at `url`; returns how many rows that were."""
    if not missing:
        return 0
    plan = _plan(table, n_features, dtype, block_rows)
    per_span = plan.block_rows // block_rows
    spans = sorted({block // per_span for block in missing})
    if table.is_here:
        return _write_here(execution, table, url, plan, spans, frozenset(missing), block_rows)
    written: int = execution.map_reduce(
        "ingest",
        plan,
        _write_part,
        int.__add__,
        blocks=spans,
        table=_sent(table),
        missing=_sent(frozenset(missing)),
        block_rows=block_rows,
        url=url,
        keep_nan=keep_nan,
        piecewise=True,
    )
    return written


def check_finite_pass(
    execution: Execution, table: Table, n_features: int, dtype: str, block_rows: int
) -> NDArray[np.int64]:
    """Numbers of the rows that are not finite, rising."""
    found: tuple[NDArray[np.int64], ...] = execution.map_reduce(
        "scan",
        _plan(table, n_features, dtype, block_rows),
        _check_finite_part,
        tuple.__add__,
        table=_sent(table),
        block_rows=block_rows,
        piecewise=True,
    )
    return np.concatenate([np.empty(0, np.int64), *found])


def collect_labels_pass(
    execution: Execution, labels: Source, n_rows: int, block_rows: int
) -> tuple[str, ...]:
    """The different texts among the labels of the first `n_rows` rows, sorted."""
    unit = labels.unit_rows if labels.streams else 1
    rows = min(n_rows, block_rows * -(-unit // block_rows))
    found: frozenset[str] = execution.map_reduce(
        "names",
        placeholder_blocks((n_rows, 1), np.dtype(np.int32), rows),
        _collect_labels_part,
        partial(merge_names, what=labels.what),
        labels=_sent(labels),
        block_rows=block_rows,
    )
    return tuple(sorted(found))


def shuffle_pass(
    execution: Execution,
    table: Table,
    permutation: Permutation,
    folder: str,
    *,
    layout: ShuffleLayout,
    block_rows: int,
    keep_nan: bool,
) -> None:
    """First half of the shuffle: each block, sorted by where its rows go, as a run in a folder.

    A run that is there already is left as it is.
    """
    execution.map_reduce(
        "scatter",
        _plan(table, layout.n_features, layout.dtype, block_rows),
        _shuffle_part,
        int.__add__,
        table=_sent(table),
        permutation=permutation,
        folder=folder,
        layout=layout,
        block_rows=block_rows,
        keep_nan=keep_nan,
        piecewise=True,
    )


def check_stored_pass(sources: Sequence[Source]) -> None:
    """Let a worker check what only all of a file can tell."""
    for verified in [persist(task("verify", source.verify)) for source in sources]:
        wait(verified)


def _sent(value: Any) -> Delayed:
    """A task that gives the value: sent once to each worker, not along with every block."""
    return task("given", _same, value)


def _same(value: Any) -> Any:
    return value


def _plan(table: Table, n_features: int, dtype: str, block_rows: int) -> Features:
    """Spans with nothing in them: reading is part of the task that writes."""
    rows = block_rows * -(-max(1, table.span_rows) // block_rows)
    rows = min(rows, block_rows * -(-table.n_rows // block_rows))
    return placeholder_blocks((table.n_rows, n_features), np.dtype(dtype), rows)


def _write_here(
    execution: Execution,
    table: Table,
    url: Location,
    plan: Features,
    spans: Sequence[int],
    missing: frozenset[int],
    block_rows: int,
) -> int:
    """One span after the other in this thread: a model takes all cores, or a GPU, for itself."""

    def done(rows: int, n_bytes: int) -> None:
        execution.tell(BlockDone("encode", rows, n_bytes))

    written = 0
    with execution.reading("encode", plan, spans):
        for span in spans:
            start = span * plan.block_rows
            rows = range(start, min(start + plan.block_rows, table.n_rows))
            written += _write_part(
                rows, start, table, missing, block_rows, url, keep_nan=False, done=done
            )
    return written


def _write_part(
    span: Sized,
    start: int,
    table: Table,
    missing: frozenset[int],
    block_rows: int,
    url: Location,
    keep_nan: bool,
    done: _Done,
) -> int:
    written = 0
    for first, stop in _runs(start, start + len(span), block_rows, missing):
        for at, rows in _blocks(table, first, stop, block_rows):
            if not keep_nan:
                _check_finite(rows, at, at // block_rows, table)
            _write(url, at, rows, at // block_rows)
            written += len(rows)
            done(len(rows), rows.features.nbytes)
    if written < len(span):  # the rest was written by an earlier run
        done(len(span) - written, 0)
    return written


def _check_finite_part(
    span: NDArray[Any], start: int, table: Table, block_rows: int, done: _Done
) -> tuple[NDArray[np.int64]]:
    found = []
    for at, rows in _blocks(table, start, start + len(span), block_rows):
        found.append(at + bad_rows(rows.features))
        done(len(rows), rows.features.nbytes)
    return (np.concatenate(found),)


def _collect_labels_part(
    span: NDArray[Any], start: int, labels: Source, block_rows: int
) -> frozenset[str]:
    stop, names = start + len(span), frozenset[str]()
    pieces = labels.batches(start, stop, block_rows)
    for first, piece in zip(range(start, stop, block_rows), pieces, strict=True):
        names = merge_names(names, names_among(piece, first, labels), labels.what)
    return names


def _shuffle_part(
    span: NDArray[Any],
    start: int,
    table: Table,
    permutation: Permutation,
    folder: str,
    layout: ShuffleLayout,
    block_rows: int,
    keep_nan: bool,
    done: _Done,
) -> int:
    stop, written = start + len(span), 0
    missing = frozenset(
        run
        for run in range(start // block_rows, -(-stop // block_rows))
        if not shuffle_file(folder, run).exists()
    )
    for first, last in _runs(start, stop, block_rows, missing):
        for at, rows in _blocks(table, first, last, block_rows):
            if not keep_nan:  # here, where it can still be said where the row came from
                _check_finite(rows, at, at // block_rows, table)
            write_shuffled_part(folder, at // block_rows, rows, at, block_rows, permutation, layout)
            written += len(rows)
            done(len(rows), rows.features.nbytes)
    if written < len(span):
        done(len(span) - written, 0)
    return written


def _blocks(table: Table, start: int, stop: int, block_rows: int) -> Iterator[tuple[int, Rows]]:
    starts = range(start, stop, block_rows)
    yield from zip(starts, table.batches(start, stop, block_rows), strict=True)


def _runs(
    start: int, stop: int, block_rows: int, missing: frozenset[int]
) -> Iterator[tuple[int, int]]:
    """Rows [first, stop) of missing blocks that follow each other, to be read in one go."""
    blocks = range(start // block_rows, -(-stop // block_rows))
    for wanted, group in groupby(blocks, missing.__contains__):
        numbers = list(group)
        if wanted:
            yield numbers[0] * block_rows, min(stop, (numbers[-1] + 1) * block_rows)


def bad_rows(features: NDArray[Any]) -> NDArray[np.int64]:
    """Positions of the rows that hold NaN or infinity."""
    return np.flatnonzero(~np.isfinite(features).all(axis=1))


def _check_finite(rows: Rows, start: int, block: int, table: Table) -> None:
    bad = bad_rows(rows.features)
    if len(bad):
        row = start + int(bad[0])
        raise InputError(
            f"{table.locate(row)} (block {block}) holds NaN, infinity or a "
            f"value too large for {rows.features.dtype}; --nan drop leaves such rows out, "
            "--nan keep keeps them"
        )


def _write(url: Location, start: int, rows: Rows, block: int) -> None:
    try:
        write_features_block(url, start, rows.features, rows.labels, rows.ids)
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        # what a full disk says names no file
        raise OSError(error.errno, error.strerror, f"{url} (block {block})") from error
