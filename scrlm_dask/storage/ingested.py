"""What a features store keeps of its making while it is unfinished."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import zarr
from numpy.typing import NDArray

from scrlm_dask.errors import StoreError
from scrlm_dask.storage.arrays import open_node, read_member
from scrlm_dask.storage.manifest import Manifest, manifest_in
from scrlm_dask.storage.outputs import FEATURES_KIND, KIND

DROPPED = "dropped"  # numbers of the rows of the source that were left out; as attribute: how many
SHUFFLE = ".shuffle"  # folder of the runs of a shuffle, removed at the end


def unfinished_manifest(url: str) -> Manifest | None:
    """The manifest of the store at `url`, if it was begun and is not complete."""
    return manifest_in(zarr.open_group(url, mode="r")) if says_unfinished(url) else None


def says_unfinished(url: str) -> bool:
    """Whether a features store of ours is there that says it is not complete."""
    if "://" in url or not (Path(url) / "zarr.json").is_file():
        return False
    try:
        attributes = open_node(url, "the output").attrs
    except StoreError:
        return False
    return attributes.get(KIND) == FEATURES_KIND and attributes.get("complete") is False


def read_dropped(url: str) -> NDArray[np.int64] | None:
    """Numbers of the rows that were left out; None if the writer was stopped before they stood."""
    group = zarr.open_group(url, mode="r")
    if group.attrs.get(DROPPED) == 0:
        return np.empty(0, np.int64)
    if DROPPED not in group:
        return None
    found = read_member(group, DROPPED, "the features store")
    return found.astype(np.int64, copy=False) if len(found) == group.attrs.get(DROPPED) else None
