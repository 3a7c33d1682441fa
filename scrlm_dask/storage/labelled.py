"""Rows as a run labelled them: label, distance, margin and id, read piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.storage.arrays import StoredArray, read_rows
from scrlm_dask.storage.features import FEATURES, open_ids
from scrlm_dask.storage.labels import DISTANCES, MARGINS, open_column, open_labels
from scrlm_dask.storage.locations import Options, locate
from scrlm_dask.storage.runs import RunDirectory

_PIECE_ROWS = 2**20


@dataclass(frozen=True)
class LabelledRows:
    """Consecutive rows from `start` on."""

    start: int
    labels: NDArray[np.int32]
    distances: NDArray[np.float32]
    margins: NDArray[np.float32] | None
    ids: NDArray[Any] | None

    @property
    def numbers(self) -> NDArray[np.int64]:
        return np.arange(self.start, self.start + len(self.labels), dtype=np.int64)


@dataclass(frozen=True)
class LabelledStore:
    """Where the columns lie."""

    labels: StoredArray
    distances: StoredArray
    margins: StoredArray | None
    ids: StoredArray | None
    ids_note: str | None = None  # why there are no ids, where that is worth a word

    @property
    def n_rows(self) -> int:
        return self.labels.shape[0]

    def pieces(self) -> Iterator[LabelledRows]:
        """All rows in their order, in whole chunks of the labels."""
        step = self.labels.chunks[0] * max(1, _PIECE_ROWS // self.labels.chunks[0])
        for start in range(0, self.n_rows, step):
            yield self.read(start, min(start + step, self.n_rows))

    def read(self, start: int, stop: int) -> LabelledRows:
        columns = self.labels, self.distances, self.margins, self.ids
        values: list[Any] = [
            None if column is None else read_rows(column, start, stop, "the labels")
            for column in columns
        ]
        return LabelledRows(start, *values)


def open_labelled(run: RunDirectory, storage_options: Options | None = None) -> LabelledStore:
    """The labels of a complete run. Ids come from the features, if they are still there."""
    record = run.check_complete()
    labels = open_labels(run.labels, "the labels")
    distances = open_column(run.labels, DISTANCES)
    if distances is None:
        raise StoreError(f"{run.labels} holds no distances; run the fit again with --overwrite")
    ids, note = _ids_of(record, labels.shape[0], storage_options)
    return LabelledStore(labels, distances, open_column(run.labels, MARGINS), ids, note)


def _ids_of(
    record: dict[str, Any], n_rows: int, storage_options: Options | None
) -> tuple[StoredArray | None, str | None]:
    path = record.get("features", {}).get("path")
    if path is None:
        return None, None
    place = locate(path, storage_options)
    try:  # who gave the array itself may have taken it out of a store
        ids = open_ids(place.parents()[0] if place.url.endswith(f"/{FEATURES}") else place)
    except (StoreError, InputError, OSError) as error:
        return None, f"without ids: {error}"
    if ids is not None and ids.shape[0] != n_rows:
        return None, f"without ids: {place} has {ids.shape[0]} rows now and had {n_rows}"
    return ids, None
