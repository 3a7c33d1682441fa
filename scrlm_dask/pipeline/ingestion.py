"""Files of any format as a features store that can prove it is complete.

The store says what was asked for and which blocks are done, so that whoever asks for the same
again goes on where the work was stopped.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.events import Listener, Note, warn
from scrlm_dask.kernels.permutation import Permutation
from scrlm_dask.passes.execution import Execution
from scrlm_dask.passes.ingest import ingest_pass, scan_pass, scatter_pass, verify_pass
from scrlm_dask.sources.base import Source, native
from scrlm_dask.sources.registry import SourceOptions, is_column, open_source, open_values
from scrlm_dask.sources.shuffle import RunLayout, ShuffledTable
from scrlm_dask.sources.tables import KeptTable, PlainTable, Table, ids_dtype
from scrlm_dask.storage.arrays import absolute, add_array
from scrlm_dask.storage.features import (
    STORED_DTYPES,
    TARGET_BLOCK_BYTES,
    block_rows_for,
    create_features_store,
    mark_complete,
)
from scrlm_dask.storage.ingested import (
    DROPPED,
    SHUFFLE,
    read_dropped,
    says_unfinished,
    unfinished_manifest,
)
from scrlm_dask.storage.manifest import Manifest, missing_blocks
from scrlm_dask.storage.outputs import FEATURES_KIND, check_apart, check_way, discard, make_way

_MOST_REREADS = 2


@dataclass(frozen=True)
class IngestConfig:
    """What is made of the rows. Part of the store's manifest."""

    labels: str | None = None  # a file, or a column of the source
    ids: str | None = None
    dtype: Literal["float16", "float32"] | None = None  # None: float16 stays, all else float32
    chunk_bytes: int = TARGET_BLOCK_BYTES
    limit: int | None = None  # the first rows of the source
    shuffle: bool = False
    seed: int = 0
    nan: Literal["error", "drop", "keep"] = "error"

    def __post_init__(self) -> None:
        if self.dtype not in (None, *STORED_DTYPES):
            raise InputError(
                f"features cannot be stored as {self.dtype}; take {' or '.join(STORED_DTYPES)}"
            )
        if self.limit is not None and self.limit < 1:
            raise InputError(f"the limit is {self.limit} rows; a store needs at least 1")
        if self.nan not in ("error", "drop", "keep"):
            raise InputError(f"nan is {self.nan!r}; it is error, drop or keep")
        if self.chunk_bytes < 1:
            raise InputError(f"a chunk of {self.chunk_bytes} bytes holds nothing")


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


@dataclass(frozen=True)
class _Job:
    """An ingest that has been checked and not begun."""

    table: PlainTable
    sources: tuple[Source, ...]
    manifest: Manifest  # with the rows of the source: fewer if some are dropped
    config: IngestConfig
    url: str


def check_ingest(
    sources: Sequence[str | Path],
    out: str | Path,
    config: IngestConfig,
    options: SourceOptions | None = None,
    overwrite: bool = False,
) -> None:
    """Raise what `ingest` would raise before it writes."""
    job = _job(sources, out, config, options or SourceOptions())
    unfinished = _to_go_on(job, overwrite)
    if unfinished is None:
        check_way(job.url, overwrite or _is_remnant(job.url), FEATURES_KIND)
        _check_space(job)


def ingest(
    sources: Sequence[str | Path],
    out: str | Path,
    config: IngestConfig | None = None,
    *,
    options: SourceOptions | None = None,
    overwrite: bool = False,
    listener: Listener = warn,
) -> Ingest:
    """Write the rows of the sources, one after the other, as a features store.

    An unfinished store of the same request is continued: its blocks that are done are kept. If the
    rows themselves are refused, what was written is removed; after anything else it stays, marked
    unfinished, to be continued.
    """
    job = _job(sources, out, config or IngestConfig(), options or SourceOptions())
    with ExitStack() as undo, Execution(listener) as execution:
        for source in job.sources:
            for note in (*source.notes(), *_rereads(source, job.manifest.block_rows)):
                execution.tell(Note(note))
        try:
            result = _ingest(execution, job, overwrite, undo)
        except InputError:
            raise  # the same request would be refused again: nothing is worth keeping
        except BaseException:
            undo.pop_all()
            raise
        undo.pop_all()
    return result


def _ingest(execution: Execution, job: _Job, overwrite: bool, undo: ExitStack) -> Ingest:
    unfinished = _to_go_on(job, overwrite)
    if unfinished is None:
        check_way(job.url, overwrite or _is_remnant(job.url), FEATURES_KIND)
        _check_space(job)
    dropped = _dropped(execution, job, unfinished)
    table: Table = job.table if dropped is None else KeptTable(job.table, dropped)
    manifest = replace(job.manifest, n_rows=table.n_rows)
    if unfinished is None:
        _create(job, manifest, overwrite, dropped, undo)
    else:
        _check_same_rows(job, manifest, unfinished)
    missing = missing_blocks(job.url)
    kept = manifest.n_blocks - len(missing)
    if unfinished is not None:
        execution.tell(Note(f"going on: {kept} of {manifest.n_blocks} blocks are done"))
    if missing:
        _write(execution, job, manifest, table, missing)
    verify_pass(job.sources)
    shutil.rmtree(f"{job.url}/{SHUFFLE}", ignore_errors=True)
    mark_complete(job.url)
    return Ingest(
        path=job.url,
        n_rows=manifest.n_rows,
        n_features=manifest.n_features,
        dtype=manifest.dtype,
        n_blocks=manifest.n_blocks,
        kept_blocks=kept,
        n_dropped=0 if dropped is None else len(dropped),
        n_bytes=manifest.n_rows * _row_bytes(manifest),
    )


def _job(
    paths: Sequence[str | Path], out: str | Path, config: IngestConfig, options: SourceOptions
) -> _Job:
    apart = [name for name in (config.labels, config.ids) if name is not None and is_column(name)]
    features = open_source(paths, options, apart)
    labels = open_values(config.labels, "labels", features) if config.labels else None
    ids = open_values(config.ids, "ids", features) if config.ids else None
    if labels is not None and labels.dtype.kind not in "iu":
        raise InputError(
            f"the labels {labels.what} hold {labels.dtype}; labels are integers, -1 for outliers"
        )
    dtype = config.dtype or ("float16" if native(features.dtype) == np.float16 else "float32")
    n_rows = min(features.n_rows, config.limit or features.n_rows)
    shape = (n_rows, features.n_features)
    block_rows = block_rows_for(shape, np.dtype(dtype), None, config.chunk_bytes)
    sources = tuple(source for source in (features, labels, ids) if source is not None)
    files = tuple(dict.fromkeys(file for source in sources for file in source.files))
    url = absolute(out)
    for file in files:
        check_apart(url, file.path)
    request = {"ingest": asdict(config), "source": asdict(options), "modified": _modified(files)}
    manifest = Manifest(n_rows, features.n_features, dtype, block_rows, files, _plain(request))
    return _Job(PlainTable(features, labels, ids, dtype, n_rows), sources, manifest, config, url)


def _plain(request: dict[str, Any]) -> dict[str, Any]:
    """As it comes back from JSON."""
    source = request["source"]
    return {**request, "source": {**source, "columns": list(source["columns"])}}


def _modified(files: Sequence[Any]) -> str | None:
    """When the newest of the files was written: their sizes alone would not tell new content."""
    times = [Path(file.path).stat().st_mtime for file in files if Path(file.path).exists()]
    return datetime.fromtimestamp(max(times), UTC).isoformat() if times else None


def _to_go_on(job: _Job, overwrite: bool) -> Manifest | None:
    """The unfinished store that lies at the output, if it is one of the same request."""
    unfinished = unfinished_manifest(job.url)
    if unfinished is None:
        return None
    differences = _differences(unfinished, job.manifest)
    if not differences:
        return unfinished
    if overwrite:
        return None
    raise StoreError(
        f"the output {job.url} is unfinished and was asked for differently: "
        f"{'; '.join(differences)}; ask for the same to go on, or --overwrite to begin anew"
    )


def _differences(there: Manifest, wanted: Manifest) -> list[str]:
    """What is asked for now and was not then, in words."""
    old, new = _flat(there), _flat(wanted)
    named = [
        f"{name} was {old.get(name)} and is {new.get(name)}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    before = {file.path: file.bytes for file in there.sources}
    now = {file.path: file.bytes for file in wanted.sources}
    named += [f"{path} was not there" for path in now if path not in before]
    named += [f"{path} was there" for path in before if path not in now]
    named += [
        f"{path} had {before[path]} bytes and has {now[path]}"
        for path in now
        if path in before and before[path] != now[path]
    ]
    if not named and [f.path for f in there.sources] != [f.path for f in wanted.sources]:
        named.append("the sources come in another order")
    return named


def _flat(manifest: Manifest) -> dict[str, Any]:
    content: dict[str, Any] = {
        "features": manifest.n_features,
        "stored dtype": manifest.dtype,
        "rows of a block": manifest.block_rows,
    }
    for part, values in manifest.request.items():
        if isinstance(values, dict):
            content |= {f"{part} {name}": value for name, value in values.items()}
        else:
            content[part] = values
    return content


def _dropped(
    execution: Execution, job: _Job, unfinished: Manifest | None
) -> NDArray[np.int64] | None:
    """Rows to leave out: as the unfinished store says, or found by a pass over the source."""
    if job.config.nan != "drop":
        return None
    if unfinished is not None:
        known = read_dropped(job.url)
        if known is not None:
            return known
    manifest = job.manifest
    found = scan_pass(
        execution, job.table, manifest.n_features, manifest.dtype, manifest.block_rows
    )
    if len(found) == job.table.n_rows:
        raise InputError(
            f"every row of {job.table.features.what} holds NaN, infinity or a value too large for "
            f"{manifest.dtype}; no row is left"
        )
    return found


def _create(
    job: _Job,
    manifest: Manifest,
    overwrite: bool,
    dropped: NDArray[np.int64] | None,
    undo: ExitStack,
) -> None:
    make_way(job.url, overwrite or _is_remnant(job.url), FEATURES_KIND)
    undo.callback(discard, job.url)
    create_features_store(
        job.url,
        manifest,
        labels=job.table.labels is not None,
        ids=ids_dtype(job.table.ids) if job.table.ids is not None else None,
        attributes={} if dropped is None else {DROPPED: len(dropped)},
    )
    if dropped is not None and len(dropped):
        add_array(f"{job.url}/{DROPPED}", dropped)


def _check_same_rows(job: _Job, manifest: Manifest, unfinished: Manifest) -> None:
    if manifest.n_rows != unfinished.n_rows:
        raise StoreError(
            f"the output {job.url} was begun for {unfinished.n_rows} rows and now there "
            f"are {manifest.n_rows}; the source has changed: --overwrite begins anew"
        )


def _write(
    execution: Execution, job: _Job, manifest: Manifest, table: Table, missing: list[int]
) -> None:
    keep_nan = job.config.nan != "error"  # what is to be dropped is gone already
    shape: dict[str, Any] = {
        "n_features": manifest.n_features,
        "dtype": manifest.dtype,
        "block_rows": manifest.block_rows,
    }
    if job.config.shuffle:
        folder = f"{job.url}/{SHUFFLE}"
        permutation = Permutation(table.n_rows, job.config.seed)
        layout = _run_layout(job, manifest)
        rows = manifest.block_rows
        scatter_pass(
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


def _run_layout(job: _Job, manifest: Manifest) -> RunLayout:
    ids = job.table.ids
    return RunLayout(
        manifest.n_blocks,
        manifest.n_features,
        manifest.dtype,
        labels=job.table.labels is not None,
        ids=ids_dtype(ids) if ids is not None else None,
    )


def _is_remnant(url: str) -> bool:
    """A store whose writer was stopped before it had said what it should hold."""
    return says_unfinished(url) and unfinished_manifest(url) is None


def _check_space(job: _Job) -> None:
    """Refuse in the first second what could not be written in the last."""
    folder = next(parent for parent in Path(job.url).parents if parent.exists())
    needed = job.manifest.n_rows * _row_bytes(job.manifest) * (2 if job.config.shuffle else 1)
    free = shutil.disk_usage(folder).free + _size_of(Path(job.url))
    if needed > free:
        raise OSError(
            errno.ENOSPC,
            f"the store takes {needed} bytes{' while it is shuffled' * job.config.shuffle} and "
            f"{free} are free",
            job.url,
        )


def _size_of(replaced: Path) -> int:
    """Bytes that are free again when what lies at the output has made way."""
    return sum(file.stat().st_size for file in replaced.rglob("*") if file.is_file())


def _rereads(source: Source, block_rows: int) -> list[str]:
    """A unit that is larger than a block and cannot be streamed is decoded for each block."""
    times = source.unit_rows / block_rows
    if source.streams or times < _MOST_REREADS:
        return []
    return [
        f"{source.what} has chunks of {source.unit_rows} rows: each is read about {times:.0f} "
        "times; a larger --chunk-size reads them less often and needs more memory"
    ]


def _row_bytes(manifest: Manifest) -> int:
    return manifest.n_features * np.dtype(manifest.dtype).itemsize
