"""Texts and images as a features store, by an encoder that stays in this process.

What is written, and how it goes on after it was stopped, is ingest's.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scrlm_dask.choices import DamagedItems, FeatureDtype
from scrlm_dask.encoders.catalog import open_encoder
from scrlm_dask.encoders.encoder import Encoder
from scrlm_dask.engine.workers import in_this_process
from scrlm_dask.errors import InputError
from scrlm_dask.events import Listener, Note, warn
from scrlm_dask.pipeline.ingest import Ingest, run_job
from scrlm_dask.pipeline.ingest_job import IngestConfig, IngestJob, modified, open_beside
from scrlm_dask.sources.embedded import open_embedded, open_item_check
from scrlm_dask.sources.items import Items, open_items
from scrlm_dask.sources.tables import PlainTable
from scrlm_dask.storage.feature_store import ENCODED, block_rows_for, read_dropped
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.manifest import Manifest
from scrlm_dask.storage.outputs import check_not_inside

_BLOCK_BYTES = 8 * 2**20  # smaller than ingest's: a block that was stopped is encoded again
_HOW = ("batch_size", "device")  # how it is done, which another time may be otherwise
_FEW_NAMED = 5


@dataclass(frozen=True)
class EmbedConfig:
    """What is encoded, and by what. Part of the store's manifest."""

    encoder: str
    column: str | None = None  # of texts, in a table
    labels: str | None = None  # a file, a column, or "folder" for images
    ids: str | None = None
    batch_size: int = 32
    device: str | None = None
    dtype: FeatureDtype | None = None  # None: float16 stays, all else float32
    chunk_bytes: int = _BLOCK_BYTES
    limit: int | None = None
    on_error: DamagedItems = "refuse"

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError(f"a batch of {self.batch_size} items holds nothing")
        if self.on_error not in ("refuse", "skip"):
            raise InputError(f"on_error is {self.on_error!r}; it is refuse or skip")
        self.ingest()  # says what is wrong with the rest

    def ingest(self) -> IngestConfig:
        return IngestConfig(self.labels, self.ids, self.dtype, self.chunk_bytes, self.limit)


def embed(
    source: str,
    out: Place,
    config: EmbedConfig,
    *,
    overwrite: bool = False,
    storage_options: Options | None = None,
    listener: Listener = warn,
) -> Ingest:
    """Encode the texts of a file, or the images of a folder, as a features store.

    The encoder is loaded once and works in this process, whatever Dask client there is. As with
    `ingest`, an unfinished store of the same request is continued, and what is refused leaves
    nothing. With `on_error="skip"` all items are looked at first, and those that cannot be read are
    left out. `storage_options` open URLs.
    """
    items = open_items(str(source), config.column)
    url = locate(out, storage_options)
    with in_this_process():
        found = run_job(_open_job(items, url, config, storage_options), overwrite, listener)
    if found.n_dropped:
        listener(Note(_left_out(items, url), warning=True))
    return found


def _open_job(
    items: Items, url: Location, config: EmbedConfig, storage_options: Options | None
) -> IngestJob:
    rows = items.source
    labels, ids = open_beside(rows, config.labels, config.ids, storage_options)
    ids = ids or items.ids
    sources = tuple(source for source in (rows, labels, ids) if source is not None)
    files = tuple(dict.fromkeys(file for source in sources for file in source.files))
    for file in files:
        check_not_inside(url, file.path)
    n_rows = min(rows.n_rows, config.limit or rows.n_rows)
    skip = config.on_error == "skip"
    encoder = open_encoder(config.encoder, items.kind, config.device)
    features = open_embedded(items, encoder, n_rows, config.dtype, config.batch_size, skip)
    block_rows = block_rows_for(features.shape, features.dtype, None, config.chunk_bytes)
    request = {
        "embed": {k: v for k, v in asdict(config).items() if k not in _HOW},
        # a folder of images is known by its listing; its own time changes with an output inside
        "modified": modified([file for file in files if not Path(file.path).is_dir()]),
        "made by": encoder.made_by,
        **items.identity,
    }
    dtype = str(features.dtype)
    return IngestJob(
        table=PlainTable(features, labels, ids, dtype, n_rows),
        sources=sources,
        manifest=Manifest(n_rows, features.n_features, dtype, block_rows, files, request),
        config=config.ingest(),
        url=url,
        scanned=PlainTable(open_item_check(items), None, None, "float32", n_rows) if skip else None,
        attributes={ENCODED: _said(items, encoder)},
    )


def _said(items: Items, encoder: Encoder) -> dict[str, Any]:
    """What the store says of its rows."""
    return {
        "encoder": encoder.name,
        "made_by": encoder.made_by,
        "input": items.source.what,
        "items": items.kind,
    }


def _left_out(items: Items, url: Location) -> str:
    dropped = read_dropped(url)
    rows = np.empty(0, np.int64) if dropped is None else dropped
    named = ", ".join(items.source.locate(int(row)) for row in rows[:_FEW_NAMED])
    more = ", ..." if len(rows) > _FEW_NAMED else ""
    return f"{len(rows)} item(s) cannot be encoded and are left out: {named}{more}"
