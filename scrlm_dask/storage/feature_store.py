"""The features store: a float array (rows, features), or a group with an array `features`.

A group may also contain `labels` (true labels) and `ids` (an integer or a string per row). Stores
written by this package also have a manifest. `source_row` and `source_file` are the positions of
the rows in the source files; they are omitted if row i is row i of the only source file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError, UnreachableError
from scrlm_dask.storage import arrays
from scrlm_dask.storage.locations import Location, Place, locate
from scrlm_dask.storage.manifest import (
    Manifest,
    SourceFile,
    create_manifest,
    manifest_in,
    missing_blocks,
    read_manifest,
    write_digest,
)
from scrlm_dask.storage.npy_files import NpyColumn, open_npy_column
from scrlm_dask.storage.outputs import FEATURES_KIND, KIND, OWNER, check_owner, describe_owner

FEATURES, LABELS, IDS = "features", "labels", "ids"
SOURCE_ROW = "source_row"  # array: row number of each row in its source file
SOURCE_FILE = "source_file"  # array: position of this file among the sources of the manifest
LABEL_NAMES = "label_names"  # attribute: class names of the labels 0, 1, ...
ENCODED = "encoded"  # attribute: input and encoder of features that this package encoded
SAME_ROWS = "same_rows"  # attribute: True if row i of the store is row i of the first source file
SHUFFLED = "shuffled"  # attribute: True if this or an earlier ingest put the rows in random order
TRUE = "true_"  # prefix of arrays: parameters of the mixture that the rows were drawn from
DROPPED = "dropped"  # array: row numbers in the source that were dropped; attribute: their count
SHUFFLE = ".shuffle"  # folder of temporary files of a shuffle, removed when all blocks are written
MISSING_LABEL = -2  # fill value of label arrays: neither a cluster nor an outlier
TARGET_BLOCK_BYTES = 64 * 2**20
STORED_DTYPES = ("float16", "float32")  # dtypes in which features are written
IDS_DTYPES = ("int64", "str")

# names in messages
_STORE = "the features store"
WEIGHTS = "the sample weights"

_METADATA = "zarr.json"  # file of every array and group that this package writes
_ORIGINS = {SOURCE_ROW: "int64", SOURCE_FILE: "int32"}  # dtypes of these arrays
_COVERED = (FEATURES, LABELS, IDS, *_ORIGINS)  # arrays that digests cover
_SMALL_BLOCK_BYTES, _FEW_BLOCKS = 4 * 2**20, 16
_FEW_NAMED = 5


@dataclass(frozen=True)
class OpenedStore:
    """A features store, complete or not, whose metadata has been read."""

    location: Location
    group: zarr.Group | None  # None: the store is a single array
    array: zarr.Array[Any]
    features: arrays.StoredArray
    manifest: Manifest | None


def open_store(path: Place) -> OpenedStore:
    """Read the metadata of a features store; check only that a features array exists."""
    location = locate(path)
    node = arrays.open_node(location, _STORE)
    if isinstance(node, zarr.Array):
        return OpenedStore(location, None, node, arrays.describe(node, location), None)
    array = arrays.child(node, location, FEATURES)
    if not isinstance(array, zarr.Array):
        names = ", ".join(arrays.member_names(node, location)) or "nothing"
        raise StoreError(
            f"{location} is not a features store: it contains no array called {FEATURES!r} "
            f"(it contains {names}); give the path of the array itself"
        )
    features, manifest = arrays.describe(array, location / FEATURES), manifest_in(node, location)
    if manifest is not None and features.shape != (manifest.n_rows, manifest.n_features):
        raise StoreError(
            f"the features store {location} does not match its manifest: its features have shape "
            f"{features.shape}, but the manifest has {manifest.n_rows} rows of "
            f"{manifest.n_features} features; restore the metadata, or write the store again"
        )
    return OpenedStore(location, node, array, features, manifest)


def store_of(path: Place) -> Location:
    """Return the store that contains the array `features` at `path`; otherwise `path` itself."""
    location = locate(path)
    inside = location.url.endswith(f"/{FEATURES}")
    if not inside or isinstance(arrays.open_node(location, _STORE), zarr.Group):
        return location
    for parent in location.parents()[:1]:  # a bucket has no parent
        try:
            return parent if isinstance(arrays.open_node(parent, _STORE), zarr.Group) else location
        except UnreachableError:
            raise
        except StoreError:  # the array is in a plain folder
            return location
    return location


def open_features_store(path: Place) -> arrays.StoredArray:
    """Open the features of a store; raise if they are incomplete or not a table of floats."""
    return open_traced_features(path)[0]


def open_traced_features(path: Place) -> tuple[arrays.StoredArray, str]:
    """Open the features like `open_features_store`; also return the digest of their files.

    The files are looked up only once.
    """
    store = open_store(path)
    _check_finished(store)
    stored = store.features
    check_features_like(stored.shape, stored.dtype, f"{_STORE} {stored.location.url}")
    return stored, arrays.check_complete(stored, store.array, _STORE).digest


def _check_finished(store: OpenedStore) -> None:
    """Raise if the store was not written completely; the message lists the missing blocks."""
    manifest = store.manifest
    missing = []
    if manifest is not None:
        missing = missing_blocks(store.location, arrays.MOST_COUNTED)
    complete = store.group is None or store.group.attrs.get("complete", True) is True
    if complete and not missing:
        return
    if manifest is None or not missing:
        raise StoreError(
            f"the features store {store.location} is incomplete: its writer was interrupted; "
            "write it again"
        )
    named = ", ".join(str(block) for block in missing[:_FEW_NAMED])
    more = ", ..." if len(missing) > _FEW_NAMED else ""
    at_least = "at least " if len(missing) == arrays.MOST_COUNTED else ""
    raise StoreError(
        f"the features store {store.location} is incomplete: {at_least}{len(missing)} of "
        f"{manifest.n_blocks} blocks are missing ({named}{more}); write it again"
    )


def has_truth(path: Place) -> bool:
    """Return whether the store contains true labels of its rows."""
    location = locate(path)
    node = arrays.open_node(location, _STORE)
    return isinstance(node, zarr.Group) and arrays.has_member(node, location, LABELS)


def open_ids(path: Place) -> arrays.StoredArray | None:
    """Open the ids of the rows of a store; None if the store has no ids."""
    location = locate(path)
    node = arrays.open_node(location, _STORE)
    if not isinstance(node, zarr.Group) or not arrays.has_member(node, location, IDS):
        return None
    array, n_rows = arrays.member(node, location, IDS), open_store(location).features.shape[0]
    ids = arrays.describe(array, location / IDS)
    if ids.shape != (n_rows,):
        raise StoreError(
            f"{ids.location} must have one id per row, got shape {ids.shape} for {n_rows} rows; "
            "write the ids again"
        )
    arrays.check_complete(ids, array, "the ids")
    return ids


@dataclass(frozen=True)
class StoredOrigins:
    """The positions of the rows of a store in its source files."""

    sources: tuple[SourceFile, ...]
    rows: arrays.StoredArray | None  # None: row i of the store is row i of the only file
    numbers: arrays.StoredArray | None  # positions among `sources`

    @property
    def files(self) -> tuple[str, ...]:
        """Paths of the source files."""
        return tuple(source.path for source in self.sources)

    def read(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """Return the source rows and the positions of the source files of rows start..stop-1."""
        if self.rows is None or self.numbers is None:
            return np.arange(start, stop, dtype=np.int64), np.zeros(stop - start, np.int32)
        rows, numbers = (
            arrays.read_rows(stored, start, stop, "the source rows")
            for stored in (self.rows, self.numbers)
        )
        known = (rows >= 0) & (numbers >= 0) & (numbers < len(self.sources))
        if not known.all():
            i = int(np.argmin(known))
            raise StoreError(
                f"row {start + i} of {self.rows.location} and {self.numbers.location} refers to "
                f"row {rows[i]} of source file {numbers[i]}, but the store has "
                f"{len(self.sources)} source file(s); the arrays are damaged: restore them, or "
                "write the store again"
            )
        return rows, numbers


def open_origins(path: Place) -> StoredOrigins | None:
    """Open the positions of the rows in the source files; None if the store does not have them.

    Stores of earlier versions and of other software do not have them.
    """
    location = locate(path)
    node = arrays.open_node(location, _STORE)
    manifest = manifest_in(node, location) if isinstance(node, zarr.Group) else None
    if not isinstance(node, zarr.Group) or manifest is None or not manifest.sources:
        return None
    if all(arrays.has_member(node, location, name) for name in _ORIGINS):
        rows, numbers = (
            _open_numbers(node, location, name, dtype, manifest.n_rows)
            for name, dtype in _ORIGINS.items()
        )
        return StoredOrigins(manifest.sources, rows, numbers)
    same = node.attrs.get(SAME_ROWS) is True
    return StoredOrigins(manifest.sources, None, None) if same else None


def _open_numbers(
    group: zarr.Group, location: Location, name: str, dtype: str, n_rows: int
) -> arrays.StoredArray:
    stored = arrays.describe(arrays.member(group, location, name), location / name)
    if (stored.shape, stored.dtype) != ((n_rows,), np.dtype(dtype)):
        raise StoreError(
            f"{stored.location} must have one {dtype} per row, got shape {stored.shape} and dtype "
            f"{stored.dtype.str} for {n_rows} rows; write the store again"
        )
    return stored


def has_origins(path: Place) -> bool:
    """Return whether a store, complete or not, was created with the positions of source rows."""
    return SAME_ROWS in arrays.open_node(path, _STORE).attrs


def read_encoded(path: Place) -> dict[str, Any] | None:
    """Read the encoder and input that the features were computed with; None if not recorded."""
    try:
        encoded: Any = arrays.open_node(path, _STORE).attrs.get(ENCODED)
    except StoreError:  # the store may have been removed, or written by other software
        return None
    return encoded if isinstance(encoded, dict) else None


def value_names(path: Place) -> tuple[str, ...]:
    """Return which arrays of values per row, labels and ids, a store contains."""
    location = locate(path)
    node = arrays.open_node(location, _STORE)
    if not isinstance(node, zarr.Group):
        return ()
    return tuple(name for name in (LABELS, IDS) if arrays.has_member(node, location, name))


def describe_left(what: str, names: Sequence[str]) -> str:
    """Return a note about the arrays of `value_names` that a copy of a store does not contain."""
    options = " ".join(f"--{name} {name}" for name in names)
    fields = ", ".join(f'{name}="{name}"' for name in names)
    return (
        f"the {' and the '.join(names)} of {what} are not copied; `scrlm ingest` copies them with "
        f"{options} (IngestConfig({fields}))"
    )


def is_shuffled(path: Place) -> bool | None:
    """Return whether the rows, or those of a store that they were copied from, were shuffled.

    `path` is a store or its array `features`. None: the store cannot be read, for example because
    it was removed.
    """
    try:
        location = store_of(path)
        node = arrays.open_node(location, _STORE)
        manifest = manifest_in(node, location) if isinstance(node, zarr.Group) else None
    except StoreError:
        return None
    if manifest is not None and node.attrs.get(SHUFFLED) is True:
        return True
    # stores of earlier versions do not have the attribute
    settings = None if manifest is None else manifest.request.get("ingest")
    return isinstance(settings, dict) and settings.get("shuffle") is True


def check_features_like(shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> None:
    """Raise unless shape and dtype are those of a non-empty 2-D table of floats."""
    if len(shape) != 2:
        raise InputError(
            f"{what} must have 2 dimensions (rows x features), got {len(shape)} dimension(s)"
        )
    if shape[0] < 1 or shape[1] < 1:
        raise InputError(f"{what} must have at least one row and one feature, got shape {shape}")
    if dtype.kind != "f":
        raise InputError(
            f"{what} must be float16, float32 or float64, got {dtype}; "
            "convert it with .astype('float32')"
        )


def block_rows_for(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    chunk_rows: int | None,
    target_bytes: int | None = None,
) -> int:
    """Return the number of rows per block, for blocks of about `target_bytes`.

    If `chunk_rows` is given, a block consists of whole chunks. The default of `target_bytes` is
    64 MiB, and less for small features, so that several workers can share the work. The number of
    workers has no influence, because results must not depend on it.
    """
    n_rows, n_features = shape
    if target_bytes is None:
        share = n_rows * n_features * dtype.itemsize // _FEW_BLOCKS
        target_bytes = min(TARGET_BLOCK_BYTES, max(share, _SMALL_BLOCK_BYTES))
    fitting = max(1, target_bytes // (n_features * dtype.itemsize))
    if chunk_rows is not None:
        fitting = chunk_rows * max(1, fitting // chunk_rows)
    return min(fitting, n_rows)


def create_features_store(
    path: Place,
    manifest: Manifest,
    *,
    labels: bool = False,
    ids: str | None = None,
    origins: bool = False,
    attributes: dict[str, Any] | None = None,
) -> Location:
    """Create an empty features store as described by the manifest, marked incomplete.

    `labels` adds an array for true labels; `ids` ("int64" or "str") adds one for ids of that dtype.
    `origins` adds arrays for the positions of the rows in the source files.
    """
    _check_types(manifest.dtype, ids)
    location = locate(path)
    given = attributes or {}
    own = {KIND: FEATURES_KIND, **describe_owner(location), "complete": False}
    arrays.create_group(location, {**given, **own})
    n_rows, n_features, rows = manifest.n_rows, manifest.n_features, manifest.block_rows
    shape, chunks = (n_rows, n_features), (rows, n_features)
    arrays.create_array(location / FEATURES, shape, chunks, manifest.dtype, np.nan)
    if labels:
        arrays.create_array(location / LABELS, (n_rows,), (rows,), "int32", MISSING_LABEL)
    if ids is not None:
        arrays.create_array(location / IDS, (n_rows,), (rows,), ids, "" if ids == "str" else 0)
    if origins:
        for name, dtype in _ORIGINS.items():
            arrays.create_array(location / name, (n_rows,), (rows,), dtype, -1)
    # written last, so that a group with a manifest contains all its arrays
    create_manifest(location, manifest)
    return location


def _check_types(dtype: str, ids: str | None) -> None:
    if dtype not in STORED_DTYPES or ids not in (None, *IDS_DTYPES):
        raise InputError(
            f"features of {dtype} with ids of {ids} cannot be written; features must be "
            f"{' or '.join(STORED_DTYPES)}, ids {' or '.join(IDS_DTYPES)}"
        )


def write_features_block(
    path: Place,
    start: int,
    features: NDArray[Any],
    labels: NDArray[np.int32] | None = None,
    ids: NDArray[Any] | None = None,
    source_row: NDArray[np.int64] | None = None,
    source_file: NDArray[np.int32] | None = None,
) -> None:
    """Write the block that starts at row `start`, then its digest, which marks it complete.

    The group is not opened: its attributes may name thousands of source files and labels.
    """
    location = locate(path)
    given = {FEATURES: features, LABELS: labels, IDS: ids}
    given |= {SOURCE_ROW: source_row, SOURCE_FILE: source_file}
    written = {name: values for name, values in given.items() if values is not None}
    check_owner(location)
    for name, values in written.items():
        stored_dtype = arrays.open_array(location / name, _STORE).dtype
        if values.dtype != stored_dtype:
            # Zarr would convert silently, and the digest would not match the stored values
            raise InputError(
                f"{name} of {values.dtype} cannot be written to {location}, whose {name} are "
                f"{stored_dtype}; convert them first"
            )
        arrays.write_rows(location / name, start, values)
    block_rows = arrays.open_array(location / FEATURES, _STORE).chunks[0]
    # check again: a digest must not vouch for a block of which another process wrote a part
    check_owner(location)
    write_digest(location, start // block_rows, *written.values())


def _open_group(location: Location) -> zarr.Group:
    group = arrays.open_node(location, _STORE)
    assert isinstance(group, zarr.Group)
    return group


def covered_arrays(path: Place) -> tuple[arrays.StoredArray, ...]:
    """Open the arrays that the digests of a store cover.

    These arrays are the features and, if the store has them, the labels, the ids, and the positions
    in the source files.
    """
    location = locate(path)
    places = [location / name for name in _COVERED if (location / name / _METADATA).is_file()]
    return tuple(arrays.describe(arrays.open_array(place, _STORE), place) for place in places)


def block_arrays(path: Place, start: int, stop: int) -> tuple[NDArray[Any], ...]:
    """Read rows start..stop-1 of the arrays that the digests of a store cover."""
    return read_block(covered_arrays(path), start, stop)


def read_block(
    covered: Sequence[arrays.StoredArray], start: int, stop: int
) -> tuple[NDArray[Any], ...]:
    """Read rows start..stop-1 of several arrays."""
    return tuple(arrays.read_rows(array, start, stop, _STORE) for array in covered)


def mark_complete(path: Place) -> None:
    """Mark a store as complete; call this last, because readers reject incomplete stores."""
    location = locate(path)
    check_owner(location)
    arrays.set_attribute(location, "complete", True, remove=OWNER)


def read_true_sigmas(path: Place) -> NDArray[np.float64] | None:
    """Read the sigmas of the mixture that the rows were drawn from; None if they are unknown."""
    location = locate(path)
    node = arrays.open_node(location, _STORE)
    if not isinstance(node, zarr.Group) or not arrays.has_member(node, location, f"{TRUE}sigmas"):
        return None
    return arrays.read_member(node, location, f"{TRUE}sigmas", _STORE)


def open_weights(location: Location) -> arrays.StoredArray | NpyColumn:
    """Open sample weights in a .npy file or a Zarr array without reading the values."""
    if location.url.endswith(".npy"):
        column = open_npy_column(location, WEIGHTS)
        check_weights_like(column.shape, column.dtype, f"{WEIGHTS} {location}")
        return column
    node = arrays.open_node(location, WEIGHTS)
    if not isinstance(node, zarr.Array):
        raise StoreError(
            f"{WEIGHTS} {location} must be an array, got a Zarr group; give the path of the array "
            "itself"
        )
    stored = arrays.describe(node, location)
    check_weights_like(stored.shape, stored.dtype, f"{WEIGHTS} {location}")
    arrays.check_complete(stored, node, WEIGHTS)
    return stored


def check_weights_like(shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> None:
    """Raise unless shape and dtype are those of a 1-D array of numbers."""
    if len(shape) != 1 or dtype.kind not in "fiub":
        raise InputError(
            f"{what} must be a 1-D array with one number per row, got shape {shape} and dtype "
            f"{dtype}"
        )


def unfinished_manifest(location: Location) -> Manifest | None:
    """Read the manifest of an incomplete features store; None if there is no such store."""
    return read_manifest(location) if is_unfinished(location) else None


def is_unfinished(location: Location) -> bool:
    """Return whether `location` is a features store of this package that is marked incomplete."""
    if not (location / _METADATA).is_file():
        return False
    try:
        attributes = arrays.open_node(location, "the output").attrs
    except StoreError:
        return False
    return attributes.get(KIND) == FEATURES_KIND and attributes.get("complete") is False


def read_label_names(location: Location) -> tuple[str, ...] | None:
    """Read the class names of the labels; None if the labels have no names."""
    return label_names_in(arrays.open_node(location, _STORE))


def label_names_in(node: zarr.Array[Any] | zarr.Group) -> tuple[str, ...] | None:
    """Return the class names of the labels of an open store; None if the labels have no names."""
    names: Any = node.attrs.get(LABEL_NAMES)
    return tuple(str(name) for name in names) if isinstance(names, list) else None


def read_dropped(location: Location) -> NDArray[np.int64] | None:
    """Read the numbers of the dropped rows; None if they have not been written yet."""
    group = _open_group(location)
    if group.attrs.get(DROPPED) == 0:
        return np.empty(0, np.int64)
    if not arrays.has_member(group, location, DROPPED):
        return None
    rows = arrays.read_member(group, location, DROPPED, _STORE)
    return rows.astype(np.int64, copy=False) if len(rows) == group.attrs.get(DROPPED) else None
