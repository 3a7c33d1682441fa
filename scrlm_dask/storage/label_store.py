"""The labels store: `labels`, `distances` and perhaps `margins`, cut like the features."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError, UnreachableError
from scrlm_dask.storage import arrays
from scrlm_dask.storage.feature_store import FEATURES, LABELS, MISSING_LABEL, open_ids
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.npy_files import NpyColumn, open_npy_column
from scrlm_dask.storage.outputs import KIND, LABELS_KIND, discard
from scrlm_dask.storage.run_directory import RunDirectory

if TYPE_CHECKING:
    from scrlm_dask.kernels.distances.assignment import Assignment

DISTANCES, MARGINS = "distances", "margins"


def create_labels_store(
    path: Place,
    n_rows: int,
    block_rows: int,
    margins: bool,
    features: str | None = None,
    distances: bool = True,
) -> Location:
    """Lay out an empty labels store, marked unfinished.

    It says whose labels they are (`features`, a path) where no record of a run does.
    """
    location = locate(path)
    source = {} if features is None else {FEATURES: features}
    arrays.create_group(location, {KIND: LABELS_KIND, **source, "complete": False})
    arrays.create_array(location / LABELS, (n_rows,), (block_rows,), "int32", MISSING_LABEL)
    if distances:
        arrays.create_array(location / DISTANCES, (n_rows,), (block_rows,), "float32", np.nan)
    if margins:
        arrays.create_array(location / MARGINS, (n_rows,), (block_rows,), "float32", np.nan)
    return location


def write_labels_block(path: Place, start: int, assigned: Assignment) -> None:
    location = locate(path)
    arrays.write_rows(location / LABELS, start, assigned.labels)
    arrays.write_rows(location / DISTANCES, start, assigned.distances)
    if assigned.margins is not None:
        arrays.write_rows(location / MARGINS, start, assigned.margins)


def read_labels_block(
    path: Place, start: int, stop: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Labels and distances of the rows start..stop-1."""
    location = locate(path)
    group = _open_group(location)
    stored = [
        arrays.describe(arrays.member(group, location, name), location / name)
        for name in (LABELS, DISTANCES)
    ]
    labels, distances = (arrays.read_rows(array, start, stop, "the labels") for array in stored)
    return labels, distances


def labels_complete(path: Place, start: int, stop: int) -> bool:
    """Whether the rows start..stop-1 of an unfinished labels store can all be read."""
    location = locate(path)
    try:
        group = _open_group(location)
        for name in _arrays_in(group):
            stored = arrays.describe(arrays.member(group, location, name), location / name)
            arrays.read_rows(stored, start, stop, "the labels")
    except UnreachableError:
        raise
    except StoreError:
        return False
    return True


def resume_labels_store(path: Place, n_rows: int, block_rows: int, margins: bool) -> Location:
    """The labels store of a run that was stopped; a new one if there is none that would do."""
    location = locate(path)
    try:
        group = _open_group(location)
        names = _arrays_in(group)
        found = [arrays.member(group, location, name) for name in names]
        fits = all(a.shape == (n_rows,) and a.chunks == (block_rows,) for a in found)
        if fits and (MARGINS in names) == margins:
            _remove_halves(location)
            return location
    except UnreachableError:
        raise
    except StoreError:
        pass
    discard(location)
    return create_labels_store(location, n_rows, block_rows, margins)


def _remove_halves(location: Location) -> None:
    """Chunks that a process was killed in the middle of: Zarr writes beside, and renames."""
    if not location.is_remote:  # object stores put whole objects
        for half in Path(location.url).rglob("*.partial"):
            half.unlink(missing_ok=True)


def _open_group(location: Location) -> zarr.Group:
    group = arrays.open_node(location, "the labels")
    if not isinstance(group, zarr.Group):
        raise StoreError(f"the labels {location} are an array; a labels store is a group")
    return group


def _arrays_in(group: zarr.Group) -> list[str]:
    """Names of the arrays that a labels store has."""
    return [LABELS, DISTANCES, *([MARGINS] if MARGINS in group else ())]


def open_labels(path: Place, what: str) -> arrays.StoredArray:
    """The 1-D integer array at `path`, or the one called `labels` in the group there."""
    location = locate(path)
    node = arrays.open_node(location, what)
    if isinstance(node, zarr.Group):
        if node.attrs.get("complete", True) is not True:
            raise StoreError(f"{what} {location} is unfinished; run the command again")
        node, location = arrays.member(node, location, LABELS), location / LABELS
    stored = arrays.describe(node, location)
    check_labels_like(stored.shape, stored.dtype, f"{what} {stored.url}")
    arrays.check_complete(stored, node, what)
    return stored


def open_column(path: Place, name: str) -> arrays.StoredArray | None:
    """Distances or margins of a labels store; None if they were not stored."""
    location = locate(path)
    node = arrays.open_node(location, "the labels")
    if not isinstance(node, zarr.Group) or name not in node:
        return None
    array = arrays.member(node, location, name)
    stored = arrays.describe(array, location / name)
    arrays.check_complete(stored, array, f"the {name}")
    return stored


def is_labels_store(path: Place) -> bool:
    """Whether what lies there was written as labels."""
    location = locate(path)
    if not (location / "zarr.json").is_file():
        return False
    return bool(arrays.open_node(location, "the labels").attrs.get(KIND) == LABELS_KIND)


def labelled_features(path: Place) -> str | None:
    """Where the features lie that a labels store has the labels of, if it says so."""
    features = arrays.open_node(path, "the labels").attrs.get(FEATURES)
    return features if isinstance(features, str) else None


def open_truth(path: Place) -> arrays.StoredArray | NpyColumn:
    """True labels: a .npy file (of which only the header is read) or a Zarr store."""
    location = locate(path)
    if not location.url.endswith(".npy"):
        return open_labels(location, "the truth")
    labels = open_npy_column(location, "the truth")
    check_labels_like(labels.shape, labels.dtype, f"the truth {location}")
    return labels


def check_labels_like(shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> None:
    if len(shape) != 1 or dtype.kind not in "iu":
        raise InputError(
            f"{what} has the shape {shape} and holds {dtype}; labels are one integer a row"
        )


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
class LabelTable:
    """Where the columns lie."""

    labels: arrays.StoredArray
    distances: arrays.StoredArray
    margins: arrays.StoredArray | None
    ids: arrays.StoredArray | None
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
            None if column is None else arrays.read_rows(column, start, stop, "the labels")
            for column in columns
        ]
        return LabelledRows(start, *values)


def open_label_table(run: RunDirectory, storage_options: Options | None = None) -> LabelTable:
    """The labels of a complete run. Ids come from the features, if they are still there."""
    record = run.check_complete()
    labels = open_labels(run.labels, "the labels")
    distances = open_column(run.labels, DISTANCES)
    if distances is None:
        raise StoreError(f"{run.labels} holds no distances; run the fit again with --overwrite")
    ids, note = _ids_of(record, labels.shape[0], storage_options)
    return LabelTable(labels, distances, open_column(run.labels, MARGINS), ids, note)


def _ids_of(
    record: dict[str, Any], n_rows: int, storage_options: Options | None
) -> tuple[arrays.StoredArray | None, str | None]:
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
