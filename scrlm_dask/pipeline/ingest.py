"""Write files of any supported format as a features store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from scrlm_dask.config import as_config
from scrlm_dask.errors import InputError
from scrlm_dask.events import Listener, Note, warn
from scrlm_dask.pipeline import ingest_job
from scrlm_dask.sources.base import Source, native
from scrlm_dask.sources.registry import SourceOptions, is_column, open_source
from scrlm_dask.sources.sharded import describe_order
from scrlm_dask.sources.tables import PlainTable
from scrlm_dask.storage.feature_store import describe_left
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
) -> ingest_job.IngestResult:
    """Write the rows of files as a features store.

    To resume an interrupted ingest, repeat the same call: complete chunks are not written again.

    Parameters
    ----------
    sources : str, Path or sequence of them
        Files, folders or glob patterns: .npy, .npz, .fbin, .fvecs, HDF5, Parquet, Arrow, CSV, raw
        binary files, Zarr stores, clip-retrieval and Hugging Face folders. Several sources are
        concatenated in the given order; the files of a folder or a pattern are in numeric order
        ("part2" before "part10").
    out : str or Path
        Path or URL of the new features store.
    config : IngestConfig or None
        Labels, ids, type of the features, order of the rows, treatment of NaN and of zeros; None:
        the defaults.
    options : SourceOptions or None
        Properties of the files that cannot be detected; None: everything is detected.
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
        If the rows or the options are invalid, for example NaN with `nan="error"`. Nothing remains
        at `out`.
    StoreError
        If a source is missing or damaged, or if `out` exists and `overwrite` is False.

    Examples
    --------
    >>> import scrlm_dask
    >>> written = scrlm_dask.ingest("embeddings", "ingested.zarr")
    >>> written.n_rows, written.n_features
    (600, 8)
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
    """Open the sources of `ingest` and check its output; write nothing."""
    config, options = as_config(config, ingest_job.IngestConfig), options or SourceOptions()
    sources = [sources] if isinstance(sources, str | Path) else _check_paths(sources)
    columns = [name for name in (config.labels, config.ids) if name is not None and is_column(name)]
    nulls_as_nan = config.nan != "error"
    features = open_source(sources, options, columns, storage_options, nulls_as_nan)
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
    # the search for rows to drop reads only the features: labels and ids have no effect on it
    drops = "drop" in (config.nan, config.zeros)
    checked = replace(table, labels=None, ids=None) if drops else None
    request = {"ingest": asdict(config), "source": _to_json(options)}
    return ingest_job.prepare_job(
        *(table, opened, location, config, request, overwrite, checked),
        notes=(*_order_notes(sources, config), *_left_notes(features, config)),
    )


def _check_paths(sources: Any) -> Sequence[str | Path]:
    """Return the sources; raise if they are not paths, but for example an array."""
    listed = sources if isinstance(sources, Sequence) else [sources]
    wrong = [type(each).__name__ for each in listed if not isinstance(each, str | Path)]
    if wrong:
        raise InputError(
            f"sources must be paths of files or folders, got {wrong[0]}; to write an array, use "
            "FeatureStore.write"
        )
    return listed


def _order_notes(sources: Sequence[str | Path], config: ingest_job.IngestConfig) -> Iterator[Note]:
    """Yield a note on the order of the files; a warning if labels or ids must have this order."""
    values = (config.labels, config.ids)
    in_files = any(name is not None and not is_column(name) for name in values)
    for text in describe_order([str(path) for path in sources]):
        ordered = "; the files of labels and ids must have the same order" if in_files else ""
        yield Note(text + ordered, warning=in_files)


def _left_notes(features: Source, config: ingest_job.IngestConfig) -> Iterator[Note]:
    """Yield a note if the labels or the ids of a features store are not copied."""
    given = {"labels": config.labels, "ids": config.ids}
    left = [name for name in features.value_names if given[name] is None]
    if left:
        yield Note(describe_left(features.what, left))


def _to_json(options: SourceOptions) -> dict[str, Any]:
    """Return the options with lists instead of tuples, because JSON reads tuples as lists."""
    lists = {"columns": list(options.columns), "exclude": list(options.exclude)}
    return {**asdict(options), **lists}
