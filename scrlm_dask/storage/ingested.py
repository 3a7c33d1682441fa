"""What a features store keeps of its making while it is unfinished."""

from __future__ import annotations

from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from scrlm_dask.errors import StoreError
from scrlm_dask.storage.arrays import open_node, read_member
from scrlm_dask.storage.features import LABEL_NAMES
from scrlm_dask.storage.locations import Location
from scrlm_dask.storage.manifest import Manifest, read_manifest
from scrlm_dask.storage.outputs import FEATURES_KIND, KIND

DROPPED = "dropped"  # numbers of the rows of the source that were left out; as attribute: how many
SHUFFLE = ".shuffle"  # folder of the runs of a shuffle, removed at the end


def unfinished_manifest(url: Location) -> Manifest | None:
    """The manifest of the store at `url`, if it was begun and is not complete."""
    return read_manifest(url) if says_unfinished(url) else None


def says_unfinished(url: Location) -> bool:
    """Whether a features store of ours is there that says it is not complete."""
    if not (url / "zarr.json").is_file():
        return False
    try:
        attributes = open_node(url, "the output").attrs
    except StoreError:
        return False
    return attributes.get(KIND) == FEATURES_KIND and attributes.get("complete") is False


def read_label_names(url: Location) -> tuple[str, ...] | None:
    """The texts that the store's labels stand for, if they do."""
    names: Any = open_node(url, "the features store").attrs.get(LABEL_NAMES)
    return None if names is None else tuple(str(name) for name in names)


def read_dropped(url: Location) -> NDArray[np.int64] | None:
    """Numbers of the rows that were left out; None if the writer was stopped before they stood."""
    group = open_node(url, "the features store")
    assert isinstance(group, zarr.Group)
    if group.attrs.get(DROPPED) == 0:
        return np.empty(0, np.int64)
    if DROPPED not in group:
        return None
    found = read_member(group, url, DROPPED, "the features store")
    return found.astype(np.int64, copy=False) if len(found) == group.attrs.get(DROPPED) else None
