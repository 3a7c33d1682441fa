"""Write files of any format as a features store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from scrlm_dask.errors import InputError
from scrlm_dask.events import Listener, warn
from scrlm_dask.pipeline import ingest_job
from scrlm_dask.sources.base import native
from scrlm_dask.sources.registry import SourceOptions, is_column, open_source
from scrlm_dask.sources.tables import PlainTable
from scrlm_dask.storage.locations import Options, Place, locate


def ingest(
    sources: str | Path | Sequence[str | Path],
    out: Place,
    config: ingest_job.IngestConfig | None = None,
    *,
    options: SourceOptions | None = None,
    overwrite: bool = False,
    storage_options: Options | None = None,
    listener: Listener = warn,
) -> ingest_job.Ingest:
    """Write the rows of the sources, one after the other, as a features store.

    An unfinished store of the same request is continued: its finished blocks are kept. If the rows
    are rejected or their file is damaged, the output is removed; after any other error it stays,
    marked unfinished, to be continued. `storage_options` open URLs.
    """
    job = prepare_ingest(sources, out, config, options, overwrite, storage_options)
    return job.run(listener)


def prepare_ingest(
    sources: str | Path | Sequence[str | Path],
    out: Place,
    config: ingest_job.IngestConfig | None = None,
    options: SourceOptions | None = None,
    overwrite: bool = False,
    storage_options: Options | None = None,
) -> ingest_job.IngestJob:
    """Open the sources of an `ingest` and check its output; write nothing."""
    config, options = config or ingest_job.IngestConfig(), options or SourceOptions()
    if isinstance(sources, str | Path):
        sources = [sources]
    columns = [name for name in (config.labels, config.ids) if name is not None and is_column(name)]
    features = open_source(sources, options, columns, storage_options)
    labels, ids = ingest_job.open_labels_and_ids(
        features, config.labels, config.ids, storage_options
    )
    location = locate(out, storage_options)
    if location.is_remote and config.shuffle:
        raise InputError(
            f"--shuffle (shuffle) sorts rows on a local disk, but the output {location} is a URL; "
            "shuffle into a local store and ingest that store to the URL"
        )
    dtype = config.dtype or ("float16" if native(features.dtype) == np.float16 else "float32")
    n_rows = min(features.n_rows, config.limit or features.n_rows)
    table = PlainTable(features, labels, ids, dtype, n_rows)
    opened = tuple(source for source in (features, labels, ids) if source is not None)
    checked = table if config.nan == "drop" else None
    request = {
        "ingest": asdict(config),
        "source": _to_json(options),
        "modified": ingest_job.last_modified(ingest_job.source_files(opened)),
    }
    return ingest_job.prepare_job(table, opened, location, config, request, overwrite, checked)


def _to_json(options: SourceOptions) -> dict[str, Any]:
    """Return the options with lists instead of tuples, as JSON reads them back."""
    lists = {"columns": list(options.columns), "exclude": list(options.exclude)}
    return {**asdict(options), **lists}
