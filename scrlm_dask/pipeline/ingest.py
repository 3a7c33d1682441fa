"""Files of any format as a features store that can prove it is complete.

The store says what was asked for and which blocks are done, so that whoever asks for the same
again goes on where the work was stopped.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.workers import check_paths_visible
from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.events import Listener, Note, warn
from scrlm_dask.kernels.randomness.sampling import Permutation
from scrlm_dask.passes.copy_rows import (
    check_finite_pass,
    check_stored_pass,
    collect_labels_pass,
    ingest_pass,
    shuffle_pass,
)
from scrlm_dask.pipeline.ingest_job import (
    IngestConfig,
    IngestJob,
    check_space,
    is_remnant,
    open_job,
    reread_notes,
    row_bytes,
    store_to_continue,
)
from scrlm_dask.sources.base import holds_texts
from scrlm_dask.sources.label_encoding import encode_labels
from scrlm_dask.sources.registry import SourceOptions
from scrlm_dask.sources.tables import KeptTable, ShuffledTable, ShuffleLayout, Table, ids_dtype
from scrlm_dask.storage.arrays import add_array
from scrlm_dask.storage.feature_store import (
    DROPPED,
    LABEL_NAMES,
    SHUFFLE,
    create_features_store,
    mark_complete,
    read_dropped,
    read_label_names,
)
from scrlm_dask.storage.locations import Options, Place, locate
from scrlm_dask.storage.manifest import Manifest, missing_blocks
from scrlm_dask.storage.outputs import FEATURES_KIND, check_output_free, clear_output, discard

# names of columns that are rarely meant to be clustered by
_NO_FEATURES = frozenset(
    {"id", "ids", "index", "key", "label", "labels", "class", "target", "y", "cluster"}
)


@dataclass(frozen=True)
class Ingest:
    """What was written."""

    path: str
    n_rows: int
    n_features: int
    dtype: str
    n_blocks: int
    kept_blocks: int  # of them, those that an earlier run had written
    n_dropped: int
    n_bytes: int
    columns: tuple[str, ...] = ()  # that the features come from, where they have names
    label_names: tuple[str, ...] | None = None  # what the labels 0, 1, ... stand for, if texts


def check_ingest(
    sources: Sequence[str | Path],
    out: Place,
    config: IngestConfig,
    options: SourceOptions | None = None,
    overwrite: bool = False,
    storage_options: Options | None = None,
) -> None:
    """Raise what `ingest` would raise before it writes."""
    job = open_job(sources, out, config, options or SourceOptions(), storage_options)
    unfinished = store_to_continue(job, overwrite)
    if unfinished is None:
        check_output_free(job.url, overwrite or is_remnant(job.url), FEATURES_KIND)
        check_space(job)


def ingest(
    sources: Sequence[str | Path],
    out: Place,
    config: IngestConfig | None = None,
    *,
    options: SourceOptions | None = None,
    overwrite: bool = False,
    storage_options: Options | None = None,
    listener: Listener = warn,
) -> Ingest:
    """Write the rows of the sources, one after the other, as a features store.

    An unfinished store of the same request is continued: its blocks that are done are kept. If the
    rows are refused or their file is damaged, what was written is removed; after anything else it
    stays, marked unfinished, to be continued. `storage_options` open URLs.
    """
    config, options = config or IngestConfig(), options or SourceOptions()
    return run_job(open_job(sources, out, config, options, storage_options), overwrite, listener)


def run_job(job: IngestJob, overwrite: bool, listener: Listener) -> Ingest:
    """Begin the store of a job, or go on with it, and write what is missing."""
    for source in job.sources:
        check_paths_visible(locate(source.files[0].path))
    with ExitStack() as undo, Execution(listener) as execution:
        for note in _notes(job):
            execution.emit(Note(note))
        try:
            result = _ingest(execution, job, overwrite, undo)
        except BaseException as error:
            if not _spoils_the_store(job, error):
                undo.pop_all()
            raise
        undo.pop_all()
    return result


def _notes(job: IngestJob) -> list[str]:
    """Each once: features, labels and ids may be columns of the same file."""
    notes = [f"{source.what}: {note}" for source in job.sources for note in source.notes()]
    for source in job.sources:
        notes += reread_notes(source, job.manifest.block_rows)
    notes += _column_notes(job.table.features.columns)
    return list(dict.fromkeys(notes))


def _column_notes(columns: tuple[str, ...]) -> Iterator[str]:
    odd = [name for name in columns if name.lower() in _NO_FEATURES]
    if odd:
        named = " and ".join(repr(name) for name in odd)
        count = "counts as a feature" if len(odd) == 1 else "count as features"
        exclude = " ".join(f"--exclude {name}" for name in odd)
        yield f"{named} {count}; if not meant so, say --labels or --ids, or leave out by {exclude}"


def _spoils_the_store(job: IngestJob, error: BaseException) -> bool:
    """Whether what was written is not worth going on from.

    Rows that are refused would be refused again. Of a damaged source rows may have been written
    before the damage was noticed; a store at a URL that was not reached for a while is as good as
    it was.
    """
    return isinstance(error, InputError) or (
        isinstance(error, StoreError) and not job.url.is_remote
    )


def _ingest(execution: Execution, job: IngestJob, overwrite: bool, undo: ExitStack) -> Ingest:
    unfinished = store_to_continue(job, overwrite)
    if unfinished is None:
        check_output_free(job.url, overwrite or is_remnant(job.url), FEATURES_KIND)
        check_space(job)
    names = _label_names(execution, job, unfinished)
    if names is not None:
        job = _with_numbers(job, names)
    dropped = _dropped(execution, job, unfinished)
    if dropped is not None and len(dropped):
        execution.emit(Note(_dropped_words(len(dropped))))
    table: Table = job.table if dropped is None else KeptTable(job.table, dropped)
    manifest = replace(job.manifest, n_rows=table.n_rows)
    if unfinished is None:
        _create(job, manifest, overwrite, dropped, names, undo)
    else:
        _check_same_rows(job, manifest, unfinished)
    missing = missing_blocks(job.url)
    kept = manifest.n_blocks - len(missing)
    if unfinished is not None:
        undo.callback(discard, job.url)
        execution.emit(Note(f"going on: {kept} of {manifest.n_blocks} blocks are done"))
    if missing:
        _write(execution, job, manifest, table, missing)
    check_stored_pass(job.sources)
    if job.config.shuffle:
        shutil.rmtree((job.url / SHUFFLE).url, ignore_errors=True)
    mark_complete(job.url)
    return Ingest(
        path=job.url.url,
        n_rows=manifest.n_rows,
        n_features=manifest.n_features,
        dtype=manifest.dtype,
        n_blocks=manifest.n_blocks,
        kept_blocks=kept,
        n_dropped=0 if dropped is None else len(dropped),
        n_bytes=manifest.n_rows * row_bytes(manifest),
        columns=job.table.features.columns,
        label_names=names,
    )


def _label_names(
    execution: Execution, job: IngestJob, unfinished: Manifest | None
) -> tuple[str, ...] | None:
    """What labels are called, if they are texts: as the unfinished store says, or found by a
    pass over them."""
    labels = job.table.labels
    if labels is None or not holds_texts(labels):
        return None
    known = None if unfinished is None else read_label_names(job.url)
    if known is not None:
        return known
    names = collect_labels_pass(execution, labels, job.table.n_rows, job.manifest.block_rows)
    execution.emit(
        Note(
            f"the labels {labels.what} are texts: {len(names)} names, sorted, are numbered from 0 "
            f"on and kept as {LABEL_NAMES!r} in the attributes of the store"
        )
    )
    return names


def _with_numbers(job: IngestJob, names: tuple[str, ...]) -> IngestJob:
    assert job.table.labels is not None
    return replace(job, table=replace(job.table, labels=encode_labels(job.table.labels, names)))


def _dropped_words(number: int) -> str:
    return (
        f"{number} row(s) with NaN are left out, and those after them move up: the array "
        f"{DROPPED!r} of the store has their numbers in the source; ids go with their rows"
    )


def _dropped(
    execution: Execution, job: IngestJob, unfinished: Manifest | None
) -> NDArray[np.int64] | None:
    """Rows to leave out: as the unfinished store says, or found by a pass over the source."""
    scanned, manifest = job.scanned, job.manifest
    if scanned is None:
        return None
    if unfinished is not None:
        known = read_dropped(job.url)
        if known is not None:
            return known
    found = check_finite_pass(
        execution, scanned, scanned.features.n_features, manifest.dtype, manifest.block_rows
    )
    if len(found) == scanned.n_rows:
        raise InputError(
            f"every row of {scanned.features.what} holds NaN, infinity or a value too large for "
            f"{manifest.dtype}; no row is left"
        )
    return found


def _create(
    job: IngestJob,
    manifest: Manifest,
    overwrite: bool,
    dropped: NDArray[np.int64] | None,
    names: tuple[str, ...] | None,
    undo: ExitStack,
) -> None:
    clear_output(job.url, overwrite or is_remnant(job.url), FEATURES_KIND)
    undo.callback(discard, job.url)
    attributes = {**job.attributes, **({} if dropped is None else {DROPPED: len(dropped)})}
    if names is not None:
        attributes[LABEL_NAMES] = list(names)
    create_features_store(
        job.url,
        manifest,
        labels=job.table.labels is not None,
        ids=ids_dtype(job.table.ids) if job.table.ids is not None else None,
        attributes=attributes,
    )
    check_paths_visible(job.url)
    if dropped is not None and len(dropped):
        add_array(job.url / DROPPED, dropped)


def _check_same_rows(job: IngestJob, manifest: Manifest, unfinished: Manifest) -> None:
    if manifest.n_rows != unfinished.n_rows:
        raise StoreError(
            f"the output {job.url} was begun for {unfinished.n_rows} rows and now there "
            f"are {manifest.n_rows}; the source has changed: --overwrite begins anew"
        )


def _write(
    execution: Execution, job: IngestJob, manifest: Manifest, table: Table, missing: list[int]
) -> None:
    keep_nan = job.config.nan != "error"  # what is to be dropped is gone already
    shape: dict[str, Any] = {
        "n_features": manifest.n_features,
        "dtype": manifest.dtype,
        "block_rows": manifest.block_rows,
    }
    if job.config.shuffle:
        folder = (job.url / SHUFFLE).url
        permutation = Permutation(table.n_rows, job.config.seed)
        layout = _run_layout(job, manifest)
        rows = manifest.block_rows
        shuffle_pass(
            execution,
            table,
            permutation,
            folder,
            layout=layout,
            block_rows=rows,
            keep_nan=keep_nan,
        )
        table, keep_nan = ShuffledTable(folder, table.n_rows, rows, layout), True
    ingest_pass(execution, table, job.url, **shape, missing=missing, keep_nan=keep_nan)


def _run_layout(job: IngestJob, manifest: Manifest) -> ShuffleLayout:
    ids = job.table.ids
    return ShuffleLayout(
        manifest.n_blocks,
        manifest.n_features,
        manifest.dtype,
        labels=job.table.labels is not None,
        ids=ids_dtype(ids) if ids is not None else None,
    )
