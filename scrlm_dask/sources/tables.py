"""Rows as a store takes them: features in its dtype, labels and ids beside them.

A table is read as it comes, without the rows that are not finite, or (`ShuffledTable`) in
another order; each of these is a table again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.kernels.randomness.sampling import Permutation
from scrlm_dask.sources.base import TEXT, Source, as_texts, holds_texts
from scrlm_dask.sources.sharded import regroup


@dataclass(frozen=True)
class Rows:
    """Some rows: features (rows, p), labels (rows,) int32, ids (rows,) int64 or text."""

    features: NDArray[Any]
    labels: NDArray[np.int32] | None = None
    ids: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, which: Any) -> Rows:
        return Rows(**{name: values[which] for name, values in self.arrays().items()})

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {name: values for name, values in vars(self).items() if values is not None}


def concatenate_rows(rows: Sequence[Rows]) -> Rows:
    names = rows[0].arrays()
    return Rows(**{name: np.concatenate([r.arrays()[name] for r in rows]) for name in names})


class Table(Protocol):
    """Rows by number; small enough to send to every worker."""

    @property
    def n_rows(self) -> int: ...

    @property
    def span_rows(self) -> int:
        """Rows that one task should read in a row, so that nothing is decoded twice."""

    @property
    def is_here(self) -> bool:
        """Whether only this process reads it."""

    def batches(self, start: int, stop: int, rows: int) -> Iterator[Rows]:
        """Rows start..stop-1, `rows` at a time."""

    def locate(self, row: int) -> str:
        """Where a row came from, in words."""


@dataclass(frozen=True)
class PlainTable:
    """The rows of a source as they come, up to `n_rows`."""

    features: Source
    labels: Source | None
    ids: Source | None
    dtype: str
    n_rows: int

    @property
    def span_rows(self) -> int:
        sources = [s for s in (self.features, self.labels, self.ids) if s is not None]
        return max(s.unit_rows if s.streams else 1 for s in sources)

    @property
    def is_here(self) -> bool:
        return self.features.is_here

    def locate(self, row: int) -> str:
        return self.features.locate(row)

    def batches(self, start: int, stop: int, rows: int) -> Iterator[Rows]:
        features = self.features.batches(start, stop, rows)
        labels = self.labels.batches(start, stop, rows) if self.labels is not None else None
        ids = self.ids.batches(start, stop, rows) if self.ids is not None else None
        for first, block in zip(range(start, stop, rows), features, strict=True):
            yield Rows(
                as_floats(block, self.dtype),
                None if labels is None else self._labels(next(labels), first),
                None if ids is None else self._ids(next(ids), first),
            )

    def _labels(self, values: NDArray[Any], first: int) -> NDArray[np.int32]:
        assert self.labels is not None
        if values.dtype.kind not in "iu":
            raise InputError(
                f"the labels {self.labels.what} hold {values.dtype}; labels are integers, -1 for "
                "outliers"
            )
        info = np.iinfo(np.int32)
        wrong = np.flatnonzero((values < info.min) | (values > info.max))
        if len(wrong):
            raise InputError(
                f"{self.labels.locate(first + int(wrong[0]))} is the label {values[wrong[0]]}, "
                "which is too large for 32 bits; number the classes anew"
            )
        return values.astype(np.int32)

    def _ids(self, values: NDArray[Any], first: int) -> NDArray[Any]:
        assert self.ids is not None
        if ids_dtype(self.ids) == "str":
            return as_texts(values)
        if values.dtype.kind == "u" and len(values) and values.max() > np.iinfo(np.int64).max:
            raise InputError(
                f"{self.ids.locate(first + int(values.argmax()))} is the id {values.max()}, which "
                "is too large for 64 bits with a sign; give the ids as text"
            )
        return values.astype(np.int64)


@dataclass(frozen=True)
class KeptTable:
    """A table without the rows whose numbers are `dropped` (rising)."""

    table: Table
    dropped: NDArray[np.int64]

    @property
    def n_rows(self) -> int:
        return self.table.n_rows - len(self.dropped)

    @property
    def span_rows(self) -> int:
        return self.table.span_rows

    @property
    def is_here(self) -> bool:
        return self.table.is_here

    def locate(self, row: int) -> str:
        return self.table.locate(self._before(row))

    def batches(self, start: int, stop: int, rows: int) -> Iterator[Rows]:
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
        keep = np.ones(len(rows), np.bool_)
        keep[self.dropped[low:high] - start] = False
        return rows[keep]

    def _before(self, row: int) -> int:
        """The number that a row had before others were dropped."""
        # dropped[i] - i rows are kept before the i-th one that is dropped
        shift = self.dropped - np.arange(len(self.dropped))
        return row + int(np.searchsorted(shift, row, side="right"))


def as_floats(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """In the dtype of the store; what is too large for it becomes infinity, and is seen as such."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(values.astype(dtype, copy=False))


def ids_dtype(ids: Source) -> str:
    """How ids are stored: int64 or str."""
    if ids.dtype.kind in "iu":
        return "int64"
    if holds_texts(ids):
        return "str"
    raise InputError(f"the ids {ids.what} hold {ids.dtype}; ids are integers or texts")


_NUMBER = np.dtype("<i8")


@dataclass(frozen=True)
class ShuffleLayout:
    """A run's file: how long its longest id is, the index, then a record for each row."""

    n_blocks: int
    n_features: int
    dtype: str
    labels: bool
    ids: str | None  # int64 or str

    def record(self, text_width: int) -> np.dtype[Any]:
        fields: list[Any] = [("place", "<i8"), ("features", self.dtype, (self.n_features,))]
        fields += [("labels", "<i4")] if self.labels else []
        kinds = {"int64": "<i8", "str": f"<U{text_width}"}
        return np.dtype(fields + ([("ids", kinds[self.ids])] if self.ids else []))

    @property
    def index_bytes(self) -> int:
        return _NUMBER.itemsize * (2 + self.n_blocks)


@dataclass(frozen=True)
class ShuffledTable:
    """A table in another order, from the parts that `write_shuffled_part` left in a folder."""

    folder: str
    n_rows: int
    block_rows: int
    layout: ShuffleLayout
    span_rows: int = 1
    is_here: bool = False

    def locate(self, row: int) -> str:
        return f"row {row} of the shuffled rows"

    def batches(self, start: int, stop: int, rows: int) -> Iterator[Rows]:
        assert start % rows == 0
        assert rows == self.block_rows  # the index of a run knows no others
        for first in range(start, stop, rows):
            yield self._gather(first, min(first + rows, stop))

    def _gather(self, start: int, stop: int) -> Rows:
        n, layout = stop - start, self.layout
        features = np.empty((n, layout.n_features), layout.dtype)
        labels = np.empty(n, np.int32) if layout.labels else None
        ids = np.empty(n, TEXT if layout.ids == "str" else np.int64) if layout.ids else None
        for run in range(layout.n_blocks):
            piece = read_shuffled_part(self.folder, run, start // self.block_rows, layout)
            places = piece["place"] - start
            features[places] = piece["features"]
            if labels is not None:
                labels[places] = piece["labels"]
            if ids is not None:
                ids[places] = piece["ids"].astype(ids.dtype)
        return Rows(features, labels, ids)


def write_shuffled_part(
    folder: str,
    run: int,
    rows: Rows,
    start: int,
    block_rows: int,
    permutation: Permutation,
    layout: ShuffleLayout,
) -> None:
    """Rows that begin with `start`, sorted by where they go; there in one step or not at all."""
    places = permutation.places(np.arange(start, start + len(rows)))
    order = np.argsort(places)
    arrays = rows.arrays()
    if layout.ids == "str":
        arrays["ids"] = np.array(arrays["ids"].tolist(), np.str_)
    width = arrays["ids"].dtype.itemsize // 4 if layout.ids == "str" else 0
    records = np.empty(len(rows), layout.record(width))
    records["place"] = places[order]
    for name, values in arrays.items():
        records[name] = values[order]
    borders = np.arange(layout.n_blocks + 1) * block_rows
    index = np.searchsorted(records["place"], borders)
    partial = shuffle_file(folder, run).with_suffix(".partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("wb") as file:
        np.array([width, *index], _NUMBER).tofile(file)
        records.tofile(file)
    partial.rename(shuffle_file(folder, run))


def read_shuffled_part(folder: str, run: int, block: int, layout: ShuffleLayout) -> NDArray[Any]:
    """The records of a run that go to a block of the store: they lie together."""
    path = shuffle_file(folder, run)
    with path.open("rb", buffering=0) as file:
        width = int(np.fromfile(file, _NUMBER, 1)[0])
        file.seek(_NUMBER.itemsize * (1 + block))
        low, high = (int(n) for n in np.fromfile(file, _NUMBER, 2))
        record = layout.record(width)
        file.seek(layout.index_bytes + low * record.itemsize)
        records = np.fromfile(file, record, high - low)
    if len(records) < high - low:
        raise StoreError(f"{path} was cut: block {block} lacks rows; begin anew with --overwrite")
    return records


def shuffle_file(folder: str, run: int) -> Path:
    return Path(folder) / str(run)
