"""Resumable writing of a table as a features store.

The store records the request and the finished blocks. The same request resumes an interrupted job.
`ingest` and `embed` prepare a job; `IngestJob.run` executes it.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.choices import NAN_ROWS, ZERO_ROWS, FeatureDtype, NanRows, ZeroRows
from scrlm_dask.engine.execution import MANY_BLOCKS, SMALL_BLOCK_BYTES, Execution
from scrlm_dask.engine.workers import check_paths_visible
from scrlm_dask.errors import InputError, StoreError, UnreachableError
from scrlm_dask.events import Listener, Note, warn
from scrlm_dask.passes import copy_rows
from scrlm_dask.sources import tables
from scrlm_dask.sources.base import Source, holds_texts
from scrlm_dask.sources.label_encoding import encode_labels
from scrlm_dask.sources.registry import open_values
from scrlm_dask.storage import feature_store, outputs
from scrlm_dask.storage.arrays import add_array
from scrlm_dask.storage.locations import Location, Options, locate
from scrlm_dask.storage.manifest import Manifest, SourceFile, describe_changes, missing_blocks
from scrlm_dask.storage.store_info import mark_features_complete
from scrlm_dask.storage.traces import InputTrace

# Names of columns that are probably not features; their use is reported.
_NO_FEATURES = frozenset(
    {"id", "ids", "index", "key", "label", "labels", "class", "target", "y", "cluster"}
)
_MAX_REREADS = 2
_MAX_NAMED = 5
_WRITE_SECONDS = 0.005  # CPU time to write a chunk, in addition to its rows


@dataclass(frozen=True)
class IngestConfig:
    """Settings of `ingest`. They are saved in the manifest of the store.

    Parameters
    ----------
    labels : str or None
        True labels: a file (.npy, Zarr, or text with one label per line) or a column of the
        source. Labels that are texts are replaced by numbers.
    ids : str or None
        Ids of the rows: a file or a column of the source.
    dtype : {"float16", "float32"} or None
        Type of the stored features. None: float16 if the source is float16, else float32.
    chunk_bytes : int
        Approximate size of a chunk.
    limit : int or None
        Number of rows to take from the start of the source; None: all.
    shuffle : bool
        Write the rows in random order.
    seed : int
        Seed for `shuffle`.
    nan : {"error", "drop", "keep"}
        What to do with rows that contain NaN or infinity: "error" raises, "drop" leaves them out,
        "keep" stores them. Nulls of Parquet and Arrow are treated like NaN.
    zeros : {"keep", "drop"}
        What to do with rows that contain only zeros, for example because their encoding failed:
        "keep" stores them and warns, "drop" leaves them out.

    Examples
    --------
    >>> import scrlm_dask
    >>> config = scrlm_dask.IngestConfig(dtype="float16", shuffle=True)
    >>> scrlm_dask.ingest("embeddings", "shuffled.zarr", config).dtype
    'float16'
    """

    labels: str | None = None
    ids: str | None = None
    dtype: FeatureDtype | None = None
    chunk_bytes: int = feature_store.TARGET_BLOCK_BYTES
    limit: int | None = None
    shuffle: bool = False
    seed: int = 0
    nan: NanRows = "error"
    zeros: ZeroRows = "keep"

    def __post_init__(self) -> None:
        if self.dtype not in (None, *feature_store.STORED_DTYPES):
            known = " or ".join(feature_store.STORED_DTYPES)
            raise InputError(f"dtype must be {known}, got {self.dtype}")
        for name, given in (("labels", self.labels), ("ids", self.ids)):
            if not isinstance(given, str | None):
                raise InputError(
                    f"{name} must be the path of a file or the name of a column, got "
                    f"{type(given).__name__}; save an array with np.save, and give its path"
                )
        if self.limit is not None and self.limit < 1:
            raise InputError(f"limit must be at least 1 row, got {self.limit}")
        if self.nan not in NAN_ROWS:
            raise InputError(f"nan must be one of {', '.join(NAN_ROWS)}, got {self.nan!r}")
        if self.zeros not in ZERO_ROWS:
            raise InputError(f"zeros must be {' or '.join(ZERO_ROWS)}, got {self.zeros!r}")
        if self.chunk_bytes < 1:
            raise InputError(
                f"--chunk-size (chunk_bytes) must be at least 1 byte, got {self.chunk_bytes}"
            )


@dataclass(frozen=True)
class IngestResult:
    """The features store that `ingest` or `embed` wrote.

    Attributes
    ----------
    path : str
        Absolute path or URL of the store.
    n_rows, n_features : int
        Shape of the features.
    dtype : str
        Type of the features.
    n_blocks : int
        Number of blocks.
    kept_blocks : int
        Number of blocks that an earlier, interrupted attempt had written.
    n_dropped : int
        Number of rows or items that were left out.
    n_bytes : int
        Size of the features in bytes, before compression.
    columns : tuple of str
        Names of the feature columns, if they have names.
    label_names : tuple of str or None
        Names of the labels 0, 1, ..., if the labels of the source were texts.
    """

    path: str
    n_rows: int
    n_features: int
    dtype: str
    n_blocks: int
    kept_blocks: int
    n_dropped: int
    n_bytes: int
    columns: tuple[str, ...] = ()
    label_names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class IngestJob:
    """A validated ingest, ready to run."""

    table: tables.PlainTable
    sources: tuple[Source, ...]
    manifest: Manifest  # its `n_rows` includes rows that will be dropped
    config: IngestConfig
    location: Location
    overwrite: bool
    traced: InputTrace  # the source files
    unfinished: Manifest | None = None  # manifest of the store to resume, if any
    checked: tables.PlainTable | None = None  # its unusable rows and rows of zeros are dropped
    attributes: dict[str, Any] = field(default_factory=dict)  # additional attributes of the store
    notes: tuple[Note, ...] = ()  # additional notes for the user

    def run(self, listener: Listener = warn) -> IngestResult:
        """Create or resume the store and write the missing blocks."""
        self.traced.check_at_start()
        outputs.finish_replacement(self.location)
        # check again: hours may have passed while the cluster was starting
        unfinished = _check_output(self.location, self.manifest, self.config, self.overwrite)
        resumed = unfinished is not None
        location = outputs.locate_unfinished(self.location) if resumed else self.location
        check_paths_visible(*(locate(file.path) for file in source_files(self.sources)))
        with (
            outputs.owning(location) as owned,
            ExitStack() as undo,
            Execution(listener) as execution,
        ):
            job = replace(self, unfinished=unfinished, location=owned)
            for note in self._notes():
                execution.emit(note)
            _warn_about_small_chunks(execution, self.manifest)
            try:
                result = job._ingest(execution, undo)
            except BaseException as error:
                if not self._invalidates_store(error):
                    undo.pop_all()
                raise
            undo.pop_all()
        outputs.move_into_place(Location(result.path, self.location.options), self.location)
        return replace(result, path=self.location.url)

    def _notes(self) -> list[Note]:
        """Return notes for the user; labels and ids of the same file do not repeat a note."""
        notes = [f"{source.what}: {note}" for source in self.sources for note in source.notes()]
        rows = self.manifest.block_rows
        notes += [note for source in self.sources for note in _reread_notes(source, rows)]
        notes += _column_notes(self.table.features.columns)
        return list(dict.fromkeys((*self.notes, *map(Note, notes))))

    def _encode_labels(self, names: tuple[str, ...] | None) -> IngestJob:
        if names is None or self.table.labels is None:
            return self
        labels = encode_labels(self.table.labels, names)
        return replace(self, table=replace(self.table, labels=labels))

    def _add_origins(self, dropped: NDArray[np.int64] | None) -> IngestJob:
        """Store the source rows, unless row i of the store is row i of the only source file.

        The rows of a features store have the source rows that this store records.
        """
        moved = self.config.shuffle or (dropped is not None and len(dropped) > 0)
        features = self.table.features
        if not moved and features.stored_origins() == [None]:  # one segment without records
            return self
        origins = tables.find_origins(features, self.manifest.sources)
        return replace(self, table=replace(self.table, origins=origins))

    def _invalidates_store(self, error: BaseException) -> bool:
        """Return whether the error makes the blocks written so far unusable for a later attempt.

        Rejected rows would be rejected again. Rows of a damaged source may have been written before
        the damage was detected. A remote store may only have been unreachable: the blocks are kept.
        """
        if isinstance(error, UnreachableError):
            return False
        return isinstance(error, InputError) or (
            isinstance(error, StoreError) and not self.location.is_remote
        )

    def _ingest(self, execution: Execution, undo: ExitStack) -> IngestResult:
        names = _label_names(execution, self)
        job = self._encode_labels(names)
        dropped = _dropped_rows(execution, job)
        if dropped is not None and len(dropped):
            execution.emit(Note(_describe_dropped(len(dropped), job)))
        job = job._add_origins(dropped)
        table: tables.Table = job.table if dropped is None else tables.KeptTable(job.table, dropped)
        manifest = replace(job.manifest, n_rows=table.n_rows)
        if job.unfinished is None:
            overwrite = job.overwrite or _is_remnant(job.location)
            place = outputs.open_output(job.location, overwrite, outputs.FEATURES_KIND)
            job = replace(job, location=place)
            _create_store(job, manifest, dropped, names, undo)
        else:
            _check_same_rows(job, manifest, job.unfinished)
            outputs.take_over(job.location)
        missing = missing_blocks(job.location)
        written = copy_rows.Written()
        if job.unfinished is not None:
            undo.callback(outputs.discard, job.location, outputs.FEATURES_KIND)
            kept = _check_kept_blocks(execution, job.location, manifest, missing)
            missing, written = sorted((*missing, *kept.damaged)), kept.written
        if missing:
            written += _write_blocks(execution, job, manifest, table, missing)
        _warn_about_zero_rows(execution, written)
        copy_rows.check_stored_pass(job.sources)
        outputs.check_owner(job.location)
        if job.config.shuffle:
            shutil.rmtree((job.location / feature_store.SHUFFLE).url, ignore_errors=True)
        job.traced.check()
        mark_features_complete(job.location)
        return IngestResult(
            path=job.location.url,
            n_rows=manifest.n_rows,
            n_features=manifest.n_features,
            dtype=manifest.dtype,
            n_blocks=manifest.n_blocks,
            kept_blocks=manifest.n_blocks - len(missing),
            n_dropped=0 if dropped is None else len(dropped),
            n_bytes=_feature_bytes(manifest),
            columns=job.table.features.columns,
            label_names=names,
        )


def prepare_job(
    table: tables.PlainTable,
    sources: tuple[Source, ...],
    location: Location,
    config: IngestConfig,
    request: dict[str, Any],
    overwrite: bool,
    checked: tables.PlainTable | None = None,
    attributes: dict[str, Any] | None = None,
    notes: tuple[Note, ...] = (),
) -> IngestJob:
    """Check that the output can be created or resumed, and return the job."""
    files = source_files(sources)
    outputs.check_none_inside(location, (file.path for file in files), "the source file")
    shape = (table.n_rows, table.features.n_features)
    block_rows = feature_store.block_rows_for(
        shape, np.dtype(table.dtype), None, config.chunk_bytes
    )
    original = _original_files(table.features)
    manifest = Manifest(
        *(*shape, table.dtype, block_rows),
        sources=tuple(dict.fromkeys((*files, *original))),
        request=request,
    )
    inputs = dict.fromkeys(each for source in sources for each in source.inputs())
    _check_output(location, manifest, config, overwrite)
    return IngestJob(
        *(table, sources, manifest, config, location, overwrite),
        traced=InputTrace(tuple(inputs)),
        checked=checked,
        attributes=attributes or {},
        notes=notes,
    )


def _check_output(
    location: Location, manifest: Manifest, config: IngestConfig, overwrite: bool
) -> Manifest | None:
    """Return the manifest of the store to resume, or None if a new store can be created."""
    outputs.check_not_written(location)
    place = outputs.locate_unfinished(location)
    unfinished = None if overwrite else _find_unfinished(place, manifest)
    if unfinished is None:
        outputs.check_output_free(
            location, overwrite or _is_remnant(location), outputs.FEATURES_KIND
        )
        _check_space(location, _feature_bytes(manifest), config.shuffle)
    return unfinished


def open_labels_and_ids(
    rows: Source, labels: str | None, ids: str | None, storage_options: Options | None
) -> tuple[Source | None, Source | None]:
    """Open labels and ids of the rows, each from a file or a column."""
    truth, names = (
        open_values(given, name, rows, storage_options) if given else None
        for name, given in (("labels", labels), ("ids", ids))
    )
    if truth is not None and truth.dtype.kind not in "iu" and not holds_texts(truth):
        raise InputError(
            f"the labels {truth.what} must be integers (-1 for outliers) or strings, which are "
            f"numbered, got dtype {truth.dtype}; convert them"
        )
    return truth, names


def source_files(sources: Sequence[Source]) -> tuple[SourceFile, ...]:
    """Return the files of all sources, each once."""
    return tuple(dict.fromkeys(file for source in sources for file in source.files))


def _original_files(features: Source) -> list[SourceFile]:
    """Return the source files of the features stores that the rows are copied from.

    These files are not read and may have been removed.
    """
    known = [origins for origins in features.stored_origins() if origins is not None]
    return [file for origins in known for file in origins.sources]


def _find_unfinished(location: Location, requested: Manifest) -> Manifest | None:
    """Return the manifest of an unfinished store, if any; raise if its request was different."""
    unfinished = feature_store.unfinished_manifest(location)
    if unfinished is None:
        return None
    with_digests = {file.path for file in requested.sources if file.digest}
    if not all(file.digest for file in unfinished.sources if file.path in with_digests):
        raise StoreError(
            f"the output {location} was started by an earlier version, which does not store "
            "digests of the source files; use --overwrite to start again"
        )
    differences = describe_changes(unfinished, requested)
    if not differences:
        return unfinished
    more = "; ..." if len(differences) > _MAX_NAMED else ""
    raise StoreError(
        f"the output {location} is unfinished and was started with other settings: "
        f"{'; '.join(differences[:_MAX_NAMED])}{more}; use the same settings to resume, or "
        "--overwrite to start again"
    )


def _is_remnant(location: Location) -> bool:
    """Return whether the writer of a store was stopped before it wrote the manifest."""
    return (
        feature_store.is_unfinished(location)
        and feature_store.unfinished_manifest(location) is None
    )


def _check_space(location: Location, n_bytes: int, shuffle: bool) -> None:
    """Raise before the first block is written if the disk is too small for all blocks."""
    if location.is_remote:
        return  # an object store does not report its free space
    target = Path(location.url)
    folder = next(each for each in (target, *target.parents) if each.exists())
    needed = n_bytes * (2 if shuffle else 1)
    # a complete store stays until the new store is complete; an unfinished store is removed first
    unfinished = outputs.find_aside(location)
    if unfinished is None and feature_store.is_unfinished(location):
        unfinished = location
    files = () if unfinished is None else Path(unfinished.url).rglob("*")
    free = shutil.disk_usage(folder).free + sum(f.stat().st_size for f in files if f.is_file())
    if needed > free:
        kept = unfinished != location and location.is_occupied()
        raise OSError(
            errno.ENOSPC,
            f"the store needs {needed} bytes{' during the shuffle' * shuffle}, but only {free} "
            f"bytes are free{'; the old store stays until the new one is complete' * kept}",
            location.url,
        )


def _feature_bytes(manifest: Manifest) -> int:
    return manifest.n_rows * manifest.n_features * np.dtype(manifest.dtype).itemsize


def _reread_notes(source: Source, block_rows: int) -> list[str]:
    """Return a note if chunks are larger than blocks, and decoded again for each block."""
    times = source.unit_rows / block_rows
    if source.streams or times < _MAX_REREADS:
        return []
    return [
        f"{source.what} has chunks of {source.unit_rows} rows: each is read about {times:.0f} "
        "times; a larger --chunk-size (chunk_bytes) needs fewer reads and more memory"
    ]


def _column_notes(columns: tuple[str, ...]) -> Iterator[str]:
    odd = [name for name in columns if name.lower() in _NO_FEATURES]
    if odd:
        named = " and ".join(repr(name) for name in odd)
        used = "is used as a feature" if len(odd) == 1 else "are used as features"
        exclude = " ".join(f"--exclude {name}" for name in odd)
        yield f"{named} {used}; if this is not intended, use --labels, --ids or {exclude}"


def _label_names(execution: Execution, job: IngestJob) -> tuple[str, ...] | None:
    """Return the names of string labels, from the unfinished store or from a pass over them."""
    labels = job.table.labels
    if labels is None or not holds_texts(labels):
        return None
    known = None if job.unfinished is None else feature_store.read_label_names(job.location)
    if known is not None:
        return known
    names = copy_rows.collect_labels_pass(
        execution, labels, job.table.n_rows, job.manifest.block_rows
    )
    execution.emit(
        Note(
            f"the labels {labels.what} are strings: {len(names)} sorted names are numbered from 0 "
            f"and stored as {feature_store.LABEL_NAMES!r} in the attributes of the store"
        )
    )
    return names


def _warn_about_small_chunks(execution: Execution, manifest: Manifest) -> None:
    """Warn before many small chunks are written, because their fixed cost dominates."""
    n_bytes = manifest.block_rows * _feature_bytes(manifest) // max(manifest.n_rows, 1)
    if manifest.n_blocks <= MANY_BLOCKS or n_bytes >= SMALL_BLOCK_BYTES:
        return
    execution.emit(
        Note(
            f"{manifest.n_blocks} chunks of {n_bytes / 1e3:g} kB are written, which adds about "
            f"{manifest.n_blocks * _WRITE_SECONDS:.0f} s of CPU time, and more to each later run; "
            "omit --chunk-size (chunk_bytes), or use a larger one",
            warning=True,
        )
    )


def _warn_about_zero_rows(execution: Execution, written: copy_rows.Written) -> None:
    if written.zero_rows:
        execution.emit(
            Note(
                f"{written.zero_rows} of {written.rows} written rows contain only zeros, for "
                "example because their encoding failed; they distort the choice of rho and have no "
                "meaningful label with preprocess l2; remove them with scrlm ingest --zeros drop "
                "(zeros)",
                warning=True,
            )
        )


def _describe_dropped(number: int, job: IngestJob) -> str:
    reasons = {"NaN": job.config.nan, "only zeros": job.config.zeros}
    named = " or ".join(reason for reason, choice in reasons.items() if choice == "drop")
    is_encoded = feature_store.ENCODED in job.attributes
    rows = "item(s) that cannot be encoded" if is_encoded else f"row(s) with {named}"
    return (
        f"{number} {rows} are dropped, and later rows get smaller row numbers; the array "
        f"{feature_store.DROPPED!r} of the store contains the dropped row numbers; the arrays "
        f"{feature_store.SOURCE_ROW!r} and {feature_store.SOURCE_FILE!r} contain the source row of "
        "each row, and the number of its file"
    )


def _dropped_rows(execution: Execution, job: IngestJob) -> NDArray[np.int64] | None:
    """Return the numbers of rows to drop, from the unfinished store or a pass over the source."""
    checked, manifest = job.checked, job.manifest
    if checked is None:
        return None
    known = None if job.unfinished is None else feature_store.read_dropped(job.location)
    if known is not None:
        return known
    width = checked.features.n_features
    zeros = job.config.zeros == "drop"
    dropped = copy_rows.find_rows_pass(
        execution,
        checked,
        replace(manifest, n_features=width),
        nan=job.config.nan == "drop",
        zeros=zeros,
    )
    if len(dropped) == checked.n_rows:
        raise InputError(
            f"every row of {checked.features.what} contains NaN, infinity{', only zeros' * zeros} "
            f"or a value too large for {manifest.dtype}; no row is left"
        )
    return dropped


def _create_store(
    job: IngestJob,
    manifest: Manifest,
    dropped: NDArray[np.int64] | None,
    names: tuple[str, ...] | None,
    undo: ExitStack,
) -> None:
    undo.callback(outputs.discard, job.location, outputs.FEATURES_KIND)
    origins = job.table.origins is not None
    attributes = {**job.attributes, feature_store.SAME_ROWS: not origins}
    if job.config.shuffle or job.table.features.is_shuffled:
        attributes[feature_store.SHUFFLED] = True
    if dropped is not None:
        attributes[feature_store.DROPPED] = len(dropped)
    if names is not None:
        attributes[feature_store.LABEL_NAMES] = list(names)
    feature_store.create_features_store(
        job.location,
        manifest,
        labels=job.table.labels is not None,
        ids=job.table.ids_dtype,
        origins=origins,
        attributes=attributes,
    )
    check_paths_visible(job.location)
    if dropped is not None and len(dropped):
        add_array(job.location / feature_store.DROPPED, dropped)


def _check_same_rows(job: IngestJob, manifest: Manifest, unfinished: Manifest) -> None:
    if manifest.n_rows != unfinished.n_rows:
        raise StoreError(
            f"the output {job.location} was started for {unfinished.n_rows} rows, but the source "
            f"has changed and has {manifest.n_rows} now; use --overwrite to start again"
        )
    if not feature_store.has_origins(job.location):
        raise StoreError(
            f"the output {job.location} was started by an earlier version, which does not store "
            "the source rows; use --overwrite to start again"
        )


def _check_kept_blocks(
    execution: Execution, location: Location, manifest: Manifest, missing: list[int]
) -> copy_rows.Kept:
    """Verify the blocks of an earlier attempt, so that all blocks of the store are verified."""
    blocks = sorted(set(range(manifest.n_blocks)) - set(missing))
    execution.emit(Note(f"resuming: {len(blocks)} of {manifest.n_blocks} blocks are done"))
    kept = copy_rows.check_kept_pass(execution, location, manifest, blocks)
    if kept.damaged:
        named = ", ".join(str(block) for block in kept.damaged[:_MAX_NAMED])
        more = ", ..." if len(kept.damaged) > _MAX_NAMED else ""
        text = (
            f"{len(kept.damaged)} of {len(blocks)} blocks of the unfinished output {location} do "
            f"not match their digests and are written again: {named}{more}"
        )
        execution.emit(Note(text, warning=True))
    return kept


def _write_blocks(
    execution: Execution,
    job: IngestJob,
    manifest: Manifest,
    table: tables.Table,
    missing: list[int],
) -> copy_rows.Written:
    keep_nan = job.config.nan != "error"  # with "drop", such rows are already removed
    if job.config.shuffle:
        folder = (job.location / feature_store.SHUFFLE).url
        columns = (job.table.labels is not None, job.table.ids_dtype)
        shuffled = tables.ShuffledTable(folder, manifest, job.config.seed, *columns)
        copy_rows.shuffle_pass(execution, table, shuffled, keep_nan)
        table, keep_nan = shuffled, True
    return copy_rows.ingest_pass(execution, table, job.location, manifest, missing, keep_nan)
