"""Tables of rows to be stored: features in the dtype of the store, with labels and ids.

`PlainTable` reads a source in order, `KeptTable` drops rows, and `ShuffledTable` changes the order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from uuid import uuid4
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.kernels.randomness.sampling import Permutation
from scrlm_dask.sources.base import TEXT, Source, as_texts, holds_texts
from scrlm_dask.sources.sharded import regroup
from scrlm_dask.storage.feature_store import StoredOrigins
from scrlm_dask.storage.manifest import Manifest, SourceFile


@dataclass(frozen=True)
class Rows:
    """Some rows: features (rows, p), labels (rows,) int32, ids (rows,) int64 or strings.

    `source_row` (rows,) are the row numbers in the source file, and `source_file` (rows,) the
    positions of this file among the sources of the manifest.
    """

    features: NDArray[Any]
    labels: NDArray[np.int32] | None = None
    ids: NDArray[Any] | None = None
    source_row: NDArray[np.int64] | None = None
    source_file: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, which: Any) -> Rows:
        return Rows(**{name: values[which] for name, values in self.arrays().items()})

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that are not None, by name."""
        return {name: values for name, values in vars(self).items() if values is not None}


def concatenate_rows(rows: Sequence[Rows]) -> Rows:
    """Concatenate all arrays of the rows."""
    names = rows[0].arrays()
    return Rows(**{name: np.concatenate([r.arrays()[name] for r in rows]) for name in names})


@dataclass(frozen=True)
class Origins:
    """The file of each row of a source: rows from ends[i - 1] to ends[i] - 1 are in files[i].

    If files[i] is a features store that records the source files of its rows, `stored[i]` has
    these, and their positions among the sources of the manifest.
    """

    ends: NDArray[np.int64]  # (files,) ascending
    files: NDArray[np.int32]  # (files,) positions among the sources of the manifest
    stored: Mapping[int, tuple[StoredOrigins, NDArray[np.int32]]] = field(default_factory=dict)

    def of(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the row numbers in their file, and the files, of rows start..stop-1."""
        rows = np.arange(start, stop, dtype=np.int64)
        parts = np.searchsorted(self.ends, rows, side="right")
        begins = np.concatenate([np.zeros(1, np.int64), self.ends[:-1]])
        source_rows, source_files = rows - begins[parts], self.files[parts]
        for part in self.stored.keys() & set(parts.tolist()):
            origins, positions = self.stored[part]
            here = np.flatnonzero(parts == part)
            first, last = (int(source_rows[at]) for at in here[[0, -1]])
            source_rows[here], numbers = origins.read(first, last + 1)
            source_files[here] = positions[numbers]
        return source_rows, source_files


def find_origins(source: Source, sources: Sequence[SourceFile]) -> Origins:
    """Return the origins of the rows of a source; `sources` are those of the manifest."""
    positions = {file: number for number, file in enumerate(sources)}
    segments = source.segments()
    stored = {
        number: (origins, np.array([positions[file] for file in origins.sources], np.int32))
        for number, origins in enumerate(source.stored_origins())
        if origins is not None
    }
    return Origins(
        np.cumsum([rows for _, rows in segments], dtype=np.int64),
        np.array([positions[file] for file, _ in segments], np.int32),
        stored,
    )


class Table(Protocol):
    """Interface of tables: rows that are read by number. A table can be sent to every worker."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""

    @property
    def span_rows(self) -> int:
        """Number of consecutive rows that one task should read, so that no row is decoded twice."""

    @property
    def is_here(self) -> bool:
        """Return whether only this process can read the table."""

    def batches(self, start: int, stop: int, rows: int) -> Iterator[Rows]:
        """Yield rows start..stop-1, `rows` at a time."""

    def locate(self, row: int) -> str:
        """Return the origin of a row, for messages."""


@dataclass(frozen=True)
class PlainTable:
    """The first `n_rows` rows of a source, in order."""

    features: Source
    labels: Source | None
    ids: Source | None
    dtype: str
    n_rows: int
    origins: Origins | None = None  # None: `source_row` and `source_file` are not stored

    @property
    def span_rows(self) -> int:
        """Rows in the largest decoding unit of the sources that are read sequentially."""
        sources = [s for s in (self.features, self.labels, self.ids) if s is not None]
        return max(s.unit_rows if s.streams else 1 for s in sources)

    @property
    def is_here(self) -> bool:
        """Return whether only this process can read the features."""
        return self.features.is_here

    @property
    def ids_dtype(self) -> str | None:
        """Stored dtype of ids: "int64", "str", or None without ids."""
        if self.ids is None:
            return None
        if self.ids.dtype.kind in "iu":
            return "int64"
        if holds_texts(self.ids):
            return "str"
        raise InputError(
            f"the ids {self.ids.what} must be integers or strings, got {self.ids.dtype}"
        )

    def locate(self, row: int) -> str:
        """Return the position of a row in the source of the features."""
        return self.features.locate(row)

    def batches(self, start: int, stop: int, rows: int) -> Iterator[Rows]:
        """Yield rows start..stop-1, `rows` at a time, converted to the stored dtypes."""
        features = self.features.batches(start, stop, rows)
        labels = self.labels.batches(start, stop, rows) if self.labels is not None else None
        ids = self.ids.batches(start, stop, rows) if self.ids is not None else None
        for first, block in zip(range(start, stop, rows), features, strict=True):
            yield Rows(
                as_floats(block, self.dtype),
                None if labels is None else self._labels(next(labels), first),
                None if ids is None else self._ids(next(ids), first),
                *(() if self.origins is None else self.origins.of(first, first + len(block))),
            )

    def _labels(self, values: NDArray[Any], first: int) -> NDArray[np.int32]:
        assert self.labels is not None
        if values.dtype.kind not in "iu":
            raise InputError(
                f"the labels {self.labels.what} must be integers, with -1 for outliers, got "
                f"{values.dtype}"
            )
        info = np.iinfo(np.int32)
        wrong = np.flatnonzero((values < info.min) | (values > info.max))
        if len(wrong):
            raise InputError(
                f"{self.labels.locate(first + int(wrong[0]))} has the label {values[wrong[0]]}, "
                "which does not fit into int32; renumber the classes"
            )
        return values.astype(np.int32)

    def _ids(self, values: NDArray[Any], first: int) -> NDArray[Any]:
        assert self.ids is not None
        if self.ids_dtype == "str":
            return as_texts(values)
        if values.dtype.kind == "u" and len(values) and values.max() > np.iinfo(np.int64).max:
            raise InputError(
                f"{self.ids.locate(first + int(values.argmax()))} has the id {values.max()}, which "
                "does not fit into int64; give the ids as strings"
            )
        return values.astype(np.int64)


@dataclass(frozen=True)
class KeptTable:
    """A table without some rows; `dropped` contains their row numbers, in ascending order."""

    table: Table
    dropped: NDArray[np.int64]

    @property
    def n_rows(self) -> int:
        """Number of rows that are kept."""
        return self.table.n_rows - len(self.dropped)

    @property
    def span_rows(self) -> int:
        """Number of consecutive rows that one task should read."""
        return self.table.span_rows

    @property
    def is_here(self) -> bool:
        """Return whether only this process can read the underlying table."""
        return self.table.is_here

    def locate(self, row: int) -> str:
        """Return the origin of a row in the underlying table."""
        return self.table.locate(self._before(row))

    def batches(self, start: int, stop: int, rows: int) -> Iterator[Rows]:
        """Yield the kept rows start..stop-1, `rows` at a time."""
        if start >= stop:
            return
        first, last = self._before(start), self._before(stop - 1) + 1
        pieces = self.table.batches(first, last, rows)
        starts = range(first, last, rows)
        kept = (self._drop(piece, at) for at, piece in zip(starts, pieces, strict=True))
        yield from regroup(kept, rows, concatenate_rows)

    def _drop(self, rows: Rows, start: int) -> Rows:
        low, high = np.searchsorted(self.dropped, (start, start + len(rows)))
        if low == high:
            return rows
        return rows[np.delete(np.arange(len(rows)), self.dropped[low:high] - start)]

    def _before(self, row: int) -> int:
        """Return the number of a kept row in the underlying table."""
        # dropped[i] - i rows are kept before the i-th dropped row
        shift = self.dropped - np.arange(len(self.dropped))
        return row + int(np.searchsorted(shift, row, side="right"))


def as_floats(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return a C-contiguous array of the given dtype; values that overflow become infinity."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values.astype(dtype, copy=False))


# Entry of a section in the index of a part. A section ends where the next section starts.
_ENTRY = np.dtype([("start", "<i8"), ("rows", "<u4"), ("checksum", "<u4")])


@dataclass(frozen=True)
class ShuffledTable:
    """A table in random order, read from the files that `write_part` wrote to a folder.

    Part i contains the rows of block i before the shuffle, sorted by their position after the
    shuffle. Its file contains an index, and one section per block after the shuffle, with a
    checksum in the index. A section contains one record per row, and then the texts of the ids; the
    records contain the lengths of these texts.
    """

    folder: str
    manifest: Manifest
    seed: int
    labels: bool
    ids: str | None  # int64 or str
    span_rows: int = 1
    is_here: bool = False

    @property
    def n_rows(self) -> int:
        """Number of rows in the manifest."""
        return self.manifest.n_rows

    def locate(self, row: int) -> str:
        """Return the number of a row after the shuffle."""
        return f"row {row} of the shuffled rows"

    def batches(self, start: int, stop: int, rows: int) -> Iterator[Rows]:
        """Yield whole blocks of shuffled rows; `rows` must be the number of rows per block."""
        assert start % rows == 0
        assert rows == self.manifest.block_rows  # a part has one section per block
        for first in range(start, stop, rows):
            yield self._gather(first // rows)

    def part_path(self, part: int) -> Path:
        """Return the path of a part's file."""
        return Path(self.folder) / str(part)

    def has_part(self, part: int) -> bool:
        """Return whether the file of a part exists and is intact; this reads the whole file."""
        try:
            for block in range(self.manifest.n_blocks):
                self._read_section(part, block)
        except (StoreError, FileNotFoundError):
            return False
        return True

    def write_part(self, part: int, rows: Rows) -> None:
        """Write the file of a part, atomically; `rows` is the block `part` before the shuffle."""
        start = part * self.manifest.block_rows
        places = Permutation(self.n_rows, self.seed).places(np.arange(start, start + len(rows)))
        order = np.argsort(places)
        arrays, texts = rows[order].arrays(), list[bytes]()
        if self.ids == "str":
            texts = [text.encode() for text in arrays["ids"].tolist()]
            arrays["ids"] = np.array([len(text) for text in texts], np.int64)
        records = np.empty(len(rows), self._record)
        records["place"] = places[order]
        for name, values in arrays.items():
            records[name] = values
        temporary = self.part_path(part).with_suffix(f".{uuid4().hex}.partial")
        temporary.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                self._write_sections(file, part, records, texts)
                file.flush()
                os.fsync(file.fileno())  # otherwise a crash may leave an empty file
        except OSError:  # the disk may be full
            temporary.unlink(missing_ok=True)
            raise
        temporary.replace(self.part_path(part))

    def _write_sections(
        self, file: BinaryIO, part: int, records: NDArray[Any], texts: list[bytes]
    ) -> None:
        n_blocks = self.manifest.n_blocks
        borders = np.arange(n_blocks + 1) * self.manifest.block_rows
        lows = [int(low) for low in np.searchsorted(records["place"], borders)]
        index = np.zeros(n_blocks + 1, _ENTRY)
        file.seek(index.nbytes)
        for block, (low, high) in enumerate(pairwise(lows)):
            section = records[low:high].tobytes() + b"".join(texts[low:high])
            start = file.tell()
            where = (part, block, start, start + len(section), high - low)
            index[block] = (start, high - low, _checksum(section, where))
            file.write(section)
        index[-1]["start"] = file.tell()
        file.seek(0)
        file.write(index.tobytes())

    def _gather(self, block: int) -> Rows:
        rows = self.manifest.rows_of(block)
        shape = (len(rows), self.manifest.n_features)
        arrays: dict[str, NDArray[Any]] = {
            "features": np.empty(shape, self.manifest.dtype),
            "source_row": np.empty(len(rows), np.int64),
            "source_file": np.empty(len(rows), np.int32),
        }
        if self.labels:
            arrays["labels"] = np.empty(len(rows), np.int32)
        if self.ids:
            arrays["ids"] = np.empty(len(rows), TEXT if self.ids == "str" else np.int64)
        filled = np.zeros(len(rows), bool)
        for part in range(self.manifest.n_blocks):
            records, texts = self._read_section(part, block)
            at = records["place"] - rows.start
            filled[at] = True
            for name, values in arrays.items():
                is_text = values.dtype.kind == "T"
                values[at] = _split(texts, records["ids"]) if is_text else records[name]
        if not filled.all():
            raise StoreError(
                f"{np.count_nonzero(~filled)} rows of block {block} are missing in the shuffled "
                f"rows in {self.folder}; run the command again"
            )
        return Rows(**arrays)

    def _read_section(self, part: int, block: int) -> tuple[NDArray[Any], bytes]:
        """Read from a part the rows that are in `block` after the shuffle: records, and texts."""
        path, record = self.part_path(part), self._record
        with path.open("rb", buffering=0) as file:
            file.seek(block * _ENTRY.itemsize)
            entries = np.fromfile(file, _ENTRY, 2)
            if len(entries) == 2:
                (start, rows, checksum), (stop, _, _) = entries.tolist()
                index_bytes = (self.manifest.n_blocks + 1) * _ENTRY.itemsize
                # the bounds of a damaged index may be anything
                if index_bytes <= start <= stop <= os.fstat(file.fileno()).st_size:
                    file.seek(start)
                    # a raw file reads at most 2 GiB per call
                    section = np.fromfile(file, np.uint8, stop - start)
                    if _checksum(section.data, (part, block, start, stop, rows)) == checksum:
                        texts = section[rows * record.itemsize :].tobytes()
                        return np.frombuffer(section, record, rows), texts
        raise StoreError(
            f"{path} is damaged: rows of block {block} do not match their checksum; run the "
            "command again"
        )

    @property
    def _record(self) -> np.dtype[Any]:
        features = ("features", self.manifest.dtype, (self.manifest.n_features,))
        fields: list[Any] = [("place", "<i8"), features]
        fields += [("source_row", "<i8"), ("source_file", "<i4")]
        fields += [("labels", "<i4")] if self.labels else []
        return np.dtype(fields + ([("ids", "<i8")] if self.ids else []))


def _checksum(section: bytes | memoryview, where: tuple[int, ...]) -> int:
    """Return the checksum of a section and of its position, so that an empty section has one."""
    return crc32(section, crc32(np.array(where, "<i8").tobytes()))


def _split(texts: bytes, lengths: NDArray[np.int64]) -> NDArray[Any]:
    """Return the texts of the given lengths, which are stored without separators."""
    ends = np.cumsum(lengths).tolist()
    return np.array([texts[a:b].decode() for a, b in pairwise([0, *ends])], TEXT)
