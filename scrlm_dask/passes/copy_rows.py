"""Copy rows from tables into a features store; each block is written as a whole by one worker.

A task copies a span, that is, one or more consecutive blocks. A span is at least as long as a row
group, or another unit that can only be decoded as a whole. The blocks of a span are written one
after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.engine.execution import Execution, Pass, as_task, persist, task, wait
from scrlm_dask.engine.features import Features, placeholder_blocks
from scrlm_dask.errors import InputError, StoreError, UnreachableError
from scrlm_dask.events import BlockDone
from scrlm_dask.kernels.distances.preprocessing import zero_rows
from scrlm_dask.sources.base import Source
from scrlm_dask.sources.label_encoding import merge_names, names_among
from scrlm_dask.sources.tables import Rows, ShuffledTable, Table
from scrlm_dask.storage.feature_store import block_arrays, write_features_block
from scrlm_dask.storage.locations import Location
from scrlm_dask.storage.manifest import Manifest, check_digest, open_digests

_Done = Callable[[int, int], None]


@dataclass(frozen=True)
class Written:
    """Number of rows written, and number of rows of zeros among them: a mergeable part."""

    rows: int = 0
    zero_rows: int = 0

    def __add__(self, other: Written) -> Written:
        return Written(self.rows + other.rows, self.zero_rows + other.zero_rows)


@dataclass(frozen=True)
class Kept:
    """Rows of blocks that match their digests, and numbers of the other blocks; mergeable."""

    written: Written = Written()
    damaged: tuple[int, ...] = ()

    def __add__(self, other: Kept) -> Kept:
        return Kept(self.written + other.written, self.damaged + other.damaged)


def ingest_pass(
    execution: Execution,
    table: Table,
    store: Location,
    manifest: Manifest,
    missing: Sequence[int],
    keep_nan: bool,
) -> Written:
    """Write the missing blocks of the store; return the number of rows written."""
    if not missing:
        return Written()
    plan = _plan(table, manifest)
    per_span = plan.block_rows // manifest.block_rows
    spans = sorted({block // per_span for block in missing})
    inputs: dict[str, Any] = {
        "table": table,
        "missing": frozenset(missing),
        "block_rows": manifest.block_rows,
        "store": store,
        "keep_nan": keep_nan,
    }
    if table.is_here:
        return _write_here(
            execution, plan, spans, partial(_write_part, **inputs | {"keep_nan": False})
        )
    broadcast = {**inputs, **{name: as_task(inputs[name]) for name in ("table", "missing")}}
    written: Written = execution.run(_INGEST, plan, broadcast, blocks=spans)
    return written


def check_kept_pass(
    execution: Execution, store: Location, manifest: Manifest, blocks: Sequence[int]
) -> Kept:
    """Compare the blocks of an earlier attempt with their digests, and count their rows."""
    if not blocks:
        return Kept()
    shape = (manifest.n_rows, manifest.n_features)
    plan = placeholder_blocks(shape, np.dtype(manifest.dtype), manifest.block_rows)
    inputs = {"store": store, "block_rows": manifest.block_rows}
    kept: Kept = execution.run(_CHECK_KEPT, plan, inputs, blocks=blocks)
    return kept


def find_rows_pass(
    execution: Execution, table: Table, manifest: Manifest, *, nan: bool, zeros: bool
) -> NDArray[np.int64]:
    """Return the numbers of the rows that are not finite or contain only zeros, ascending.

    Rows that are not finite are included if `nan` is true, and rows of zeros if `zeros` is true.
    """
    inputs = {
        "table": as_task(table),
        "block_rows": manifest.block_rows,
        "nan": nan,
        "zeros": zeros,
    }
    numbers: tuple[Any, ...] = execution.run(_FIND_ROWS, _plan(table, manifest), inputs)
    return np.concatenate([np.empty(0, np.int64), *numbers])


def collect_labels_pass(
    execution: Execution, labels: Source, n_rows: int, block_rows: int
) -> tuple[str, ...]:
    """Return the distinct texts among the labels of the first `n_rows` rows, sorted."""
    unit = labels.unit_rows if labels.streams else 1
    rows = min(n_rows, block_rows * -(-unit // block_rows))
    names: frozenset[str] = execution.run(
        Pass("names", _collect_labels_part, partial(merge_names, what=labels.what)),
        placeholder_blocks((n_rows, 1), np.dtype(np.int32), rows),
        {"labels": as_task(labels), "block_rows": block_rows},
    )
    return tuple(sorted(names))


def shuffle_pass(
    execution: Execution, table: Table, shuffled: ShuffledTable, keep_nan: bool
) -> None:
    """Run the first half of the shuffle: write each block of the table as a part of `shuffled`.

    Intact parts of an earlier attempt are not written again.
    """
    broadcast = {"table": as_task(table), "shuffled": as_task(shuffled), "keep_nan": keep_nan}
    execution.run(_SHUFFLE, _plan(table, shuffled.manifest), broadcast)


def check_stored_pass(sources: Sequence[Source]) -> None:
    """Verify the files of the sources on the workers, for example their checksums."""
    for verified in [persist(task("verify", source.verify)) for source in sources]:
        wait(verified)


def _plan(table: Table, manifest: Manifest) -> Features:
    """Return the spans as placeholder blocks; the task that writes a span also reads its rows."""
    block_rows = manifest.block_rows
    rows = block_rows * -(-max(1, table.span_rows) // block_rows)
    rows = min(rows, block_rows * -(-table.n_rows // block_rows))
    return placeholder_blocks((table.n_rows, manifest.n_features), np.dtype(manifest.dtype), rows)


def _write_here(
    execution: Execution, plan: Features, spans: Sequence[int], part: Callable[..., Written]
) -> Written:
    """Write the spans one by one in this thread, because an encoder uses all cores or the GPU."""

    def done(rows: int, n_bytes: int) -> None:
        execution.emit(BlockDone("encode", rows, n_bytes))

    written = Written()
    with execution.read_phase("encode", plan, spans):
        for start in (span * plan.block_rows for span in spans):
            rows = range(start, min(start + plan.block_rows, plan.n_rows))
            written += part(rows, start, done=done)
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
) -> Written:
    write = partial(_write, store, block_rows)
    return _write_missing(span, start, table, block_rows, missing, write, keep_nan, done)


def _write_missing(
    span: Sized,
    start: int,
    table: Table,
    block_rows: int,
    missing: frozenset[int],
    write: Callable[[int, Rows], None],
    keep_nan: bool,
    done: _Done,
) -> Written:
    """Write the missing blocks of a span with `write(block, rows)`; return the number of rows."""
    written = Written()
    for first, stop in _missing_rows(start, start + len(span), block_rows, missing):
        for at, rows in _blocks(table, first, stop, block_rows):
            if not keep_nan:
                _check_finite(rows, at, at // block_rows, table)
            write(at // block_rows, rows)
            written += Written(len(rows), len(zero_rows(rows.features)))
            done(len(rows), rows.features.nbytes)
    if written.rows < len(span):  # an earlier attempt wrote the other rows
        done(len(span) - written.rows, 0)
    return written


def _check_kept_part(span: Sized, start: int, store: Location, block_rows: int) -> Kept:
    block = start // block_rows
    try:
        arrays = block_arrays(store, start, start + len(span))
        check_digest(store, block, *arrays)
    except UnreachableError:
        raise
    except StoreError:
        open_digests(store)  # raises if the whole store is missing, for example its mount
        return Kept(damaged=(block,))
    return Kept(Written(len(span), len(zero_rows(arrays[0]))))


def _find_rows_part(
    span: NDArray[Any],
    start: int,
    table: Table,
    block_rows: int,
    nan: bool,
    zeros: bool,
    done: _Done,
) -> tuple[NDArray[np.int64]]:
    numbers = []
    for at, rows in _blocks(table, start, start + len(span), block_rows):
        found = [bad_rows(rows.features)] if nan else []
        found += [zero_rows(rows.features)] if zeros else []
        numbers.append(at + np.sort(np.concatenate(found)))
        done(len(rows), rows.features.nbytes)
    return (np.concatenate(numbers),)


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
    shuffled: ShuffledTable,
    keep_nan: bool,
    done: _Done,
) -> Written:
    block_rows = shuffled.manifest.block_rows
    parts = range(start // block_rows, -(-(start + len(span)) // block_rows))
    missing = frozenset(part for part in parts if not shuffled.has_part(part))
    # Rows are checked here, because their origin is known only before the shuffle.
    write = shuffled.write_part
    return _write_missing(span, start, table, block_rows, missing, write, keep_nan, done)


_INGEST = Pass("ingest", _write_part, Written.__add__, reports_progress=True)
_FIND_ROWS = Pass("scan", _find_rows_part, tuple.__add__, reports_progress=True)
_CHECK_KEPT = Pass("verify", _check_kept_part, Kept.__add__)
_SHUFFLE = Pass("scatter", _shuffle_part, Written.__add__, reports_progress=True)


def _blocks(table: Table, start: int, stop: int, block_rows: int) -> Iterator[tuple[int, Rows]]:
    starts = range(start, stop, block_rows)
    yield from zip(starts, table.batches(start, stop, block_rows), strict=True)


def _missing_rows(
    start: int, stop: int, block_rows: int, missing: frozenset[int]
) -> Iterator[tuple[int, int]]:
    """Yield row ranges [first, stop); each covers consecutive missing blocks, read together."""
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
            f"{table.locate(row)} (block {block}) contains NaN, infinity or a "
            f"value too large for {rows.features.dtype}; use --nan drop to drop such rows, or "
            "--nan keep to keep them"
        )


def _write(store: Location, block_rows: int, block: int, rows: Rows) -> None:
    try:
        write_features_block(store, block * block_rows, **rows.arrays())
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        # The error of a full disk does not name the file.
        raise OSError(error.errno, error.strerror, f"{store} (block {block})") from error
