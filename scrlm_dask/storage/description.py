"""What can be said of a features store without reading its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import zarr

from scrlm_dask.storage.arrays import StoredArray, describe, open_node
from scrlm_dask.storage.chunks import chunks_of, missing_chunks
from scrlm_dask.storage.features import FEATURES, IDS, LABELS, check_features_like, features_in
from scrlm_dask.storage.locations import Location, Place, locate, reaching
from scrlm_dask.storage.manifest import Manifest, manifest_in, missing_blocks


@dataclass(frozen=True)
class Description:
    """A features store as it lies there, finished or not."""

    location: Location
    features: StoredArray
    inner_chunks: tuple[int, ...] | None  # of the chunks inside shards, where there are shards
    zarr_format: int
    codecs: tuple[str, ...]
    n_chunks: int
    n_missing_chunks: int
    stored_bytes: int  # of all files of the features
    marked_complete: bool | None  # None: its writer leaves no mark
    missing_blocks: tuple[int, ...]  # blocks of the manifest that have no digest
    manifest: Manifest | None
    labels: str | None  # their type, if it has some
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

    @property
    def has_checksums(self) -> bool:
        return "crc32c" in self.codecs


def describe_store(path: Place) -> Description:
    """Look at the store without reading a row; unfinished ones are described, not refused."""
    url = locate(path)
    node = open_node(url, "the features store")
    array = features_in(node, url)
    stored = describe(array, url if array is node else url / FEATURES)
    check_features_like(stored.shape, stored.dtype, f"the features store {stored.url}")
    group = node if isinstance(node, zarr.Group) else None
    manifest = manifest_in(group) if group is not None else None
    with reaching(url):
        filesystem, root = stored.location.filesystem()
        stored_bytes = int(filesystem.du(root))
    complete: Any = group.attrs.get("complete") if group is not None else None
    return Description(
        location=url,
        features=stored,
        inner_chunks=tuple(array.chunks) if array.shards else None,
        zarr_format=array.metadata.zarr_format,
        codecs=_codecs(array),
        n_chunks=len(chunks_of(array, 0, array.shape[0])),
        n_missing_chunks=len(missing_chunks(stored.location, array)),
        stored_bytes=stored_bytes,
        marked_complete=None if complete is None else complete is True,
        missing_blocks=() if manifest is None else tuple(missing_blocks(url)),
        manifest=manifest,
        labels=_dtype_of(group, LABELS),
        ids=_dtype_of(group, IDS),
    )


def _codecs(array: zarr.Array[Any]) -> tuple[str, ...]:
    """Names of what chunks pass through on their way to the disk, those inside shards last."""
    metadata: dict[str, Any] = array.metadata.to_dict()
    if metadata["zarr_format"] == 2:
        steps = [*(metadata["filters"] or ()), metadata["compressor"]]
        return tuple(str(step["id"]) for step in steps if step is not None)
    names: list[str] = []
    for codec in metadata["codecs"]:
        inner = codec.get("configuration", {}).get("codecs", ())
        names += [str(step["name"]) for step in (codec, *inner)]
    return tuple(names)


def _dtype_of(group: zarr.Group | None, name: str) -> str | None:
    node = group.get(name) if group is not None else None
    if not isinstance(node, zarr.Array):
        return None
    return "str" if node.dtype.kind == "T" else str(node.dtype)
