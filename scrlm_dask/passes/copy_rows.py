"""Copy rows from tables into a features store; each block is written whole, by one worker.

A task copies a span of blocks: as many as a row group, or another unit that can only be decoded at
once. Its blocks are written one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.engine.execution import Execution, Pass, persist, task, wait
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
    store: Location,
    *,
    n_features: int,
    dtype: str,
    block_rows: int,
    missing: Sequence[int],
    keep_nan: bool,
) -> int:
    """Write the missing blocks of the store; return the number of rows written."""
    if not missing:
        return 0
    plan = _plan(table, n_features, dtype, block_rows)
    per_span = plan.block_rows // block_rows
    spans = sorted({block // per_span for block in missing})
    if table.is_here:
        return _write_here(execution, table, store, plan, spans, frozenset(missing), block_rows)
    broadcast = {
        "table": _as_task(table),
        "missing": _as_task(frozenset(missing)),
        "block_rows": block_rows,
        "store": store,
        "keep_nan": keep_nan,
    }
    written: int = execution.run(_INGEST, plan, broadcast, blocks=spans)
    return written


def check_finite_pass(
    execution: Execution, table: Table, n_features: int, dtype: str, block_rows: int
) -> NDArray[np.int64]:
    """Return the numbers of the rows that are not finite, ascending."""
    plan = _plan(table, n_features, dtype, block_rows)
    inputs = {"table": _as_task(table), "block_rows": block_rows}
    found: tuple[NDArray[np.int64], ...] = execution.run(_CHECK_FINITE, plan, inputs)
    return np.concatenate([np.empty(0, np.int64), *found])


def collect_labels_pass(
    execution: Execution, labels: Source, n_rows: int, block_rows: int
) -> tuple[str, ...]:
    """Return the distinct texts among the labels of the first `n_rows` rows, sorted."""
    unit = labels.unit_rows if labels.streams else 1
    rows = min(n_rows, block_rows * -(-unit // block_rows))
    found: frozenset[str] = execution.run(
        Pass("names", _collect_labels_part, partial(merge_names, what=labels.what)),
        placeholder_blocks((n_rows, 1), np.dtype(np.int32), rows),
        {"labels": _as_task(labels), "block_rows": block_rows},
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
    """Do the first half of the shuffle: write each block, sorted by target, to a file in `folder`.

    A file that exists already is kept.
    """
    execution.run(
        _SHUFFLE,
        _plan(table, layout.n_features, layout.dtype, block_rows),
        {
            "table": _as_task(table),
            "permutation": permutation,
            "folder": folder,
            "layout": layout,
            "block_rows": block_rows,
            "keep_nan": keep_nan,
        },
    )


def check_stored_pass(sources: Sequence[Source]) -> None:
    """Check whole files on the workers, such as their checksums."""
    for verified in [persist(task("verify", source.verify)) for source in sources]:
        wait(verified)


def _as_task(value: Any) -> Delayed:
    """Return a task that returns the value: sent once to each worker, not with every block."""
    return task("given", _same, value)


def _same(value: Any) -> Any:
    return value


def _plan(table: Table, n_features: int, dtype: str, block_rows: int) -> Features:
    """Return placeholder spans: rows are read in the task that writes them."""
    rows = block_rows * -(-max(1, table.span_rows) // block_rows)
    rows = min(rows, block_rows * -(-table.n_rows // block_rows))
    return placeholder_blocks((table.n_rows, n_features), np.dtype(dtype), rows)


def _write_here(
    execution: Execution,
    table: Table,
    store: Location,
    plan: Features,
    spans: Sequence[int],
    missing: frozenset[int],
    block_rows: int,
) -> int:
    """Write one span after the other in this thread: an encoder uses all cores, or the GPU."""

    def done(rows: int, n_bytes: int) -> None:
        execution.emit(BlockDone("encode", rows, n_bytes))

    written = 0
    with execution.read_phase("encode", plan, spans):
        for span in spans:
            start = span * plan.block_rows
            rows = range(start, min(start + plan.block_rows, table.n_rows))
            written += _write_part(
                rows, start, table, missing, block_rows, store, keep_nan=False, done=done
            )
    return written


def _write_part(
    span: Sized,
    start: int,
    table: Table,
    missing: frozenset[int],
    block_rows: int,
    store: Location,
    keep_nan: bool,
    done: _Done,
) -> int:
    written = 0
    for first, stop in _missing_rows(start, start + len(span), block_rows, missing):
        for at, rows in _blocks(table, first, stop, block_rows):
            if not keep_nan:
                _check_finite(rows, at, at // block_rows, table)
            _write(store, at, rows, at // block_rows)
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
        block
        for block in range(start // block_rows, -(-stop // block_rows))
        if not shuffle_file(folder, block).exists()
    )
    for first, last in _missing_rows(start, stop, block_rows, missing):
        for at, rows in _blocks(table, first, last, block_rows):
            if not keep_nan:  # here, where the origin of the row is still known
                _check_finite(rows, at, at // block_rows, table)
            write_shuffled_part(folder, at // block_rows, rows, at, block_rows, permutation, layout)
            written += len(rows)
            done(len(rows), rows.features.nbytes)
    if written < len(span):
        done(len(span) - written, 0)
    return written


_INGEST = Pass("ingest", _write_part, int.__add__, reports_progress=True)
_CHECK_FINITE = Pass("scan", _check_finite_part, tuple.__add__, reports_progress=True)
_SHUFFLE = Pass("scatter", _shuffle_part, int.__add__, reports_progress=True)


def _blocks(table: Table, start: int, stop: int, block_rows: int) -> Iterator[tuple[int, Rows]]:
    starts = range(start, stop, block_rows)
    yield from zip(starts, table.batches(start, stop, block_rows), strict=True)


def _missing_rows(
    start: int, stop: int, block_rows: int, missing: frozenset[int]
) -> Iterator[tuple[int, int]]:
    """Yield rows [first, stop) of consecutive missing blocks, to be read at once."""
    blocks = range(start // block_rows, -(-stop // block_rows))
    for is_missing, group in groupby(blocks, missing.__contains__):
        numbers = list(group)
        if is_missing:
            yield numbers[0] * block_rows, min(stop, (numbers[-1] + 1) * block_rows)


def bad_rows(features: NDArray[Any]) -> NDArray[np.int64]:
    """Return the positions of the rows that contain NaN or infinity."""
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


def _write(store: Location, start: int, rows: Rows, block: int) -> None:
    try:
        write_features_block(store, start, rows.features, rows.labels, rows.ids)
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        # the error of a full disk does not name the file
        raise OSError(error.errno, error.strerror, f"{store} (block {block})") from error
