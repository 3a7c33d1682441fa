"""Whether what lies at a place is still what lay there: digests that read no rows."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import zarr

from scrlm_dask.storage.arrays import describe, member, open_node, read_rows
from scrlm_dask.storage.features import FEATURES, features_in
from scrlm_dask.storage.locations import Location, Place, locate, reaching
from scrlm_dask.storage.manifest import DIGESTS, manifest_in

# what tells that a file was written again, by the names that file systems have for it
_TRACES = ("ETag", "mtime", "LastModified", "last_modified", "updated", "created")


def features_digest(place: Place) -> str:
    """A digest of the features' metadata and of the manifest's digests.

    A store without a manifest is known by the features' files: their names, sizes and times.
    """
    url = locate(place)
    node = open_node(url, "the features store")
    array = features_in(node, url)
    digest = hashlib.sha256(json.dumps(array.metadata.to_dict(), default=str).encode())
    if isinstance(node, zarr.Group) and manifest_in(node) is not None:
        stored = describe(member(node, url, DIGESTS), url / DIGESTS)
        digest.update(read_rows(stored, 0, stored.shape[0], "the digests").tobytes())
    else:
        digest.update(_traces(_features_url(node, url)))
    return digest.hexdigest()


def features_traces(place: Place) -> str:
    """A digest of the names, sizes and times of the features' files: tells that one was written.

    A file that was restored has other traces and the same content, which the manifest knows.
    """
    url = locate(place)
    return files_digest(_features_url(open_node(url, "the features store"), url))


def _features_url(node: zarr.Array[Any] | zarr.Group, url: Location) -> Location:
    """Where the array lies: labels and others that come and go beside it are no matter."""
    return url / FEATURES if isinstance(node, zarr.Group) else url


def files_digest(place: Place) -> str:
    """A digest of the names, sizes and times of a file, or of all files of a folder."""
    return hashlib.sha256(_traces(locate(place))).hexdigest()


def _traces(url: Location) -> bytes:
    with reaching(url):
        filesystem, root = url.filesystem()
        found: dict[str, dict[str, Any]] = filesystem.find(root, detail=True)
    lines = []
    for name, info in sorted(found.items()):
        trace = next((info[key] for key in _TRACES if info.get(key)), None)
        lines.append(f"{name.removeprefix(root)} {info['size']} {trace}")
    return "\n".join(lines).encode()
