"""The manifest of a features store: what it must hold, and a digest of each block that it does.

What was asked for stands in the group's attributes; the digests are a small array beside the
features, one chunk a block. A chunk is written in one step on any store, so a block that has a
digest is done, and whoever writes a store can be stopped at any time and asked later how far it
came.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from scrlm_dask.errors import StoreError
from scrlm_dask.storage.arrays import (
    OUR_FORMAT,
    create_array,
    describe,
    member,
    missing_chunks,
    open_node,
    read_rows,
    write_rows,
)
from scrlm_dask.storage.locations import Location, Place, locate, reaching

MANIFEST, DIGESTS = "manifest", "digests"
FORMAT = 1
_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class SourceFile:
    """A file that rows came from. Its size tells later whether it is still the same."""

    path: str
    bytes: int


@dataclass(frozen=True)
class Manifest:
    """What a features store holds when it is complete, and what was asked of its writer."""

    n_rows: int
    n_features: int
    dtype: str
    block_rows: int
    sources: tuple[SourceFile, ...]
    request: dict[str, Any]

    @property
    def n_blocks(self) -> int:
        return -(-self.n_rows // self.block_rows)

    def rows_of(self, block: int) -> range:
        start = block * self.block_rows
        return range(start, min(start + self.block_rows, self.n_rows))


def create_manifest(place: Place, manifest: Manifest) -> None:
    """Write the manifest into the group at `place`, with no block done yet."""
    location = locate(place)
    with reaching(location):
        group = zarr.open_group(location.store(), mode="r+", zarr_format=OUR_FORMAT)
        group.attrs[MANIFEST] = {"format": FORMAT, **asdict(manifest)}
    shape = (manifest.n_blocks, _DIGEST_BYTES)
    create_array(location / DIGESTS, shape, (1, _DIGEST_BYTES), "uint8", 0)


def read_manifest(place: Place) -> Manifest | None:
    """The manifest of a features store; None for stores that others wrote."""
    node = open_node(place, "the features store")
    return None if isinstance(node, zarr.Array) else manifest_in(node)


def manifest_in(group: zarr.Group) -> Manifest | None:
    """`read_manifest` for those who have opened the group already."""
    content: Any = group.attrs.get(MANIFEST)
    if not isinstance(content, dict) or DIGESTS not in group:
        return None
    fields = {name: value for name, value in content.items() if name != "format"}
    try:
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']}, read here: {FORMAT}")
        sources = tuple(SourceFile(**source) for source in fields.pop("sources"))
        return Manifest(**fields, sources=sources)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"the manifest of the features store {group.store_path} was written by another version "
            f"or changed by hand ({error}); write the store again with this one"
        ) from error


def short_digest(*arrays: NDArray[Any]) -> str:
    """Enough of a digest to tell a few things apart by name."""
    return digest_arrays(*arrays).hex()[:12]


def digest_arrays(*arrays: NDArray[Any]) -> bytes:
    """SHA-256 of arrays as they are stored: types, shapes, and elements in C order, little endian.

    Of the standard library's digests it is the fastest on CPUs that have instructions for it, and
    there are few without: 1.4 GB/s a core, where blake2b has 0.7.
    """
    digest = hashlib.sha256()
    for array in arrays:
        text = array.dtype.kind == "T"
        stored = array if text else array.astype(array.dtype.newbyteorder("<"), "C", copy=False)
        # without types and shapes, rows could move from one array to the next unnoticed
        digest.update(f"{'T' if text else stored.dtype.str}{stored.shape}".encode())
        digest.update(_text_bytes(stored) if text else _bytes_of(stored))
    return digest.digest()


def write_digest(place: Place, block: int, *arrays: NDArray[Any]) -> None:
    """Say that a block is done: called after its arrays were written, and by nobody else."""
    digest = np.frombuffer(digest_arrays(*arrays), np.uint8)
    write_rows(locate(place) / DIGESTS, block, digest[None, :])


def missing_blocks(place: Place) -> list[int]:
    """Numbers of the blocks that have no digest, rising: they are still to be written."""
    location = locate(place)
    return [chunk.row for chunk in missing_chunks(location / DIGESTS, _digests(location))]


def check_digest(place: Place, block: int, *arrays: NDArray[Any]) -> None:
    """Refuse a block whose arrays, as they were read, are not those that were written."""
    location = locate(place)
    manifest = read_manifest(location)
    if manifest is None:
        raise StoreError(
            f"the features store {location} has no manifest to check its blocks against"
        )
    stored = describe(_digests(location), location / DIGESTS)
    expected = read_rows(stored, block, block + 1, "the digests").tobytes()
    if digest_arrays(*arrays) != expected:
        rows = manifest.rows_of(block)
        raise StoreError(
            f"block {block} (rows {rows.start} to {rows.stop - 1}) of the features store "
            f"{location} is not what was written: its digest differs; restore the files or write "
            "the store again"
        )


def _digests(location: Location) -> zarr.Array[Any]:
    node = open_node(location, "the features store")
    if isinstance(node, zarr.Array):
        raise StoreError(
            f"{location} is an array and has no manifest; give the group that holds it"
        )
    return member(node, location, DIGESTS)


def _text_bytes(array: NDArray[Any]) -> bytes:
    """Strings with their lengths, so that moving a border between two of them is noticed."""
    encoded = [str(text).encode() for text in array.ravel()]
    lengths = np.array([len(text) for text in encoded], "<i8")
    return lengths.tobytes() + b"".join(encoded)


def _bytes_of(array: NDArray[Any]) -> Any:
    """The array's memory: no copy is made of the block."""
    return array.reshape(-1).view(np.uint8)


def describe_changes(before: Manifest, now: Manifest) -> list[str]:
    """Describe how the request and the sources of `now` differ from those of `before`."""
    old, new = _flatten(before), _flatten(now)
    named = [
        f"{name} was {old.get(name)} and is {new.get(name)}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    old_files = {file.path: file.bytes for file in before.sources}
    files = {file.path: file.bytes for file in now.sources}
    named += [f"{path} was not there" for path in files if path not in old_files]
    named += [f"{path} was there" for path in old_files if path not in files]
    named += [
        f"{path} had {old_files[path]} bytes and has {n_bytes}"
        for path, n_bytes in files.items()
        if old_files.get(path, n_bytes) != n_bytes
    ]
    if not named and list(old_files) != list(files):
        named.append("the sources come in another order")
    return named


def _flatten(manifest: Manifest) -> dict[str, Any]:
    content: dict[str, Any] = {
        "features": manifest.n_features,
        "stored dtype": manifest.dtype,
        "rows of a block": manifest.block_rows,
    }
    for part, values in manifest.request.items():
        if isinstance(values, dict):
            content |= {f"{part} {name}": value for name, value in values.items()}
        else:
            content[part] = values
    return content
