"""Copy rows of tables into a features store: each block is written whole, by one worker.

A task reads a span of blocks, as long as the unit that must be decoded at once (such as a row
group), and writes its blocks one after the other.
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
    location: Location,
    *,
    n_features: int,
    dtype: str,
    block_rows: int,
    missing: Sequence[int],
    keep_nan: bool,
) -> int:
    """Write the missing blocks of the store; return how many rows were written."""
    if not missing:
        return 0
    plan = _make_spans(table, n_features, dtype, block_rows)
    per_span = plan.block_rows // block_rows
    spans = sorted({block // per_span for block in missing})
    if table.is_here:
        return _write_here(execution, table, location, plan, spans, frozenset(missing), block_rows)
    written: int = execution.map_reduce(
        "ingest",
        plan,
        _write_part,
        int.__add__,
        blocks=spans,
        table=_send_once(table),
        missing=_send_once(frozenset(missing)),
        block_rows=block_rows,
        location=location,
        keep_nan=keep_nan,
        piecewise=True,
    )
    return written


def check_finite_pass(
    execution: Execution, table: Table, n_features: int, dtype: str, block_rows: int
) -> NDArray[np.int64]:
    """Return the numbers of the rows that are not finite, in order."""
    bad: tuple[NDArray[np.int64], ...] = execution.map_reduce(
        "scan",
        _make_spans(table, n_features, dtype, block_rows),
        _check_finite_part,
        tuple.__add__,
        table=_send_once(table),
        block_rows=block_rows,
        piecewise=True,
    )
    return np.concatenate([np.empty(0, np.int64), *bad])


def collect_labels_pass(
    execution: Execution, labels: Source, n_rows: int, block_rows: int
) -> tuple[str, ...]:
    """Return the distinct texts among the labels of the first `n_rows` rows, sorted."""
    unit = labels.unit_rows if labels.streams else 1
    rows = min(n_rows, block_rows * -(-unit // block_rows))
    names: frozenset[str] = execution.map_reduce(
        "names",
        placeholder_blocks((n_rows, 1), np.dtype(np.int32), rows),
        _collect_labels_part,
        partial(merge_names, what=labels.what),
        labels=_send_once(labels),
        block_rows=block_rows,
    )
    return tuple(sorted(names))


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
    """Do the first half of a shuffle: write each block, sorted by destination, to a folder.

    Files that exist already are kept.
    """
    execution.map_reduce(
        "scatter",
        _make_spans(table, layout.n_features, layout.dtype, block_rows),
        _shuffle_part,
        int.__add__,
        table=_send_once(table),
        permutation=permutation,
        folder=folder,
        layout=layout,
        block_rows=block_rows,
        keep_nan=keep_nan,
        piecewise=True,
    )


def check_stored_pass(sources: Sequence[Source]) -> None:
    """Have workers check whole files, such as a checksum over all of a file."""
    for check in [persist(task("verify", source.verify)) for source in sources]:
        wait(check)


def _send_once(value: Any) -> Delayed:
    """Return a task that gives the value: it is sent once per worker, not with every block."""
    return task("given", _same, value)


def _same(value: Any) -> Any:
    return value


def _make_spans(table: Table, n_features: int, dtype: str, block_rows: int) -> Features:
    """Return empty spans: reading is part of the task that writes."""
    rows = block_rows * -(-max(1, table.span_rows) // block_rows)
    rows = min(rows, block_rows * -(-table.n_rows // block_rows))
    return placeholder_blocks((table.n_rows, n_features), np.dtype(dtype), rows)


def _write_here(
    execution: Execution,
    table: Table,
    location: Location,
    plan: Features,
    spans: Sequence[int],
    missing: frozenset[int],
    block_rows: int,
) -> int:
    """Write one span after the other in this thread: a model uses all cores, or a GPU."""

    def done(rows: int, n_bytes: int) -> None:
        execution.tell(BlockDone("encode", rows, n_bytes))

    written = 0
    with execution.reading("encode", plan, spans):
        for span in spans:
            start = span * plan.block_rows
            rows = range(start, min(start + plan.block_rows, table.n_rows))
            written += _write_part(
                rows, start, table, missing, block_rows, location, keep_nan=False, done=done
            )
    return written


def _write_part(
    span: Sized,
    start: int,
    table: Table,
    missing: frozenset[int],
    block_rows: int,
    location: Location,
    keep_nan: bool,
    done: _Done,
) -> int:
    stop = start + len(span)
    copied = 0
    for at, rows in _missing_blocks(table, start, stop, block_rows, missing, keep_nan):
        _write(location, at, rows, at // block_rows)
        copied += len(rows)
        done(len(rows), rows.features.nbytes)
    if copied < len(span):  # the rest was written by an earlier attempt
        done(len(span) - copied, 0)
    return copied


def _check_finite_part(
    span: NDArray[Any], start: int, table: Table, block_rows: int, done: _Done
) -> tuple[NDArray[np.int64]]:
    bad = []
    for at, rows in _blocks(table, start, start + len(span), block_rows):
        bad.append(at + _bad_rows(rows.features))
        done(len(rows), rows.features.nbytes)
    return (np.concatenate(bad),)


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
    stop, copied = start + len(span), 0
    blocks = range(start // block_rows, -(-stop // block_rows))
    missing = frozenset(block for block in blocks if not shuffle_file(folder, block).exists())
    for at, rows in _missing_blocks(table, start, stop, block_rows, missing, keep_nan):
        write_shuffled_part(folder, at // block_rows, rows, at, block_rows, permutation, layout)
        copied += len(rows)
        done(len(rows), rows.features.nbytes)
    if copied < len(span):
        done(len(span) - copied, 0)
    return copied


def _blocks(table: Table, start: int, stop: int, block_rows: int) -> Iterator[tuple[int, Rows]]:
    starts = range(start, stop, block_rows)
    yield from zip(starts, table.batches(start, stop, block_rows), strict=True)


def _missing_blocks(
    table: Table,
    start: int,
    stop: int,
    block_rows: int,
    missing: frozenset[int],
    keep_nan: bool,
) -> Iterator[tuple[int, Rows]]:
    """Read the missing blocks among rows start..stop-1; consecutive ones in one go.

    Rows that are not finite are rejected here, where their place in the source is known.
    """
    blocks = range(start // block_rows, -(-stop // block_rows))
    for wanted, group in groupby(blocks, missing.__contains__):
        numbers = list(group)
        if not wanted:
            continue
        last = min(stop, (numbers[-1] + 1) * block_rows)
        for at, rows in _blocks(table, numbers[0] * block_rows, last, block_rows):
            if not keep_nan:
                _check_finite(rows, at, at // block_rows, table)
            yield at, rows


def _bad_rows(features: NDArray[Any]) -> NDArray[np.int64]:
    """Return the positions of the rows that hold NaN or infinity."""
    return np.flatnonzero(~np.isfinite(features).all(axis=1))


def _check_finite(rows: Rows, start: int, block: int, table: Table) -> None:
    bad = _bad_rows(rows.features)
    if len(bad):
        row = start + int(bad[0])
        raise InputError(
            f"{table.locate(row)} (block {block}) holds NaN, infinity or a "
            f"value too large for {rows.features.dtype}; --nan drop leaves such rows out, "
            "--nan keep keeps them"
        )


def _write(location: Location, start: int, rows: Rows, block: int) -> None:
    try:
        write_features_block(location, start, rows.features, rows.labels, rows.ids)
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        # the error of a full disk names no file
        raise OSError(error.errno, error.strerror, f"{location} (block {block})") from error
