"""Output of clip-retrieval: `img_emb/img_emb_{i}.npy` and `metadata/metadata_{i}.parquet`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.base import MappedSource, Source, source_file
from scrlm_dask.sources.parquet import count_rows, open_parquet_column
from scrlm_dask.sources.sharded import concatenate, files_in
from scrlm_dask.sources.vector_files import open_npy

_KINDS = ("img_emb", "text_emb")
_METADATA = "metadata"


@dataclass(frozen=True)
class ClipShard(MappedSource):
    """The embeddings of one shard, and the metadata table of the same rows."""

    metadata: str | None

    def _map(self, values: NDArray[Any], first: int) -> NDArray[Any]:
        return values

    def column(self, name: str) -> Source:
        """Open a column of the metadata."""
        if self.metadata is None:
            raise InputError(f"column {name!r} not found: {self.what} has no metadata")
        return open_parquet_column(self.metadata, name)


def looks_like_clip(folder: str) -> bool:
    """Return whether a folder contains embeddings that clip-retrieval wrote."""
    return any((Path(folder) / kind).is_dir() for kind in _KINDS)


def open_clip(folder: str, asked: Sequence[str]) -> Source:
    """Open the embeddings of images.

    Open the embeddings of texts with `--column text_emb`, or if there are none of images.
    """
    available = [kind for kind in _KINDS if (Path(folder) / kind).is_dir()]
    kind = asked[0] if asked else (available or _KINDS)[0]
    if kind not in available:
        raise InputError(
            f"{folder} contains no folder {kind!r} (it contains {', '.join(available)})"
        )
    paths = files_in(str(Path(folder) / kind), (".npy",))
    return concatenate([_shard(folder, path) for path in paths])


def _shard(folder: str, path: str) -> ClipShard:
    embeddings = open_npy(path)
    metadata = _metadata_of(folder, path)
    if metadata is not None:
        rows = count_rows(metadata)
        if rows != embeddings.n_rows:
            raise StoreError(
                f"{metadata} has {rows} rows, but {path} has {embeddings.n_rows}; "
                "restore the damaged file"
            )
    files = embeddings.files if metadata is None else (*embeddings.files, source_file(metadata))
    return ClipShard(files, embeddings.shape, embeddings.dtype, embeddings, metadata)


def _metadata_of(folder: str, path: str) -> str | None:
    """Return the metadata table of a shard; None if there is no metadata folder."""
    metadata = Path(folder) / _METADATA
    number = re.search(r"(\d+)\.npy$", path)
    if not metadata.is_dir() or number is None:
        return None
    table = metadata / f"{_METADATA}_{number[1]}.parquet"
    if not table.is_file():
        raise StoreError(f"{table}, the metadata of {path}, does not exist; restore it")
    return str(table)
