"""The features store: an array (rows, p) of floats, or a group that holds `features`.

A group may also hold `labels`, the truth, and `ids`, what the rows are called, for those who have
them. What is written here carries a manifest, too.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.storage import arrays
from scrlm_dask.storage.locations import Location, Place, locate, reaching
from scrlm_dask.storage.manifest import (
    Manifest,
    create_manifest,
    manifest_in,
    missing_blocks,
    read_manifest,
    write_digest,
)
from scrlm_dask.storage.npy_files import NpyColumn, open_npy_column
from scrlm_dask.storage.outputs import FEATURES_KIND, KIND

FEATURES, LABELS, IDS = "features", "labels", "ids"


LABEL_NAMES = "label_names"  # attribute: the texts that the labels 0, 1, ... stand for


ENCODED = "encoded"  # attribute: what the rows are, and which encoder made features of it


TRUE = "true_"  # prefix of the parameters of the mixture that rows were drawn from


MISSING_LABEL = -2  # fill of label arrays: neither a cluster nor an outlier


TARGET_BLOCK_BYTES = 64 * 2**20


STORED_DTYPES = ("float16", "float32")  # of features written here


IDS_DTYPES = ("int64", "str")


_SMALL_BLOCK_BYTES, _FEW_BLOCKS = 4 * 2**20, 16


_FEW_NAMED = 5


def open_features_store(path: Place) -> arrays.StoredArray:
    """Find the features and check that they can be used."""
    location = locate(path)
    node = arrays.open_node(location, "the features store")
    array = features_in(node, location)
    if isinstance(node, zarr.Array):
        return checked_features(array, location)
    _check_finished(node, location)
    return checked_features(array, location / FEATURES)


def features_in(node: zarr.Array[Any] | zarr.Group, location: Location) -> zarr.Array[Any]:
    """The array itself, or the one called `features` in a group."""
    if isinstance(node, zarr.Array):
        return node
    array = arrays.child(node, location, FEATURES)
    if not isinstance(array, zarr.Array):
        with warnings.catch_warnings(action="ignore"):  # Zarr's, of what is no array either
            found = ", ".join(sorted(node)) or "nothing"
        raise StoreError(
            f"the group {location} holds no array called {FEATURES!r} (it holds {found}); "
            "give the path of the array itself"
        )
    return array


def _check_finished(group: zarr.Group, location: Location) -> None:
    """Refuse a store whose writer did not come to its end, and say what is missing of it."""
    manifest = manifest_in(group)
    missing = missing_blocks(location) if manifest is not None else []
    if group.attrs.get("complete", True) is True and not missing:
        return
    if manifest is None or not missing:
        raise StoreError(
            f"the features store {location} is unfinished: whoever wrote it was stopped; write it "
            "again"
        )
    named = ", ".join(str(block) for block in missing[:_FEW_NAMED])
    more = ", ..." if len(missing) > _FEW_NAMED else ""
    raise StoreError(
        f"the features store {location} is unfinished: {len(missing)} of {manifest.n_blocks} "
        f"blocks are missing ({named}{more}); write it again"
    )


def has_truth(path: Place) -> bool:
    """Whether the store knows the true labels of its rows."""
    node = arrays.open_node(path, "the features store")
    return isinstance(node, zarr.Group) and LABELS in node


def open_ids(path: Place) -> arrays.StoredArray | None:
    """What the rows of a store are called, if it says so."""
    location = locate(path)
    node = arrays.open_node(location, "the features store")
    if not isinstance(node, zarr.Group) or IDS not in node:
        return None
    return arrays.describe(arrays.member(node, location, IDS), location / IDS)


def read_encoded(path: Place) -> dict[str, Any] | None:
    """Encoder and input of features that were encoded here."""
    try:
        node = arrays.open_node(path, "the features store")
    except StoreError:  # it may be gone, or of somebody else's making
        return None
    found: Any = node.attrs.get(ENCODED)
    return found if isinstance(found, dict) else None


def is_shuffled(path: Place) -> bool:
    """Whether the rows lie in another order than in the files that they came from."""
    try:
        node = arrays.open_node(path, "the features store")
    except StoreError:  # it may be gone, or of somebody else's making
        return False
    manifest = manifest_in(node) if isinstance(node, zarr.Group) else None
    return manifest is not None and manifest.request.get("ingest", {}).get("shuffle") is True


def checked_features(array: zarr.Array[Any], location: Place | None = None) -> arrays.StoredArray:
    stored = arrays.describe(array, location)
    check_features_like(stored.shape, stored.dtype, f"the features store {stored.url}")
    arrays.check_complete(stored, array, "the features store")
    return stored


def check_features_like(shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> None:
    """Refuse what is not a non-empty table of floats."""
    if len(shape) != 2:
        raise InputError(f"{what} has {len(shape)} dimension(s); features are rows x features")
    if shape[0] < 1 or shape[1] < 1:
        raise InputError(f"{what} has the shape {shape}; it needs at least one row and one feature")
    if dtype.kind != "f":
        raise InputError(
            f"{what} holds {dtype}; features are float16, float32 or float64: "
            "convert it with .astype('float32')"
        )


def block_rows_for(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    chunk_rows: int | None,
    target_bytes: int | None = None,
) -> int:
    """Rows of a block: near the target size, in whole chunks where there are chunks.

    A small store is cut into a few blocks all the same, so that there is work to share. The
    number of workers has no say: the bits must not depend on it.
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
    attributes: dict[str, Any] | None = None,
) -> Location:
    """Lay out an empty group as the manifest says, marked unfinished.

    With `labels` it has room for the truth, with `ids` (int64 or str) for the names of its rows.
    """
    if manifest.dtype not in STORED_DTYPES or ids not in (None, *IDS_DTYPES):
        raise InputError(
            f"features of {manifest.dtype} with ids of {ids} cannot be written; features are "
            f"{' or '.join(STORED_DTYPES)}, ids {' or '.join(IDS_DTYPES)}"
        )
    location = locate(path)
    given = attributes or {}
    arrays.create_group(location, {**given, KIND: FEATURES_KIND, "complete": False})
    n_rows, n_features, rows = manifest.n_rows, manifest.n_features, manifest.block_rows
    shape, chunks = (n_rows, n_features), (rows, n_features)
    arrays.create_array(location / FEATURES, shape, chunks, manifest.dtype, np.nan)
    if labels:
        arrays.create_array(location / LABELS, (n_rows,), (rows,), "int32", MISSING_LABEL)
    if ids is not None:
        arrays.create_array(location / IDS, (n_rows,), (rows,), ids, "" if ids == "str" else 0)
    # last: a group with a manifest has all its arrays
    create_manifest(location, manifest)
    return location


def write_features_block(
    path: Place,
    start: int,
    features: NDArray[Any],
    labels: NDArray[np.int32] | None = None,
    ids: NDArray[Any] | None = None,
) -> None:
    """Write the block that begins with row `start`, then its digest, which says that it is done."""
    location = locate(path)
    given = {FEATURES: features, LABELS: labels, IDS: ids}
    written = {name: values for name, values in given.items() if values is not None}
    group = arrays.open_node(location, "the features store")
    assert isinstance(group, zarr.Group)
    for name, values in written.items():
        if values.dtype != arrays.member(group, location, name).dtype:
            # Zarr would convert in silence, and the digest is of what is stored
            raise InputError(
                f"{name} of {values.dtype} do not go into {location}: convert them first"
            )
        arrays.write_rows(location / name, start, values)
    block_rows = arrays.member(group, location, FEATURES).chunks[0]
    write_digest(location, start // block_rows, *written.values())


def block_arrays(path: Place, start: int, stop: int) -> tuple[NDArray[Any], ...]:
    """Rows start..stop-1 of all that a digest covers: features, and labels and ids if present."""
    location = locate(path)
    group = arrays.open_node(location, "the features store")
    assert isinstance(group, zarr.Group)
    names = [name for name in (FEATURES, LABELS, IDS) if name in group]
    stored = [
        arrays.describe(arrays.member(group, location, name), location / name) for name in names
    ]
    return tuple(arrays.read_rows(array, start, stop, "the features store") for array in stored)


def mark_complete(path: Place) -> None:
    """The last write: readers refuse a store without it."""
    location = locate(path)
    with reaching(location):
        group = zarr.open_group(location.store(), mode="r+", zarr_format=arrays.OUR_FORMAT)
        group.attrs["complete"] = True


def read_true_sigmas(path: Place) -> NDArray[np.float64] | None:
    """Sigmas of the mixture that the store's rows were drawn from, if it says so."""
    node = arrays.open_node(path, "the features store")
    if not isinstance(node, zarr.Group) or f"{TRUE}sigmas" not in node:
        return None
    return arrays.read_member(node, path, f"{TRUE}sigmas", "the features store")


WHAT = "the sample weights"


def open_weights(location: Location) -> arrays.StoredArray | NpyColumn:
    """Weights in a .npy file or a Zarr array, of which nothing is read yet."""
    if location.url.endswith(".npy"):
        column = open_npy_column(location, WHAT)
        check_weights_like(column.shape, column.dtype, f"{WHAT} {location}")
        return column
    node = arrays.open_node(location, WHAT)
    if not isinstance(node, zarr.Array):
        raise StoreError(f"{WHAT} {location} are a Zarr group; give the path of the array itself")
    stored = arrays.describe(node, location)
    check_weights_like(stored.shape, stored.dtype, f"{WHAT} {location}")
    arrays.check_complete(stored, node, WHAT)
    return stored


def check_weights_like(shape: tuple[int, ...], dtype: np.dtype[Any], what: str) -> None:
    if len(shape) != 1 or dtype.kind not in "fiub":
        raise InputError(
            f"{what} have the shape {shape} and hold {dtype}; weights are one number a row"
        )


DROPPED = "dropped"  # numbers of the rows of the source that were left out; as attribute: how many


SHUFFLE = ".shuffle"  # folder of the runs of a shuffle, removed at the end


def unfinished_manifest(location: Location) -> Manifest | None:
    """The manifest of the store at `url`, if it was begun and is not complete."""
    return read_manifest(location) if says_unfinished(location) else None


def says_unfinished(location: Location) -> bool:
    """Whether a features store of ours is there that says it is not complete."""
    if not (location / "zarr.json").is_file():
        return False
    try:
        attributes = arrays.open_node(location, "the output").attrs
    except StoreError:
        return False
    return attributes.get(KIND) == FEATURES_KIND and attributes.get("complete") is False


def read_label_names(location: Location) -> tuple[str, ...] | None:
    """The texts that the store's labels stand for, if they do."""
    names: Any = arrays.open_node(location, "the features store").attrs.get(LABEL_NAMES)
    return None if names is None else tuple(str(name) for name in names)


def read_dropped(location: Location) -> NDArray[np.int64] | None:
    """Numbers of the rows that were left out; None if the writer was stopped before they stood."""
    group = arrays.open_node(location, "the features store")
    assert isinstance(group, zarr.Group)
    if group.attrs.get(DROPPED) == 0:
        return np.empty(0, np.int64)
    if DROPPED not in group:
        return None
    found = arrays.read_member(group, location, DROPPED, "the features store")
    return found.astype(np.int64, copy=False) if len(found) == group.attrs.get(DROPPED) else None
