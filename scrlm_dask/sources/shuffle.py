"""A shuffle of any size in two passes, each with one block in memory.

The permutation says at once where each row goes. First every block of the source is written as a
run, its rows sorted by where they go, with an index: where in it the rows of each block of the
store lie. Then each block of the store takes its piece of every run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import StoreError
from scrlm_dask.kernels.permutation import Permutation
from scrlm_dask.sources.base import TEXT
from scrlm_dask.sources.tables import Rows

_NUMBER = np.dtype("<i8")


@dataclass(frozen=True)
class RunLayout:
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
    """A table in another order, from the runs that `write_run` left in a folder."""

    folder: str
    n_rows: int
    block_rows: int
    layout: RunLayout
    span_rows: int = 1
    is_here: bool = False

    def locate(self, row: int) -> str:
        return f"row {row} of the shuffled rows"

    def batches(self, start: int, stop: int, rows: int) -> Iterator[Rows]:
        assert start % rows == 0
        assert rows == self.block_rows  # the index of a run knows no others
        for first in range(start, stop, rows):
            yield self._gathered(first, min(first + rows, stop))

    def _gathered(self, start: int, stop: int) -> Rows:
        n, layout = stop - start, self.layout
        features = np.empty((n, layout.n_features), layout.dtype)
        labels = np.empty(n, np.int32) if layout.labels else None
        ids = np.empty(n, TEXT if layout.ids == "str" else np.int64) if layout.ids else None
        for run in range(layout.n_blocks):
            piece = read_run(self.folder, run, start // self.block_rows, layout)
            places = piece["place"] - start
            features[places] = piece["features"]
            if labels is not None:
                labels[places] = piece["labels"]
            if ids is not None:
                ids[places] = piece["ids"].astype(ids.dtype)
        return Rows(features, labels, ids)


def write_run(
    folder: str,
    run: int,
    rows: Rows,
    start: int,
    block_rows: int,
    permutation: Permutation,
    layout: RunLayout,
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
    partial = run_file(folder, run).with_suffix(".partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("wb") as file:
        np.array([width, *index], _NUMBER).tofile(file)
        records.tofile(file)
    partial.rename(run_file(folder, run))


def read_run(folder: str, run: int, block: int, layout: RunLayout) -> NDArray[Any]:
    """The records of a run that go to a block of the store: they lie together."""
    path = run_file(folder, run)
    with path.open("rb", buffering=0) as file:
        width = int(np.fromfile(file, _NUMBER, 1)[0])
        file.seek(_NUMBER.itemsize * (1 + block))
        low, high = (int(n) for n in np.fromfile(file, _NUMBER, 2))
        record = layout.record(width)
        file.seek(layout.index_bytes + low * record.itemsize)
        found = np.fromfile(file, record, high - low)
    if len(found) < high - low:
        raise StoreError(f"{path} was cut: block {block} lacks rows; begin anew with --overwrite")
    return found


def run_file(folder: str, run: int) -> Path:
    return Path(folder) / str(run)
