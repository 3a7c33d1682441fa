"""Folders of clip-retrieval: `img_emb/img_emb_{i}.npy` and `metadata/metadata_{i}.parquet`."""

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
    """The embeddings of one shard, and the table that says what its rows are."""

    metadata: str | None

    def _map(self, values: NDArray[Any], first: int) -> NDArray[Any]:
        return values

    def column(self, name: str) -> Source:
        if self.metadata is None:
            raise InputError(f"{self.what} has no metadata, so there is no column {name!r}")
        return open_parquet_column(self.metadata, name)


def looks_like_clip(folder: str) -> bool:
    return any((Path(folder) / kind).is_dir() for kind in _KINDS)


def open_clip(folder: str, asked: Sequence[str]) -> Source:
    """Open embeddings of images, or of texts if there are no others or `--column text_emb`."""
    there = [kind for kind in _KINDS if (Path(folder) / kind).is_dir()]
    kind = asked[0] if asked else (there or _KINDS)[0]
    if kind not in there:
        raise InputError(f"{folder} holds no folder {kind!r} (it holds {', '.join(there)})")
    paths = files_in(str(Path(folder) / kind), (".npy",))
    return concatenate([_shard(folder, path) for path in paths])


def _shard(folder: str, path: str) -> ClipShard:
    embeddings = open_npy(path)
    metadata = _metadata_of(folder, path)
    if metadata is not None:
        rows = count_rows(metadata)
        if rows != embeddings.n_rows:
            raise StoreError(
                f"{metadata} has {rows} rows and {path} has {embeddings.n_rows}; "
                "restore the one that is wrong"
            )
    files = embeddings.files if metadata is None else (*embeddings.files, source_file(metadata))
    return ClipShard(files, embeddings.shape, embeddings.dtype, embeddings, metadata)


def _metadata_of(folder: str, path: str) -> str | None:
    """Return the table with the number of the shard, if there are tables."""
    place = Path(folder) / _METADATA
    number = re.search(r"(\d+)\.npy$", path)
    if not place.is_dir() or number is None:
        return None
    table = place / f"{_METADATA}_{number[1]}.parquet"
    if not table.is_file():
        raise StoreError(f"{table} is missing, which belongs to {path}; restore it")
    return str(table)
