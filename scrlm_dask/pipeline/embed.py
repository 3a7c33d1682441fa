"""Encode texts and images into a features store; the encoder runs in this process."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from scrlm_dask.choices import DAMAGED_ITEMS, DamagedItems, FeatureDtype
from scrlm_dask.encoders.catalog import open_encoder
from scrlm_dask.engine.workers import in_this_process
from scrlm_dask.errors import InputError
from scrlm_dask.events import Listener, Note, warn
from scrlm_dask.pipeline import ingest_job
from scrlm_dask.sources.embedded import open_embedded, open_item_check
from scrlm_dask.sources.items import Items, open_items
from scrlm_dask.sources.tables import PlainTable
from scrlm_dask.storage.feature_store import ENCODED, read_dropped
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.outputs import check_none_inside

_BLOCK_BYTES = 8 * 2**20  # smaller than for `ingest`: an interrupted block is encoded again
# Settings that may differ when an unfinished store is resumed.
_EXECUTION_SETTINGS = ("batch_size", "device")
_MAX_NAMED = 5


@dataclass(frozen=True)
class EmbedConfig:
    """Settings of `embed`, saved in the manifest of the store except `batch_size` and `device`.

    Parameters
    ----------
    encoder : str
        `pixels[:SIDE]` and `hashing[:FEATURES]` need no model. `sentence-transformers:NAME`,
        `open_clip:MODEL/PRETRAINED` and `torchvision:MODEL` load a model. `module:function` or
        `file.py:function` is your own function, which receives a list of texts or PIL images and
        returns an array.
    column : str or None
        Column of the texts in a table.
    labels : str or None
        True labels: a file, a column, or "folder" for the folder of each image.
    ids : str or None
        Ids of the items: a file or a column.
    batch_size : int
        Items per call of the encoder.
    device : str or None
        PyTorch device of the model, such as "cpu" or "cuda:0"; None: chosen by the encoder.
    dtype : {"float16", "float32"} or None
        Type of the stored features. None: float16 if the encoder returns float16, else float32.
    chunk_bytes : int
        Approximate size of a chunk; an interrupted chunk is encoded again.
    limit : int or None
        Number of items to take from the start of the source; None: all.
    on_error : {"refuse", "skip"}
        What to do with items that cannot be read: "refuse" raises, "skip" leaves them out.

    Examples
    --------
    >>> import scrlm_dask
    >>> config = scrlm_dask.EmbedConfig("hashing:16", column="comment", batch_size=8)
    >>> scrlm_dask.embed("table.csv", "comments.zarr", config).n_features
    16
    """

    encoder: str
    column: str | None = None
    labels: str | None = None
    ids: str | None = None
    batch_size: int = 32
    device: str | None = None
    dtype: FeatureDtype | None = None
    chunk_bytes: int = _BLOCK_BYTES
    limit: int | None = None
    on_error: DamagedItems = "refuse"

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise InputError(f"batch_size must be at least 1, got {self.batch_size}")
        if self.on_error not in DAMAGED_ITEMS:
            choices = " or ".join(DAMAGED_ITEMS)
            raise InputError(f"on_error must be {choices}, got {self.on_error!r}")
        self.ingest()  # validates the other settings

    def ingest(self) -> ingest_job.IngestConfig:
        """Return the settings that `embed` shares with `ingest`."""
        return ingest_job.IngestConfig(
            self.labels,
            self.ids,
            self.dtype,
            self.chunk_bytes,
            self.limit,
            nan="drop" if self.on_error == "skip" else "error",
        )


def embed(
    source: str | Path,
    out: Place,
    config: EmbedConfig,
    *,
    overwrite: bool = False,
    storage_options: Options | None = None,
    listener: Listener = warn,
) -> ingest_job.IngestResult:
    """Encode the texts of a file, or the images of a folder, as a features store.

    The encoder runs in this process, even if there is a Dask client. To resume an interrupted
    embedding, repeat the same call.

    Parameters
    ----------
    source : str or Path
        A folder of images, a `.txt` file with one text per line, or a CSV, TSV, JSON lines or
        Parquet file with a column of texts.
    out : str or Path
        Path or URL of the new features store.
    config : EmbedConfig
        The encoder, and how items are read.
    overwrite : bool
        Replace a features store that exists at `out`.
    storage_options : dict or None
        fsspec options used to open URLs. They are neither printed nor saved.
    listener : callable
        Receives the events of the run (`scrlm_dask.events`); by default, warnings are emitted.

    Returns
    -------
    scrlm_dask.results.IngestResult
        Shape, type and size of the store.

    Raises
    ------
    InputError
        If the encoder is unknown or does not accept the items.
    StoreError
        If the source is missing, if an item cannot be read and `on_error` is "refuse", or if
        `out` exists and `overwrite` is False.
    EncoderError
        If the encoder fails.

    Examples
    --------
    >>> import scrlm_dask
    >>> config = scrlm_dask.EmbedConfig("pixels:8")
    >>> scrlm_dask.embed("photos", "photos.zarr", config).n_rows
    3
    """
    items = open_items(str(source), config.column)
    location = locate(out, storage_options)
    with in_this_process():
        written = _prepare(items, location, config, overwrite, storage_options).run(listener)
    if written.n_dropped:
        listener(Note(_describe_dropped(items, location), warning=True))
    return written


def _prepare(
    items: Items,
    location: Location,
    config: EmbedConfig,
    overwrite: bool,
    storage_options: Options | None,
) -> ingest_job.IngestJob:
    rows = items.source
    labels, ids = ingest_job.open_labels_and_ids(rows, config.labels, config.ids, storage_options)
    ids = ids or items.ids
    sources = tuple(source for source in (rows, labels, ids) if source is not None)
    files = ingest_job.source_files(sources)
    # check first, because loading the encoder is slow
    check_none_inside(location, (file.path for file in files), "the source file")
    n_rows = min(rows.n_rows, config.limit or rows.n_rows)
    skip = config.on_error == "skip"
    encoder = open_encoder(config.encoder, items.kind, config.device)
    features = open_embedded(items, encoder, n_rows, config.dtype, config.batch_size, skip)
    request = {
        "embed": {k: v for k, v in asdict(config).items() if k not in _EXECUTION_SETTINGS},
        "made by": encoder.made_by,
    }
    encoding = {
        "encoder": encoder.name,
        "made_by": encoder.made_by,
        "input": items.source.what,
        "items": items.kind,
    }
    return ingest_job.prepare_job(
        PlainTable(features, labels, ids, str(features.dtype), n_rows),
        sources,
        location,
        config.ingest(),
        request,
        overwrite,
        checked=PlainTable(open_item_check(items), None, None, "float32", n_rows) if skip else None,
        attributes={ENCODED: encoding},
    )


def _describe_dropped(items: Items, location: Location) -> str:
    dropped = read_dropped(location)
    rows = np.empty(0, np.int64) if dropped is None else dropped
    named = ", ".join(items.source.locate(int(row)) for row in rows[:_MAX_NAMED])
    more = ", ..." if len(rows) > _MAX_NAMED else ""
    return f"{len(rows)} item(s) cannot be encoded and are left out: {named}{more}"
