"""Describe and identify features stores without reading their rows."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import zarr

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.storage import arrays, feature_store
from scrlm_dask.storage.locations import (
    Location,
    Place,
    TrustedOrigins,
    locate,
    locate_recorded,
)
from scrlm_dask.storage.manifest import Manifest, missing_blocks, read_digests
from scrlm_dask.storage.traces import Input

_FILES = "files_digest"  # attribute: `files_of_features` when the digests were written or verified


@dataclass(frozen=True)
class StoreInfo:
    """Metadata of a features store, complete or not.

    Attributes
    ----------
    location : Location
        Location of the store.
    features : StoredArray
        Location, shape, type and chunks of the features.
    inner_chunks : tuple of int or None
        Chunks inside shards; None without shards.
    zarr_format : int
        Version of the Zarr format.
    codecs : tuple of str
        Codecs of the chunks in their order.
    has_checksums : bool
        Whether reading a chunk detects a changed byte.
    n_chunks, n_missing_chunks : int
        Number of chunks, and of chunks without a file; at most a million of these are counted.
    stored_bytes : int
        Size of all files of the features, also behind symbolic links.
    marked_complete : bool or None
        Mark of the writer; None if the writer leaves no mark.
    missing_blocks : tuple of int
        Blocks of the manifest without a digest, at most a million.
    manifest : Manifest or None
        Manifest of the store, if it has one.
    labels, ids : str or None
        Types of the labels and of the ids, if the store has them.
    label_names : tuple of str or None
        Texts that the labels represent, if labels were texts.
    has_source_rows : bool
        Whether the source file of each row, and its row number there, are known.
    """

    location: Location
    features: arrays.StoredArray
    inner_chunks: tuple[int, ...] | None
    zarr_format: int
    codecs: tuple[str, ...]
    has_checksums: bool
    n_chunks: int
    n_missing_chunks: int
    stored_bytes: int
    marked_complete: bool | None
    missing_blocks: tuple[int, ...]
    manifest: Manifest | None
    labels: str | None
    label_names: tuple[str, ...] | None
    ids: str | None
    has_source_rows: bool

    @property
    def url(self) -> str:
        """Absolute path or URL of the store."""
        return self.location.url

    @property
    def is_complete(self) -> bool:
        """Return whether no block and no chunk is known to be missing."""
        unfinished = self.marked_complete is False or self.missing_blocks
        return not unfinished and self.n_missing_chunks == 0

    @property
    def raw_bytes(self) -> int:
        """Size of the features in memory."""
        rows, features = self.features.shape
        return rows * features * self.features.dtype.itemsize


def describe_store(path: Place) -> StoreInfo:
    """Describe a features store, complete or not, without reading its rows."""
    store = feature_store.open_store(path)
    location, group, array, stored = store.location, store.group, store.array, store.features
    what = f"the features store {stored.location.url}"
    feature_store.check_features_like(stored.shape, stored.dtype, what)
    files = arrays.trace_chunks(stored.location, array)
    codecs = _codecs(array)
    complete: Any = group.attrs.get("complete") if group is not None else None
    missing = [] if store.manifest is None else missing_blocks(location, arrays.MOST_COUNTED)
    return StoreInfo(
        location=location,
        features=stored,
        inner_chunks=tuple(array.chunks) if array.shards else None,
        zarr_format=array.metadata.zarr_format,
        codecs=tuple(codec.name for codec in codecs),
        has_checksums=any(codec.has_checksum for codec in codecs),
        n_chunks=files.n_chunks,
        n_missing_chunks=files.n_missing,
        stored_bytes=files.n_bytes,
        marked_complete=None if complete is None else complete is True,
        missing_blocks=tuple(missing),
        manifest=store.manifest,
        labels=_dtype_of(store, feature_store.LABELS),
        label_names=None if group is None else feature_store.label_names_in(group),
        ids=_dtype_of(store, feature_store.IDS),
        has_source_rows=feature_store.open_origins(location) is not None,
    )


@dataclass(frozen=True)
class _Codec:
    name: str
    settings: dict[str, Any]

    @property
    def has_checksum(self) -> bool:
        # gzip always contains a checksum, zstd optionally
        name = self.name.removeprefix("numcodecs.")
        return name in ("crc32c", "gzip") or (
            name == "zstd" and self.settings.get("checksum") is True
        )


def _codecs(array: zarr.Array[Any]) -> list[_Codec]:
    """Return the codecs of chunks in order; codecs inside shards come last."""
    metadata: dict[str, Any] = array.metadata.to_dict()
    if metadata["zarr_format"] == 2:
        steps = [*(metadata["filters"] or ()), metadata["compressor"]]
        return [_Codec(str(step["id"]), step) for step in steps if step is not None]
    codecs: list[_Codec] = []
    for codec in metadata["codecs"]:
        inner = codec.get("configuration", {}).get("codecs", ())
        for step in (codec, *inner):
            codecs.append(_Codec(str(step["name"]), step.get("configuration", {})))
    return codecs


def _dtype_of(store: feature_store.OpenedStore, name: str) -> str | None:
    node = None if store.group is None else arrays.child(store.group, store.location, name)
    if not isinstance(node, zarr.Array):
        return None
    return "str" if node.dtype.kind == "T" else str(node.dtype)


def features_digest(place: Place, files: str | None = None) -> str:
    """Return a digest of the features' metadata and of the block digests in the manifest.

    If the store has no manifest, return `files_of_features`, or `files` if it is already known.
    """
    store = feature_store.open_store(place)
    if store.group is None or store.manifest is None:
        return files or _trace(store)
    metadata = json.dumps(store.array.metadata.to_dict(), default=str).encode()
    digests = read_digests(store.group, store.location, slice(None))
    return hashlib.sha256(metadata + digests.tobytes()).hexdigest()


def mark_features_complete(place: Place) -> None:
    """Mark a features store as complete, and record its files; call this last."""
    record_files(place, files_of_features(place))
    feature_store.mark_complete(place)


def record_files(place: Place, files: str) -> None:
    """Record `files_of_features` of files whose rows match the digests of the manifest."""
    arrays.set_attribute(locate(place), _FILES, files)


def digests_are_current(place: Place, files: str) -> bool:
    """Return whether `files` are the files that the digests of the manifest belong to.

    A store without a manifest has no digests.
    """
    store = feature_store.open_store(place)
    if store.group is None or store.manifest is None:
        return True
    return store.group.attrs.get(_FILES) == files


@dataclass(frozen=True)
class RecordedFeatures:
    """Path and digest of a features store, as recorded with the labels of its rows."""

    path: str
    digest: str | None  # None: recorded by an earlier version
    shuffled: bool | None = None  # None: not known when the labels were written

    def were_shuffled(self, trusted: TrustedOrigins) -> bool:
        """Return whether the labelled rows were shuffled during ingest.

        If this was not recorded, look it up in the store, unless the store has changed.
        """
        if self.shuffled is not None:
            return self.shuffled
        try:
            location = locate_recorded(self.path, trusted)
            if self.digest is not None:
                self.open_unchanged(location)
        except (StoreError, InputError):
            return False
        return feature_store.is_shuffled(location) is True

    def open_unchanged(self, location: Location) -> Input:
        """Return the store as an input; raise if it has changed since its rows were labelled.

        A store that was written again may have other rows, or its rows in another order.
        """
        found = Input("the features store", location, features_digest(location), features_digest)
        if found.digest != self.digest:
            raise StoreError(
                f"the features store {location} has changed since its rows were labelled, and may "
                "now have other rows or another order"
            )
        return found


def features_in(record: dict[str, Any]) -> RecordedFeatures | None:
    """Return the features in the record of a run; None if they were an array in memory."""
    content = record.get("features")
    if not isinstance(content, dict) or content.get("path") is None:
        return None
    shuffled = record.get("features_shuffled")
    return RecordedFeatures(
        str(content["path"]),
        content.get("digest"),
        shuffled if isinstance(shuffled, bool) else None,
    )


def files_of_features(place: Place) -> str:
    """Return a digest of the metadata and of the traces of the files of the features.

    Every write changes this digest. Restoring a file with the same content also changes it; the
    block digests in the manifest can then verify the content.
    """
    return _trace(feature_store.open_store(place))


def _trace(store: feature_store.OpenedStore) -> str:
    return arrays.trace_chunks(store.features.location, store.array).digest
