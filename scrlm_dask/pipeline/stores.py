"""Open features stores as Dask arrays, and write Dask arrays as features stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from scrlm_dask.choices import Preprocess
from scrlm_dask.engine.execution import Columns, Execution, Pass, as_task
from scrlm_dask.engine.features import Features, FeaturesLike, as_features, scatter_rows
from scrlm_dask.engine.workers import check_paths_visible
from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.events import Listener, Note, warn
from scrlm_dask.passes.digests import DamagedBlock
from scrlm_dask.pipeline.inspect import RowsReport, inspect_rows, inspect_store, verify_store
from scrlm_dask.sources.registry import check_ingested
from scrlm_dask.storage import feature_store, outputs
from scrlm_dask.storage.label_store import check_labels_like
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.manifest import Manifest
from scrlm_dask.storage.store_info import StoreInfo, mark_features_complete
from scrlm_dask.storage.traces import InputTrace

_INT32 = np.iinfo(np.int32)


class FeatureStore:
    """A features store: a Zarr array (rows x features) with a manifest.

    `ingest`, `embed`, `synth` and `FeatureStore.write` write such stores. A plain Zarr array
    (rows, features), or a group with an array `features`, is a features store without a manifest.

    Parameters
    ----------
    path : str or Path
        Path or URL of the store.
    storage_options : dict or None
        fsspec options used to open URLs. They are neither printed nor saved.

    Attributes
    ----------
    location : Location
        Location of the store.
    shape : tuple of int
        Number of rows and of features.
    dtype : numpy.dtype
        Type of the features.

    Raises
    ------
    StoreError
        If there is no features store at `path`.

    Examples
    --------
    >>> import scrlm_dask
    >>> store = scrlm_dask.FeatureStore("features.zarr")
    >>> store.shape
    (2000, 32)
    >>> store.array.mean(axis=0).compute().shape
    (32,)
    >>> store.info().is_complete
    True
    """

    def __init__(self, path: Place, *, storage_options: Options | None = None) -> None:
        self.location: Location = locate(path, storage_options)
        try:
            stored = feature_store.open_store(self.location).features
        except StoreError:
            check_ingested(self.location)  # raises with a hint for files of other formats
            raise
        self.shape: tuple[int, ...] = stored.shape
        self.dtype: np.dtype[Any] = stored.dtype

    def __repr__(self) -> str:
        return f"FeatureStore({self.path!r}, shape={self.shape}, dtype={self.dtype})"

    @property
    def path(self) -> str:
        """Absolute path or URL of the store."""
        return self.location.url

    @property
    def array(self) -> da.Array:
        """The features (rows, p) as a lazy Dask array.

        A worker that cannot find the path raises `StoreError`; with `dask.array.from_zarr` it
        would read zeros.
        """
        return open_features(self.location)

    def info(self) -> StoreInfo:
        """Describe the store without reading its rows.

        Returns
        -------
        scrlm_dask.results.StoreInfo
            Shape, chunks, codecs, size, completeness and manifest.

        Examples
        --------
        >>> import scrlm_dask
        >>> info = scrlm_dask.FeatureStore("features.zarr").info()
        >>> info.features.shape, info.n_missing_chunks, info.labels
        ((2000, 32), 0, 'int32')
        """
        return inspect_store(self.location)

    def statistics(
        self,
        *,
        rho: float | None = None,
        F: float = 2.5,
        preprocess: Preprocess = "standardize",
        block_rows: int | None = None,
        listener: Listener = warn,
    ) -> RowsReport:
        """Compute statistics of all rows in one read.

        Rows that are not finite are counted and otherwise ignored. Rows of zeros are also counted,
        and a note reports how to remove them.

        Parameters
        ----------
        rho : float or None
            Bandwidth whose radius is compared with the distances between rows; None: no comparison.
        F : float
            The constant F of the radius `rho * sqrt(p * F)`.
        preprocess : {"standardize", "center", "scale", "none", "l2"}
            Preprocessing of the rows before their spectrum and distances are computed.
        block_rows : int or None
            Rows per block; None follows the chunks of the store.
        listener : callable
            Receives the events of the pass; by default, warnings are emitted.

        Returns
        -------
        scrlm_dask.results.RowsReport
            `statistics` (ranges, NaN, rows of zeros, duplicates, norms, spectrum, distances), and
            `classes` if the store has labels.

        Raises
        ------
        InputError
            If `rho`, `F` or `preprocess` is invalid.
        StoreError
            If the store is not complete.

        Examples
        --------
        >>> import scrlm_dask
        >>> report = scrlm_dask.FeatureStore("features.zarr").statistics(rho=0.5)
        >>> report.statistics.n_rows
        2000
        """
        return inspect_rows(
            self.location,
            rho=rho,
            F=F,
            preprocess=preprocess,
            block_rows=block_rows,
            listener=listener,
        )

    def verify(self, *, listener: Listener = warn) -> tuple[DamagedBlock, ...]:
        """Read all blocks and compare them with their checksums and digests.

        Parameters
        ----------
        listener : callable
            Receives the events of the pass; by default, warnings are emitted.

        Returns
        -------
        tuple of scrlm_dask.results.DamagedBlock
            The damaged blocks with their rows and reasons; empty if there are none.

        Examples
        --------
        >>> import scrlm_dask
        >>> scrlm_dask.FeatureStore("features.zarr").verify()
        ()
        """
        return verify_store(self.location, listener=listener)

    @classmethod
    def write(
        cls,
        source: FeaturesLike,
        path: Place,
        *,
        labels: da.Array | NDArray[Any] | None = None,
        dtype: str | None = None,
        chunk_bytes: int = feature_store.TARGET_BLOCK_BYTES,
        overwrite: bool = False,
        storage_options: Options | None = None,
        listener: Listener = warn,
    ) -> FeatureStore:
        """Write an array of floats as a features store; the workers write its chunks.

        A failed write leaves no output. With `overwrite`, the old store stays until the new
        store is complete.

        Parameters
        ----------
        source : dask.array.Array, numpy.ndarray, zarr.Array, FeatureStore, str or Path
            Features (rows, p).
        path : str or Path
            Path or URL of the new store.
        labels : dask.array.Array, numpy.ndarray or None
            True labels, one integer per row, -1 for outliers.
        dtype : {"float16", "float32"} or None
            Type of the stored features. None: float16 if the source is float16, else float32.
        chunk_bytes : int
            Approximate size of a chunk.
        overwrite : bool
            Replace a features store that exists at `path`.
        storage_options : dict or None
            fsspec options used to open URLs. They are neither printed nor saved.
        listener : callable
            Receives the events of the pass; by default, warnings are emitted.

        Returns
        -------
        FeatureStore
            The new store.

        Raises
        ------
        InputError
            If the source is not a table of floats, or if a value is too large for `dtype`.
        StoreError
            If `path` exists and `overwrite` is False, if it is or contains the source, or if the
            source changes while it is read.

        Examples
        --------
        >>> import numpy as np
        >>> import scrlm_dask
        >>> rows = np.random.default_rng(0).normal(size=(100, 8)).astype("float32")
        >>> scrlm_dask.FeatureStore.write(rows, "rows.zarr").shape
        (100, 8)
        """
        written = write_features(
            source,
            path,
            labels=labels,
            dtype=dtype,
            chunk_bytes=chunk_bytes,
            overwrite=overwrite,
            storage_options=storage_options,
            listener=listener,
        )
        return cls(written, storage_options=storage_options)


def open_features(
    path: Place, *, block_rows: int | None = None, storage_options: Options | None = None
) -> da.Array:
    """Return the features store at a path or URL as a lazy Dask array (rows, p).

    A worker that cannot find the path raises `StoreError`; with `da.from_zarr` it would read
    zeros.
    """
    return as_features(path, block_rows, storage_options).array


def write_features(
    source: FeaturesLike,
    path: Place,
    *,
    labels: da.Array | NDArray[Any] | None = None,
    dtype: str | None = None,
    chunk_bytes: int = feature_store.TARGET_BLOCK_BYTES,
    overwrite: bool = False,
    storage_options: Options | None = None,
    listener: Listener = warn,
) -> str:
    """Write a Dask array of floats, or other features, as a features store; return its URL.

    The workers write whole chunks of `chunk_bytes`, by default in float16 if the source is float16
    and in float32 otherwise. `labels` are the true labels: one integer per row, -1 for
    outliers. A failed write leaves no output. With `overwrite`, the old store stays until the new
    store is complete.
    """
    whole = as_features(source, None, storage_options)
    shape = (whole.n_rows, whole.n_features)
    dtype = dtype or ("float16" if whole.array.dtype == np.float16 else "float32")
    if dtype not in feature_store.STORED_DTYPES:
        raise InputError(f"dtype must be {' or '.join(feature_store.STORED_DTYPES)}, got {dtype}")
    if labels is not None:
        _check_labels(labels, whole.n_rows)
    block_rows = feature_store.block_rows_for(shape, np.dtype(dtype), None, chunk_bytes)
    location = locate(path, storage_options)
    outputs.check_not_inside(location, whole.location, "the source")
    copied = None if whole.location is None else feature_store.store_of(whole.location)
    origins = None if copied is None else feature_store.open_origins(copied)
    files = () if origins is None else origins.sources
    manifest = Manifest(*shape, dtype, block_rows, files, {"source": whole.label})
    with (
        outputs.replacing(location, overwrite, outputs.FEATURES_KIND) as at,
        Execution(listener) as execution,
    ):
        moved = origins is not None and origins.rows is not None
        feature_store.create_features_store(
            at,
            manifest,
            labels=labels is not None,
            origins=moved,
            attributes=_inherited(copied, origins),
        )
        check_paths_visible(at)
        for note in _describe_left(copied, labels is not None):
            execution.emit(Note(note))
        blocks = as_features(source, block_rows, storage_options)
        write_pass(execution, blocks, labels, at, dtype, origins if moved else None)
        InputTrace(whole.inputs).check()
        mark_features_complete(at)
    return location.url


def _inherited(
    source: Location | None, origins: feature_store.StoredOrigins | None
) -> dict[str, Any]:
    """Return the attributes that a copy of the features at `source` inherits."""
    attributes = {}
    if origins is not None:
        attributes[feature_store.SAME_ROWS] = origins.rows is None
    if source is not None and feature_store.is_shuffled(source):
        attributes[feature_store.SHUFFLED] = True
    return attributes


def _describe_left(source: Location | None, with_labels: bool) -> Iterator[str]:
    """Yield a note if labels or ids of the features store at `source` are not copied."""
    names = () if source is None else feature_store.value_names(source)
    left = [name for name in names if not (with_labels and name == feature_store.LABELS)]
    if left:
        yield feature_store.describe_left(f"the features store {source}", left)


def _check_labels(labels: da.Array | NDArray[Any], n_rows: int) -> None:
    check_labels_like(labels.shape, labels.dtype, "the array of labels")
    if labels.shape[0] != n_rows:
        raise InputError(
            f"expected one label per row, got {labels.shape[0]} labels for {n_rows} rows"
        )


def write_pass(
    execution: Execution,
    features: Features,
    labels: da.Array | NDArray[Any] | None,
    location: Location,
    dtype: str,
    origins: feature_store.StoredOrigins | None = None,
) -> int:
    """Write all rows, with labels and origins if given, to the store; return the number of rows."""
    columns: Columns = {}
    if labels is not None:
        in_memory = isinstance(labels, np.ndarray)
        lazy: da.Array = scatter_rows(labels, features.block_rows) if in_memory else labels
        columns = {"labels": lazy[:, None].rechunk((features.array.chunks[0], (1,)))}
    written: int = execution.run(
        Pass("write", _write_part, int.__add__),
        features,
        {
            **{"location": location, "dtype": dtype, "what": features.label},
            "origins": as_task(origins),
        },
        columns=columns,
    )
    return written


def _write_part(
    block: NDArray[Any],
    start: int,
    location: Location,
    dtype: str,
    what: str,
    origins: feature_store.StoredOrigins | None,
    labels: NDArray[Any] | None = None,
) -> int:
    truth = None if labels is None else _to_int32(labels, start)
    rows, numbers = (None, None) if origins is None else origins.read(start, start + len(block))
    feature_store.write_features_block(
        *(location, start, _narrow(block, np.dtype(dtype), start, what), truth),
        source_row=rows,
        source_file=numbers,
    )
    return len(block)


def _narrow(block: NDArray[Any], dtype: np.dtype[Any], start: int, what: str) -> NDArray[Any]:
    """Convert the block to the dtype of its store; reject numbers that would become infinite."""
    with np.errstate(over="ignore"):
        narrow = block.astype(dtype, copy=False)
    lost = np.isinf(narrow) & ~np.isinf(block)
    if lost.any():
        row, column = np.argwhere(lost)[0]
        raise InputError(
            f"row {start + row} of {what} contains {block[row, column]:g} (feature {column}), "
            f"which is too large for {dtype}; scale the features or use a wider dtype"
        )
    return narrow


def _to_int32(labels: NDArray[Any], start: int) -> NDArray[np.int32]:
    beyond = (labels < _INT32.min) | (labels > _INT32.max)
    if beyond.any():
        row = int(np.argmax(beyond))
        raise InputError(
            f"the label of row {start + row} must be a 32-bit integer, got {labels[row]}; number "
            "the classes from 0"
        )
    return labels.astype(np.int32)
