"""An ingest before it begins: what was asked for, what is there, and whether it is the same."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from scrlm_dask.choices import FeatureDtype, NanRows
from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.base import Source, holds_texts, native
from scrlm_dask.sources.registry import SourceOptions, is_column, open_source, open_values
from scrlm_dask.sources.tables import PlainTable
from scrlm_dask.storage.feature_store import (
    STORED_DTYPES,
    TARGET_BLOCK_BYTES,
    block_rows_for,
    says_unfinished,
    unfinished_manifest,
)
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.manifest import Manifest, SourceFile
from scrlm_dask.storage.outputs import check_not_inside

_MOST_REREADS = 2
_FEW_NAMED = 5


@dataclass(frozen=True)
class IngestConfig:
    """What is made of the rows. Part of the store's manifest."""

    labels: str | None = None  # a file, or a column of the source
    ids: str | None = None
    dtype: FeatureDtype | None = None  # None: float16 stays, all else float32
    chunk_bytes: int = TARGET_BLOCK_BYTES
    limit: int | None = None  # the first rows of the source
    shuffle: bool = False
    seed: int = 0
    nan: NanRows = "error"

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
class IngestJob:
    """An ingest that has been checked and not begun."""

    table: PlainTable
    sources: tuple[Source, ...]
    manifest: Manifest  # with the rows of the source: fewer if some are dropped
    config: IngestConfig
    url: Location
    scanned: PlainTable | None = None  # rows that are not finite in it are left out of the store
    attributes: dict[str, Any] = field(default_factory=dict)  # of the store, beside ingest's own


def open_job(
    paths: Sequence[str | Path],
    out: Place,
    config: IngestConfig,
    options: SourceOptions,
    storage_options: Options | None,
) -> IngestJob:
    apart = [name for name in (config.labels, config.ids) if name is not None and is_column(name)]
    features = open_source(paths, options, apart, storage_options)
    labels, ids = open_beside(features, config.labels, config.ids, storage_options)
    dtype = config.dtype or ("float16" if native(features.dtype) == np.float16 else "float32")
    n_rows = min(features.n_rows, config.limit or features.n_rows)
    shape = (n_rows, features.n_features)
    block_rows = block_rows_for(shape, np.dtype(dtype), None, config.chunk_bytes)
    sources = tuple(source for source in (features, labels, ids) if source is not None)
    files = tuple(dict.fromkeys(file for source in sources for file in source.files))
    url = locate(out, storage_options)
    if url.is_remote and config.shuffle:
        raise InputError(
            f"the output {url} is a URL, and a shuffle needs a disk to sort rows on; shuffle into "
            "a local store and ingest that one to the URL"
        )
    for file in files:
        check_not_inside(url, file.path)
    request = {"ingest": asdict(config), "source": asdict(options), "modified": modified(files)}
    manifest = Manifest(n_rows, features.n_features, dtype, block_rows, files, _plain(request))
    table = PlainTable(features, labels, ids, dtype, n_rows)
    scanned = table if config.nan == "drop" else None
    return IngestJob(table, sources, manifest, config, url, scanned)


def open_beside(
    rows: Source, labels: str | None, ids: str | None, storage_options: Options | None
) -> tuple[Source | None, Source | None]:
    """Labels and ids of the rows: a file each, or a column."""
    truth, names = (
        open_values(given, name, rows, storage_options) if given else None
        for name, given in (("labels", labels), ("ids", ids))
    )
    if truth is not None and truth.dtype.kind not in "iu" and not holds_texts(truth):
        raise InputError(
            f"the labels {truth.what} hold {truth.dtype}; labels are integers, -1 for outliers, "
            "or texts, which are numbered: convert them"
        )
    return truth, names


def _plain(request: dict[str, Any]) -> dict[str, Any]:
    """As it comes back from JSON."""
    source = request["source"]
    lists = {name: list(source[name]) for name in ("columns", "exclude")}
    return {**request, "source": {**source, **lists}}


def modified(files: Sequence[SourceFile]) -> str | None:
    """When the newest of the files was written: their sizes alone would not tell new content."""
    times = [Path(file.path).stat().st_mtime for file in files if Path(file.path).exists()]
    return datetime.fromtimestamp(max(times), UTC).isoformat() if times else None


def store_to_continue(job: IngestJob, overwrite: bool) -> Manifest | None:
    """The unfinished store that lies at the output, if it is one of the same request."""
    unfinished = None if overwrite else unfinished_manifest(job.url)
    if unfinished is None:
        return None
    differences = _differences(unfinished, job.manifest)
    if not differences:
        return unfinished
    more = "; ..." if len(differences) > _FEW_NAMED else ""
    raise StoreError(
        f"the output {job.url} is unfinished and was asked for differently: "
        f"{'; '.join(differences[:_FEW_NAMED])}{more}; ask for the same to go on, or --overwrite "
        "to begin anew"
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


def is_remnant(url: Location) -> bool:
    """A store whose writer was stopped before it had said what it should hold."""
    return says_unfinished(url) and unfinished_manifest(url) is None


def check_space(job: IngestJob) -> None:
    """Refuse in the first second what could not be written in the last."""
    if job.url.is_remote:
        return  # an object store does not say what room it has
    folder = next(parent for parent in Path(job.url.url).parents if parent.exists())
    needed = job.manifest.n_rows * row_bytes(job.manifest) * (2 if job.config.shuffle else 1)
    free = shutil.disk_usage(folder).free + _size_of(Path(job.url.url))
    if needed > free:
        raise OSError(
            errno.ENOSPC,
            f"the store takes {needed} bytes{' while it is shuffled' * job.config.shuffle} and "
            f"{free} are free",
            job.url.url,
        )


def _size_of(replaced: Path) -> int:
    """Bytes that are free again when what lies at the output has made way."""
    return sum(file.stat().st_size for file in replaced.rglob("*") if file.is_file())


def reread_notes(source: Source, block_rows: int) -> list[str]:
    """A unit that is larger than a block and cannot be streamed is decoded for each block."""
    times = source.unit_rows / block_rows
    if source.streams or times < _MOST_REREADS:
        return []
    return [
        f"{source.what} has chunks of {source.unit_rows} rows: each is read about {times:.0f} "
        "times; a larger --chunk-size reads them less often and needs more memory"
    ]


def row_bytes(manifest: Manifest) -> int:
    return manifest.n_features * np.dtype(manifest.dtype).itemsize
