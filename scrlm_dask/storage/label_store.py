"""The labels store: `labels`, `distances` and optionally `margins`, one chunk per block.

If a task computes several small blocks, a chunk contains the rows of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError, UnreachableError
from scrlm_dask.kernels import OUTLIER
from scrlm_dask.storage import arrays
from scrlm_dask.storage.feature_store import (
    FEATURES,
    LABELS,
    MISSING_LABEL,
    StoredOrigins,
    is_shuffled,
    open_ids,
    open_origins,
    store_of,
)
from scrlm_dask.storage.folders import PARTIAL
from scrlm_dask.storage.locations import (
    Location,
    Place,
    TrustedOrigins,
    locate,
    locate_recorded,
)
from scrlm_dask.storage.npy_files import NpyColumn, open_npy_column
from scrlm_dask.storage.outputs import KIND, LABELS_KIND, check_owner, describe_owner, discard
from scrlm_dask.storage.run_directory import RunDirectory
from scrlm_dask.storage.store_info import RecordedFeatures, features_digest, features_in
from scrlm_dask.storage.traces import Input

if TYPE_CHECKING:
    from scrlm_dask.kernels.distances.assignment import Assignment

DISTANCES, MARGINS = "distances", "margins"
_DIGEST = "features_digest"  # attribute: digest of the labelled features
_SHUFFLED = "features_shuffled"  # attribute: whether ingest shuffled them; null: not known
FINE, COARSE = "fine", "coarse"  # labels of the other levels
_STORE = "the labels store"  # name in messages


def create_labels_store(
    path: Place,
    n_rows: int,
    block_rows: int,
    margins: bool,
    features: RecordedFeatures | None = None,
    distances: bool = True,
    fine: bool = False,
) -> Location:
    """Create an empty labels store, marked incomplete; with `fine`, also for the fine level.

    `features` are the labelled features, to be stored as attributes. They are not needed inside a
    run directory, because the record of the run contains them.
    """
    location = locate(path)
    source: dict[str, Any] = {}
    if features is not None:
        source = {FEATURES: features.path, _DIGEST: features.digest, _SHUFFLED: features.shuffled}
    owner = describe_owner(location)
    arrays.create_group(location, {KIND: LABELS_KIND, **source, **owner, "complete": False})
    arrays.create_array(location / LABELS, (n_rows,), (block_rows,), "int32", MISSING_LABEL)
    if distances:
        arrays.create_array(location / DISTANCES, (n_rows,), (block_rows,), "float32", np.nan)
    if margins:
        arrays.create_array(location / MARGINS, (n_rows,), (block_rows,), "float32", np.nan)
    if fine:
        arrays.create_array(location / FINE, (n_rows,), (block_rows,), "int32", MISSING_LABEL)
    return location


def write_labels_block(
    path: Place, start: int, assigned: Assignment, fine: NDArray[np.int32] | None = None
) -> None:
    """Write labels, distances and, if computed, margins of the block that starts at row `start`.

    `fine` are labels of the fine level, if there are any.
    """
    location = locate(path)
    check_owner(location)
    arrays.write_rows(location / LABELS, start, assigned.labels)
    arrays.write_rows(location / DISTANCES, start, assigned.distances)
    if assigned.margins is not None:
        arrays.write_rows(location / MARGINS, start, assigned.margins)
    if fine is not None:
        arrays.write_rows(location / FINE, start, fine)


def write_coarse_labels(path: Place, groups: NDArray[np.int64]) -> None:
    """Add the labels of the coarse level: `groups` (k,) is the coarse cluster of each label."""
    location = locate(path)
    node = arrays.member(_open_group(location), location, LABELS)
    labels = arrays.describe(node, location / LABELS)
    n_rows, block_rows = labels.shape[0], labels.chunks[0]
    location.remove([COARSE])
    arrays.create_array(location / COARSE, (n_rows,), (block_rows,), "int32", MISSING_LABEL)
    copy_joined(labels, groups, location, COARSE)


def copy_joined(
    labels: arrays.StoredArray, groups: NDArray[np.int64], store: Location, name: str
) -> None:
    """Copy labels block by block to an array of a store; label i becomes groups[i]."""
    joined = np.append(groups, OUTLIER).astype(np.int32)  # label -1 selects the last entry
    n_rows, block_rows = labels.shape[0], labels.chunks[0]
    for start in range(0, n_rows, block_rows):
        some = arrays.read_rows(labels, start, min(start + block_rows, n_rows), _STORE)
        wrong = np.flatnonzero((some < OUTLIER) | (some >= len(groups)))
        if len(wrong):
            raise StoreError(
                f"row {start + int(wrong[0])} of {labels.location} has label {some[wrong[0]]}, but "
                f"labels must be from {OUTLIER} to {len(groups) - 1}; write the labels again"
            )
        check_owner(store)
        arrays.write_rows(store / name, start, joined[some])


def read_labels_block(
    path: Place, start: int, stop: int
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Read labels and distances of rows start..stop-1."""
    location, rows = locate(path), slice(start, stop)
    read = partial(arrays.read_member, _open_group(location), location)
    return read(LABELS, _STORE, rows), read(DISTANCES, _STORE, rows)


def labels_complete(path: Place, start: int, stop: int) -> bool:
    """Return whether all rows start..stop-1 of an incomplete labels store can be read."""
    location = locate(path)
    try:
        group = _open_group(location)
        for name in _arrays_in(group, location):
            arrays.read_member(group, location, name, _STORE, slice(start, stop))
    except UnreachableError:
        raise
    except StoreError:
        return False
    return True


def ensure_labels_store(
    path: Place, n_rows: int, block_rows: int, margins: bool, fine: bool = False
) -> Location:
    """Reuse the labels store of an earlier attempt if its arrays match; otherwise create one."""
    location = locate(path)
    try:
        group = _open_group(location)
        names = _arrays_in(group, location)
        members = [arrays.member(group, location, name) for name in names]
        fits = all(a.shape == (n_rows,) and a.chunks == (block_rows,) for a in members)
        if fits and (MARGINS in names) == margins and (FINE in names) == fine:
            _remove_partial_chunks(location)
            return location
    except UnreachableError:
        raise
    except StoreError:
        pass
    discard(location, LABELS_KIND)
    return create_labels_store(location, n_rows, block_rows, margins, fine=fine)


def _remove_partial_chunks(location: Location) -> None:
    """Remove temporary files that Zarr did not rename because its process was killed."""
    if not location.is_remote:  # object stores have no temporary files: they write whole objects
        for file in Path(location.url).rglob(PARTIAL):
            file.unlink(missing_ok=True)


def _open_group(location: Location) -> zarr.Group:
    group = arrays.open_node(location, _STORE)
    if not isinstance(group, zarr.Group):
        raise StoreError(f"{location} is not a labels store: expected a Zarr group, got an array")
    return group


def _arrays_in(group: zarr.Group, location: Location) -> list[str]:
    """Return the names of the arrays of the labels store at `location`."""
    return [
        LABELS,
        DISTANCES,
        *(name for name in (MARGINS, FINE) if arrays.has_member(group, location, name)),
    ]


def open_labels(path: Place, what: str, name: str = LABELS) -> arrays.StoredArray:
    """Open the 1-D integer array at `path`, or the array `name` of the group at `path`."""
    location = locate(path)
    node = arrays.open_node(location, what)
    if isinstance(node, zarr.Group):
        if node.attrs.get("complete", True) is not True:
            raise StoreError(
                f"{what} {location} is incomplete; run the command that writes it again"
            )
        node, location = arrays.member(node, location, name), location / name
    stored = arrays.describe(node, location)
    check_labels_like(stored.shape, stored.dtype, f"{what} {location}")
    arrays.check_complete(stored, node, what)
    return stored


def open_column(path: Place, name: str) -> arrays.StoredArray | None:
    """Open distances or margins of a labels store; None if they were not stored."""
    location = locate(path)
    node = arrays.open_node(location, _STORE)
    if not isinstance(node, zarr.Group) or not arrays.has_member(node, location, name):
        return None
    array = arrays.member(node, location, name)
    stored = arrays.describe(array, location / name)
    shape = arrays.describe(arrays.member(node, location, LABELS), location / LABELS).shape
    if stored.shape != shape or stored.dtype.kind != "f":
        raise StoreError(
            f"the {name} {stored.location} must be numbers of shape {shape} like the labels, got "
            f"shape {stored.shape} and dtype {stored.dtype}; run the command that writes the "
            "labels again"
        )
    arrays.check_complete(stored, array, f"the {name}")
    return stored


def is_labels_store(path: Place) -> bool:
    """Return whether `path` is a labels store that this package wrote."""
    location = locate(path)
    if not (location / "zarr.json").is_file():
        return False
    return bool(arrays.open_node(location, _STORE).attrs.get(KIND) == LABELS_KIND)


def labelled_features(path: Place) -> RecordedFeatures | None:
    """Return the labelled features; None if they are not known.

    The record of a run contains the features of the labels store inside the run.
    """
    location = locate(path)
    attributes: Any = arrays.open_node(location, _STORE).attrs
    features, digest = attributes.get(FEATURES), attributes.get(_DIGEST)
    shuffled = attributes.get(_SHUFFLED)
    if isinstance(features, str):
        return RecordedFeatures(features, digest, shuffled if isinstance(shuffled, bool) else None)
    for folder in location.parents()[:1]:
        run = RunDirectory(folder)
        if run.labels == location and run.record.is_file():
            return features_in(run.read_record())
    return None


def features_of_labels(labels: arrays.StoredArray) -> RecordedFeatures | None:
    """Return the features that the labels in a labels store or in a features store belong to.

    Return None if they are not known. The digest is only computed if the rows were shuffled.
    """
    parents = labels.location.parents()
    if not parents or not labels.location.url.endswith(f"/{LABELS}"):
        return None
    store = parents[0]
    try:
        if is_labels_store(store):
            return labelled_features(store)
        shuffled = is_shuffled(store)
        return RecordedFeatures(store.url, features_digest(store) if shuffled else None, shuffled)
    except StoreError:  # the array is in a plain folder
        return None


def open_truth(path: Place) -> arrays.StoredArray | NpyColumn:
    """Open true labels: a .npy file (only its header is read) or a Zarr store."""
    location = locate(path)
    if not location.url.endswith(".npy"):
        return open_labels(location, "the truth")
    labels = open_npy_column(location, "the truth")
    check_labels_like(labels.shape, labels.dtype, f"the truth {location}")
    return labels


def check_labels_like(shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> None:
    """Raise unless shape and dtype are those of a 1-D integer array."""
    if len(shape) != 1 or dtype.kind not in "iu":
        raise InputError(
            f"{what} must be a 1-D array with one integer label per row, got shape {shape} and "
            f"dtype {dtype}"
        )


_PIECE_ROWS = 2**20


@dataclass(frozen=True)
class LabelledRows:
    """Labels, distances, margins and ids of consecutive rows from `start` on."""

    start: int
    labels: NDArray[np.int32]
    distances: NDArray[np.float32]
    margins: NDArray[np.float32] | None
    ids: NDArray[Any] | None
    source_rows: NDArray[np.int64] | None = None
    source_files: NDArray[np.int32] | None = None  # positions among the files of the origins

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Row numbers."""
        return np.arange(self.start, self.start + len(self.labels), dtype=np.int64)


@dataclass(frozen=True)
class LabelTable:
    """The columns of a labels store, and ids and source rows if the features store has them."""

    labels: arrays.StoredArray
    distances: arrays.StoredArray
    margins: arrays.StoredArray | None
    ids: arrays.StoredArray | None = None
    origins: StoredOrigins | None = None
    ids_note: str | None = None  # reason why the features store cannot be used
    inputs: tuple[Input, ...] = ()  # files that must not change while rows are read

    @property
    def n_rows(self) -> int:
        """Number of labelled rows."""
        return self.labels.shape[0]

    def pieces(self) -> Iterator[LabelledRows]:
        """Yield all rows in order, in whole chunks of the labels."""
        step = self.labels.chunks[0] * max(1, _PIECE_ROWS // self.labels.chunks[0])
        for start in range(0, self.n_rows, step):
            yield self.read(start, min(start + step, self.n_rows))

    def read(self, start: int, stop: int) -> LabelledRows:
        """Read rows start..stop-1 of all columns."""
        columns = (self.labels, self.distances, self.margins, self.ids)
        values: list[Any] = [
            None if column is None else arrays.read_rows(column, start, stop, what)
            for column, what in zip(columns, (_STORE, _STORE, _STORE, "the ids"), strict=True)
        ]
        origins = (None, None) if self.origins is None else self.origins.read(start, stop)
        return LabelledRows(start, *values, *origins)


def open_label_table(run: RunDirectory, trusted: TrustedOrigins) -> LabelTable:
    """Open the labels of a complete run, with ids and source rows if the features can be opened."""
    run.check_complete()
    labels = open_labels(run.labels, _STORE)
    distances = open_column(run.labels, DISTANCES)
    if distances is None:
        raise StoreError(f"{run.labels} contains no distances; run the fit again with --overwrite")
    margins = open_column(run.labels, MARGINS)
    inputs = _trace_columns({_STORE: [labels, distances, margins]})
    # read the record after the labels are traced, because another run may replace this run
    recorded = features_in(run.check_complete())
    return _add_ids(LabelTable(labels, distances, margins, inputs=inputs), recorded, trusted)


def _trace_columns(columns: Mapping[str, Sequence[arrays.StoredArray | None]]) -> tuple[Input, ...]:
    """Trace columns as inputs; the keys are their names in messages."""
    named = [(name, column) for name, some in columns.items() for column in some if column]
    return tuple(
        each for name, column in named for each in arrays.trace_node(name, column.location)
    )


def _add_ids(
    table: LabelTable, recorded: RecordedFeatures | None, trusted: TrustedOrigins
) -> LabelTable:
    """Return the table with ids and source rows, or with a note why it has none."""
    if recorded is None:
        return table
    try:
        place = locate_recorded(recorded.path, trusted)
        features = recorded.open_unchanged(place)
        group = store_of(place)
        ids, origins = open_ids(group), open_origins(group)
    except (StoreError, InputError, OSError) as error:
        return replace(table, ids_note=f"without ids and source rows: {error}")
    columns = {"the ids": [ids]}
    if origins is not None:
        columns |= {"the source rows": [origins.rows], "the source files": [origins.numbers]}
    inputs = (*table.inputs, *_trace_columns(columns), features)
    return replace(table, ids=ids, origins=origins, inputs=inputs)
