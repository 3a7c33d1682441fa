"""What can be said of a features store without reading its rows."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import zarr

from scrlm_dask.storage import arrays, feature_store
from scrlm_dask.storage.locations import Location, Place, locate, reaching
from scrlm_dask.storage.manifest import DIGESTS, Manifest, manifest_in, missing_blocks


@dataclass(frozen=True)
class Description:
    """A features store as it lies there, finished or not."""

    location: Location
    features: arrays.StoredArray
    inner_chunks: tuple[int, ...] | None  # of the chunks inside shards, where there are shards
    zarr_format: int
    codecs: tuple[str, ...]
    has_checksums: bool  # a flipped byte is noticed when a chunk is read
    n_chunks: int
    n_missing_chunks: int
    stored_bytes: int  # of all files of the features
    marked_complete: bool | None  # None: its writer leaves no mark
    missing_blocks: tuple[int, ...]  # blocks of the manifest that have no digest
    manifest: Manifest | None
    labels: str | None  # their type, if it has some
    label_names: tuple[str, ...] | None  # the texts that labels stand for, if they do
    ids: str | None

    @property
    def url(self) -> str:
        return self.location.url

    @property
    def is_complete(self) -> bool:
        """Nothing is known to be missing."""
        unfinished = self.marked_complete is False or self.missing_blocks
        return not unfinished and self.n_missing_chunks == 0

    @property
    def raw_bytes(self) -> int:
        rows, features = self.features.shape
        return rows * features * self.features.dtype.itemsize


def describe_store(path: Place) -> Description:
    """Look at the store without reading a row; unfinished ones are described, not refused."""
    location = locate(path)
    node = arrays.open_node(location, "the features store")
    array = feature_store.features_in(node, location)
    stored = arrays.describe(
        array, location if array is node else location / feature_store.FEATURES
    )
    feature_store.check_features_like(
        stored.shape, stored.dtype, f"the features store {stored.url}"
    )
    group = node if isinstance(node, zarr.Group) else None
    manifest = manifest_in(group) if group is not None else None
    with reaching(location):
        filesystem, root = stored.location.filesystem()
        stored_bytes = int(filesystem.du(root))
    codecs = _codecs(array)
    complete: Any = group.attrs.get("complete") if group is not None else None
    return Description(
        location=location,
        features=stored,
        inner_chunks=tuple(array.chunks) if array.shards else None,
        zarr_format=array.metadata.zarr_format,
        codecs=tuple(codec.name for codec in codecs),
        has_checksums=any(codec.has_checksum for codec in codecs),
        n_chunks=len(arrays.chunks_of(array, 0, array.shape[0])),
        n_missing_chunks=len(arrays.missing_chunks(stored.location, array)),
        stored_bytes=stored_bytes,
        marked_complete=None if complete is None else complete is True,
        missing_blocks=() if manifest is None else tuple(missing_blocks(location)),
        manifest=manifest,
        labels=_dtype_of(group, feature_store.LABELS),
        label_names=_label_names(group),
        ids=_dtype_of(group, feature_store.IDS),
    )


@dataclass(frozen=True)
class _Codec:
    name: str
    settings: dict[str, Any]

    @property
    def has_checksum(self) -> bool:
        # zstd has one in its frames if it is told to, gzip always
        name = self.name.removeprefix("numcodecs.")
        return name in ("crc32c", "gzip") or (
            name == "zstd" and self.settings.get("checksum") is True
        )


def _codecs(array: zarr.Array[Any]) -> list[_Codec]:
    """What chunks pass through on their way to the disk, those inside shards last."""
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


def _label_names(group: zarr.Group | None) -> tuple[str, ...] | None:
    names: Any = None if group is None else group.attrs.get(feature_store.LABEL_NAMES)
    return tuple(str(name) for name in names) if isinstance(names, list) else None


def _dtype_of(group: zarr.Group | None, name: str) -> str | None:
    node = group.get(name) if group is not None else None
    if not isinstance(node, zarr.Array):
        return None
    return "str" if node.dtype.kind == "T" else str(node.dtype)


# what tells that a file was written again, by the names that file systems have for it
_TRACES = ("ETag", "mtime", "LastModified", "last_modified", "updated", "created")


def features_digest(place: Place) -> str:
    """A digest of the features' metadata and of the manifest's digests.

    A store without a manifest is known by the features' files: their names, sizes and times.
    """
    location = locate(place)
    node = arrays.open_node(location, "the features store")
    array = feature_store.features_in(node, location)
    digest = hashlib.sha256(json.dumps(array.metadata.to_dict(), default=str).encode())
    if isinstance(node, zarr.Group) and manifest_in(node) is not None:
        stored = arrays.describe(arrays.member(node, location, DIGESTS), location / DIGESTS)
        digest.update(arrays.read_rows(stored, 0, stored.shape[0], "the digests").tobytes())
    else:
        digest.update(_mtimes(_features_location(node, location)))
    return digest.hexdigest()


def features_mtimes_digest(place: Place) -> str:
    """A digest of the names, sizes and times of the features' files: tells that one was written.

    A file that was restored has other traces and the same content, which the manifest knows.
    """
    location = locate(place)
    return files_digest(
        _features_location(arrays.open_node(location, "the features store"), location)
    )


def _features_location(node: zarr.Array[Any] | zarr.Group, location: Location) -> Location:
    """Where the array lies: labels and others that come and go beside it are no matter."""
    return location / feature_store.FEATURES if isinstance(node, zarr.Group) else location


def files_digest(place: Place) -> str:
    """A digest of the names, sizes and times of a file, or of all files of a folder."""
    return hashlib.sha256(_mtimes(locate(place))).hexdigest()


def _mtimes(location: Location) -> bytes:
    with reaching(location):
        filesystem, root = location.filesystem()
        found: dict[str, dict[str, Any]] = filesystem.find(root, detail=True)
    lines = []
    for name, info in sorted(found.items()):
        trace = next((info[key] for key in _TRACES if info.get(key)), None)
        lines.append(f"{name.removeprefix(root)} {info['size']} {trace}")
    return "\n".join(lines).encode()
