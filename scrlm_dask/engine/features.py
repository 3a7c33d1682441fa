"""Open features and sample weights of any kind as Dask arrays of regular row blocks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeAlias
from uuid import uuid4

import dask
import dask.array as da
import numpy as np
import zarr
from dask.delayed import Delayed
from numpy.typing import NDArray

from scrlm_dask.engine.block_layout import Layout, blocks_per_task
from scrlm_dask.engine.read_ahead import read_in_turn
from scrlm_dask.engine.workers import (
    check_paths_visible,
    compute,
    current_client,
    persist,
    wait_for_worker,
)
from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.storage import feature_store
from scrlm_dask.storage.arrays import StoredArray, local_path, read_spans
from scrlm_dask.storage.locations import Location, Options, Place, locate
from scrlm_dask.storage.masks import remove_mask
from scrlm_dask.storage.npy_files import NpyColumn
from scrlm_dask.storage.store_info import files_of_features
from scrlm_dask.storage.traces import Input, trace_array


class HasLocation(Protocol):
    """An object that represents a store, such as `FeatureStore`."""

    @property
    def location(self) -> Location:
        """Location of the store."""


FeaturesLike: TypeAlias = (
    str | Path | Location | HasLocation | zarr.Array[Any] | da.Array | NDArray[Any]
)
WeightsLike: TypeAlias = Place | zarr.Array[Any] | da.Array | NDArray[Any] | None

# (start, stop) of one or several ranges of rows, and a function that reads and concatenates them
_Spans: TypeAlias = Sequence[tuple[int, int]]
_Read: TypeAlias = Callable[[_Spans], NDArray[Any]]

_MOST_BLOCKS = 10**6  # bounds the memory of lists of blocks
_LARGEST_SUM = 1e250  # limit for sums of weights; finite times the largest squared distance


@dataclass(frozen=True)
class Features:
    """Features in blocks of `block_rows` rows; the last block may be smaller.

    A chunk of `array` is a block, or a batch of consecutive small blocks.

    Rows are read in the tasks that use them and are never sent to the client.
    """

    array: da.Array
    block_rows: int
    label: str  # name in messages
    location: Location | None = None  # of the store, with its options; None for an array
    in_memory: bool = False  # already in the workers' memory, so that reading again costs nothing
    coordinate_axes: int = 0  # number of coordinates per row that k-means may also persist
    chunk_rows: int | None = None  # the smallest unit of a read; None if unknown
    uncompressed: bool = False  # True: stored without compression, filters and shards
    made_of: Features | None = None  # smaller blocks that these blocks are concatenated from
    files: str | None = None  # digest of the traces of the store's files when it was opened
    mapped: tuple[Input, ...] = ()  # the file of a memory-mapped array
    may_warn: bool = True  # False: the user does not choose the number of blocks
    # returns the rows of given blocks, with the given number of blocks per chunk; None: the rows
    # are copied from the chunks of `array`
    read_blocks: Callable[[Sequence[int], int], da.Array] | None = field(
        default=None, compare=False
    )
    blocks_per_chunk: int = field(init=False)  # consecutive blocks per chunk of `array`
    n_rows: int = field(init=False)
    n_features: int = field(init=False)
    n_blocks: int = field(init=False)
    layout: Layout = field(init=False)

    def __post_init__(self) -> None:
        n_rows, n_features = (int(size) for size in self.array.shape)
        itemsize = int(self.array.dtype.itemsize)
        chunk_rows = self.chunk_rows or min(self.block_rows, n_rows)
        copies = 1 if self.uncompressed else 2
        layout = Layout(n_rows, n_features, itemsize, self.block_rows, chunk_rows, copies)
        chunk = max(self.array.chunks[0], default=1)
        object.__setattr__(self, "blocks_per_chunk", -(-chunk // self.block_rows))
        object.__setattr__(self, "n_rows", n_rows)
        object.__setattr__(self, "n_features", n_features)
        object.__setattr__(self, "n_blocks", layout.n_blocks)
        object.__setattr__(self, "layout", layout)

    @property
    def path(self) -> str | None:
        """Path or URL of the store; None for an array."""
        return None if self.location is None else self.location.url

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The store, or the file of a memory-mapped array, that must not change during a job."""
        if self.location is None or self.files is None:
            return self.mapped
        return (Input("the features store", self.location, self.files, files_of_features),)

    def blocks_per_task(self, n_blocks: int) -> int:
        """Return the blocks per task of a pass over all blocks, or over `n_blocks` of them."""
        if n_blocks == self.n_blocks:
            return self.blocks_per_chunk
        return min(self.blocks_per_chunk, blocks_per_task(n_blocks, self.layout.block_bytes))

    def read(self, blocks: Sequence[int]) -> da.Array:
        """Return the rows of the given ascending blocks, one chunk per task of a pass over them."""
        if self.read_blocks is None:
            return self.choose(self.array, blocks)
        return self.read_blocks(blocks, self.blocks_per_task(len(blocks)))

    def choose(self, values: da.Array, blocks: Sequence[int]) -> da.Array:
        """Return the values (rows, q) of the given ascending blocks, one chunk per task.

        `values` has one entry per row of the features.
        """
        values = values.rechunk({0: self.array.chunks[0]})
        if self.blocks_per_chunk == 1:
            return values.blocks[list(blocks)]
        chunks, take = values.to_delayed().ravel(), dask.delayed(_take_blocks, pure=False)
        parts, key = [], f"take-{uuid4().hex}"
        for i, group in enumerate(self.tasks_of(blocks)):
            numbers, local = np.divmod(group, self.blocks_per_chunk)
            needed = [
                (chunks[number], local[numbers == number].tolist()) for number in np.unique(numbers)
            ]
            parts.append(take(needed, self.block_rows, dask_key_name=(key, i)))
        return column_of(parts, self, blocks, values.dtype, values.shape[1])

    def tasks_of(self, blocks: Sequence[int]) -> list[Sequence[int]]:
        """Return the blocks of each task of a pass over the given blocks."""
        size = self.blocks_per_task(len(blocks))
        return [blocks[i : i + size] for i in range(0, len(blocks), size)]

    def in_blocks_for(self, n_clusters: int) -> Features:
        """Return the same rows in blocks that are large enough for `n_clusters` clusters.

        The number of rows per block is that of `Layout.in_blocks_for`, which gives the reason. If
        the blocks are large enough already, return these features unchanged.
        """
        layout = self.layout.in_blocks_for(n_clusters)
        if layout == self.layout:
            return self
        return replace(
            self,
            array=self.array.rechunk({0: layout.block_rows * layout.blocks_per_task}),
            block_rows=layout.block_rows,
            chunk_rows=layout.chunk_rows,
            uncompressed=False,
            made_of=self,
            read_blocks=None,
        )

    def label_rows(self, n_clusters: int = 0) -> int:
        """Return the rows per chunk of labels: those of a block, or of a batch of small blocks.

        `n_clusters` is the number of clusters whose sums a pass computes with the labels, because
        it may enlarge the blocks. A chunk must not be written by two tasks.
        """
        features = self.in_blocks_for(n_clusters)
        if features.blocks_per_chunk == 1:
            return self.block_rows
        return features.block_rows * features.blocks_per_chunk


def as_features(
    source: FeaturesLike, block_rows: int | None = None, storage_options: Options | None = None
) -> Features:
    """Open features: a path or URL, a Zarr array, a Dask array or a NumPy array.

    Without `block_rows` a block is one chunk, or several small chunks. `storage_options` are used
    to open a URL, and are sent to the workers with the tasks that read it.
    """
    if block_rows is not None and block_rows < 1:
        raise InputError(f"block_rows must be at least 1, got {block_rows}")
    location = getattr(source, "location", None)
    if isinstance(location, Location):
        source = location
    source = replace_local_array(source)
    if isinstance(source, zarr.Array):
        return _from_zarr_object(source, block_rows)
    if isinstance(source, str | Path | Location):
        return _from_store(locate(source, storage_options), block_rows)
    if isinstance(source, da.Array):
        return _from_dask(source, block_rows)
    if isinstance(source, np.ndarray):
        return _from_numpy(source, block_rows)
    raise InputError(
        f"features of type {type(source).__name__} are not supported; use a path, a FeatureStore, "
        "a Zarr array, a Dask array or a NumPy array"
    )


def replace_local_array(source: Any) -> Any:
    """Return the path of a Zarr array on a local disk, and other sources unchanged.

    An open array reads missing chunks as zeros, and its files are not traced.
    """
    if isinstance(source, zarr.Array) and isinstance(source.store, zarr.storage.LocalStore):
        return local_path(source)
    return source


def persist_features(features: Features) -> Features:
    """Read the features once and keep them in the workers' memory."""
    array = persist(features.array)[0]
    if current_client() is not None:
        from distributed import futures_of, wait

        for future in wait(futures_of(array)).done:
            if future.status == "error":
                future.result()
    return replace(features, array=array, read_blocks=None)


def placeholder_blocks(shape: tuple[int, int], dtype: np.dtype[Any], block_rows: int) -> Features:
    """Return blocks without data, for a pass that generates or reads its rows itself."""
    _check_blocks(shape[0], block_rows)
    array = _lazy_rows(partial(_placeholder, dtype, shape[1]), shape, dtype, block_rows)
    return Features(array, block_rows, "the plan", may_warn=False)


def scatter_rows(source: NDArray[Any], block_rows: int) -> da.Array:
    """Send an array to the workers in row blocks; return it as a Dask array."""
    client = current_client()
    if client is None:
        chunks = (block_rows, *source.shape[1:])
        return da.from_array(source, chunks=chunks, name=f"rows-{uuid4().hex}")
    # not as part of the task graph: all of the data would pass through the scheduler
    blocks = [source[i : i + block_rows] for i in range(0, len(source), block_rows)]
    wait_for_worker(client)
    futures = client.scatter(blocks, hash=False)
    parts = [
        da.from_delayed(dask.delayed(future), block.shape, source.dtype)
        for future, block in zip(futures, blocks, strict=True)
    ]
    return da.concatenate(parts)


def as_weights(
    source: WeightsLike, features: Features, storage_options: Options | None = None
) -> da.Array | None:
    """Return validated sample weights (rows, 1) from an array or a file (.npy or Zarr)."""
    if source is None:
        return None
    if isinstance(source, str | Path | Location):
        source = locate(source, storage_options)
    weights = _as_column(source, features)
    _check_numbers(weights)
    return weights


def extremes(weights: da.Array) -> tuple[float, float]:
    """Return the least and the largest weight, in one read; both are NaN if a weight is NaN."""
    least, most = compute(weights.min(), weights.max())
    return float(least), float(most)


def _check_numbers(weights: da.Array) -> None:
    least, most = extremes(weights)
    if not (least >= 0.0 and np.isfinite(most)):
        bad = int(compute((~(da.isfinite(weights) & (weights >= 0.0))).argmax(axis=0))[0][0])
        value = float(compute(weights[bad])[0][0])
        raise InputError(f"the sample weight of row {bad} is {value}; it must be finite and >= 0")
    if not most > 0.0:
        raise InputError("all sample weights are zero; at least one must be positive")
    if most > _LARGEST_SUM / weights.shape[0]:
        raise InputError(
            f"the largest sample weight is {most:g}; sums of such weights may overflow float64; "
            "divide all weights by the largest"
        )


def check_weights(
    source: WeightsLike, features: Features, storage_options: Options | None = None
) -> None:
    """Check shape and type of a weights file without reading its values."""
    if isinstance(source, str | Path | Location):
        _check_length(
            feature_store.open_weights(locate(source, storage_options)).shape[0], features
        )


def send_numbers(blocks: Sequence[int]) -> Delayed:
    """Send the numbers of the blocks of a pass to the workers, once instead of with every task.

    They are persisted, because block tasks that wait for another task run too early in threads:
    before all tasks without inputs, such as tasks that load saved labels. The groups of blocks
    that need these labels would then be finished, and saved, after all blocks.
    """
    key = (f"blocks-{uuid4().hex}", 0)
    numbers = dask.delayed(np.array, pure=False)(np.array(blocks), dask_key_name=key)
    persisted: Delayed = persist(numbers)[0]
    return persisted


def lazy_column(stored: StoredArray) -> da.Array:
    """Return a stored 1-D array as a lazy Dask array with the chunks of the store."""
    read = partial(read_spans, stored, what="the labels store")
    return _lazy_rows(read, stored.shape, stored.dtype, stored.chunks[0])


def column_of(
    parts: list[Delayed],
    features: Features,
    blocks: Sequence[int] | None,
    dtype: Any,
    width: int = 1,
) -> da.Array:
    """Concatenate the results of the block tasks of a pass to a Dask array (rows, width)."""
    numbers = range(features.n_blocks) if blocks is None else blocks
    sizes = [features.layout.rows_in(group) for group in features.tasks_of(numbers)]
    pairs = zip(parts, sizes, strict=True)
    return da.concatenate([da.from_delayed(part, (size, width), dtype) for part, size in pairs])


def _from_store(location: Location, block_rows: int | None) -> Features:
    try:
        stored, files = feature_store.open_traced_features(location)
    except StoreError:
        # imported here: the registry imports the readers of all file formats
        from scrlm_dask.sources.registry import check_ingested

        check_ingested(location)
        raise
    check_paths_visible(location)
    shape = stored.shape[0], stored.shape[1]
    dtype, chunk_rows = stored.dtype, stored.chunks[0]
    block_rows = block_rows or feature_store.block_rows_for(shape, dtype, chunk_rows)
    array, read_blocks = _readable(partial(_read_stored, stored), shape, dtype, block_rows)
    return Features(
        array,
        block_rows,
        f"the features store {stored.location.url}",
        location,
        chunk_rows=chunk_rows,
        uncompressed=stored.plain,
        files=files,
        read_blocks=read_blocks,
    )


def _from_zarr_object(source: zarr.Array[Any], block_rows: int | None) -> Features:
    """Open a Zarr array without a local path: in memory, or in another kind of store."""
    dtype = np.dtype(source.dtype)
    feature_store.check_features_like(tuple(source.shape), dtype, "the Zarr array")
    if source.nchunks_initialized != source.nchunks:
        raise StoreError(
            f"{source.nchunks - source.nchunks_initialized} chunk(s) of the Zarr array are missing "
            f"and would be read as {source.fill_value}; write them (write_empty_chunks=True)"
        )
    chunk_rows = (source.shards or source.chunks)[0]
    shape = (int(source.shape[0]), int(source.shape[1]))
    block_rows = block_rows or feature_store.block_rows_for(shape, dtype, chunk_rows)
    array, read_blocks = _readable(partial(_read_object, source), shape, dtype, block_rows)
    return Features(
        array, block_rows, "the Zarr array", chunk_rows=chunk_rows, read_blocks=read_blocks
    )


def _from_dask(source: da.Array, block_rows: int | None) -> Features:
    if any(np.isnan(size) for axis in source.chunks for size in axis):
        raise InputError(
            "the Dask array has chunks of unknown size; call .compute_chunk_sizes() on it first"
        )
    feature_store.check_features_like(source.shape, source.dtype, "the Dask array")
    _check_futures(source, "the Dask array")
    sizes = source.chunks[0]
    regular = all(size == sizes[0] for size in sizes[:-1]) and sizes[-1] <= sizes[0]
    chunk_rows = sizes[0] if regular else None
    block_rows = block_rows or feature_store.block_rows_for(source.shape, source.dtype, chunk_rows)
    rows = _rows_per_chunk(source.shape, source.dtype, block_rows)
    return Features(source.rechunk({0: rows, 1: -1}), block_rows, "the Dask array")


def _from_numpy(source: NDArray[Any], block_rows: int | None) -> Features:
    source = remove_mask(source, "the array")
    feature_store.check_features_like(source.shape, source.dtype, "the array")
    block_rows = block_rows or feature_store.block_rows_for(source.shape, source.dtype, None)
    rows = _rows_per_chunk(source.shape, source.dtype, block_rows)
    mapped = trace_array("the memory-mapped features", source)  # before the rows are read
    array = scatter_rows(source, rows)
    return Features(array, block_rows, "the array", in_memory=True, mapped=mapped)


def _rows_per_chunk(shape: tuple[int, ...], dtype: np.dtype[Any], block_rows: int) -> int:
    """Return the rows of a block, or of a batch of small blocks; raise if there are too many."""
    n_blocks = _check_blocks(shape[0], block_rows)
    return block_rows * blocks_per_task(n_blocks, block_rows * shape[1] * dtype.itemsize)


def _check_blocks(n_rows: int, block_rows: int) -> int:
    """Return the number of blocks; raise before a list of too many is created."""
    n_blocks = -(-n_rows // block_rows)
    if n_blocks > _MOST_BLOCKS:
        raise InputError(
            f"{n_rows} rows in blocks of {block_rows} rows are {n_blocks} blocks, but at most "
            f"{_MOST_BLOCKS} can be processed; use larger blocks (--block-rows, block_rows), or "
            "check the shape in the metadata of the input"
        )
    return n_blocks


def _readable(
    read: _Read, shape: tuple[int, int], dtype: np.dtype[Any], block_rows: int
) -> tuple[da.Array, Callable[[Sequence[int], int], da.Array]]:
    """Return all rows as a lazy Dask array, and the function `Features.read_blocks`."""
    rows = _rows_per_chunk(shape, dtype, block_rows)
    array = _lazy_rows(read, shape, dtype, rows)
    return array, partial(_lazy_blocks, read, shape, dtype, block_rows)


def _lazy_rows(read: _Read, shape: tuple[int, ...], dtype: Any, rows_per_chunk: int) -> da.Array:
    """Return a Dask array whose chunks are read by the workers, in the task that uses them.

    The array has a new name each time, so that Dask does not reuse chunks of an earlier array: the
    file at a path may have changed.
    """
    n_chunks = _check_blocks(shape[0], rows_per_chunk)
    last = shape[0] - (n_chunks - 1) * rows_per_chunk
    sizes = (rows_per_chunk,) * (n_chunks - 1) + (last,) * min(n_chunks, 1)
    return da.map_blocks(
        _read_chunk,
        read=read,
        rows_per_chunk=rows_per_chunk,
        n_rows=shape[0],
        chunks=(sizes, *((size,) for size in shape[1:])),
        dtype=dtype,
        meta=np.empty((0,) * len(shape), dtype),
        name=f"read-{uuid4().hex}",
    )


def _lazy_blocks(
    read: _Read,
    shape: tuple[int, int],
    dtype: Any,
    block_rows: int,
    blocks: Sequence[int],
    blocks_per_chunk: int,
) -> da.Array:
    """Return the rows of the given ascending blocks as `_lazy_rows` returns all rows."""
    numbers = np.array(blocks)
    sizes = np.minimum(block_rows, shape[0] - numbers * block_rows)
    starts = np.arange(0, len(blocks), blocks_per_chunk)
    return da.map_blocks(
        _read_blocks,
        read=read,
        numbers=send_numbers(blocks),
        block_rows=block_rows,
        blocks_per_chunk=blocks_per_chunk,
        n_rows=shape[0],
        chunks=(tuple(np.add.reduceat(sizes, starts).tolist()), (shape[1],)),
        dtype=dtype,
        meta=np.empty((0, 0), dtype),
        name=f"read-{uuid4().hex}",
    )


def _read_chunk(
    read: _Read, rows_per_chunk: int, n_rows: int, block_id: Any = None
) -> NDArray[Any]:
    start = block_id[0] * rows_per_chunk
    return read([(start, min(start + rows_per_chunk, n_rows))])


def _read_blocks(
    read: _Read,
    numbers: NDArray[np.int64],
    block_rows: int,
    blocks_per_chunk: int,
    n_rows: int,
    block_id: Any = None,
) -> NDArray[Any]:
    """Read the blocks of a chunk; consecutive blocks are one range of rows."""
    first = block_id[0] * blocks_per_chunk
    mine = numbers[first : first + blocks_per_chunk]
    runs = np.split(mine, np.flatnonzero(np.diff(mine) != 1) + 1)
    ends = [(int(run[0]) * block_rows, (int(run[-1]) + 1) * block_rows) for run in runs]
    return read([(start, min(stop, n_rows)) for start, stop in ends])


def _take_blocks(needed: list[tuple[NDArray[Any], list[int]]], block_rows: int) -> NDArray[Any]:
    """Return the rows of blocks in chunks, given with the positions of the blocks in each chunk."""
    return _joined(
        [
            chunk[number * block_rows : (number + 1) * block_rows]
            for chunk, numbers in needed
            for number in numbers
        ]
    )


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    # `ma` keeps masks, so that masked rows are rejected by name
    join = np.ma.concatenate if any(map(np.ma.isMaskedArray, parts)) else np.concatenate
    return parts[0] if len(parts) == 1 else join(parts)


def _placeholder(dtype: np.dtype[Any], n_features: int, spans: _Spans) -> NDArray[Any]:
    # with strides of 0, the array has the shape of the rows but uses no memory
    n_rows = sum(stop - start for start, stop in spans)
    return np.broadcast_to(dtype.type(0), (n_rows, n_features))


def _read_stored(source: StoredArray, spans: _Spans) -> NDArray[Any]:
    return read_in_turn(lambda: read_spans(source, spans, "the features store"))


def _read_object(source: zarr.Array[Any], spans: _Spans) -> NDArray[Any]:
    return read_in_turn(lambda: _joined([np.asarray(source[start:stop]) for start, stop in spans]))


def _as_column(source: Any, features: Features) -> da.Array:
    if isinstance(source, Location):
        stored = feature_store.open_weights(source)
        _check_length(stored.shape[0], features)
        read, rows = partial(_read_weights, stored), features.array.chunks[0][0]
        return _lazy_rows(read, (features.n_rows, 1), np.float64, rows)
    if isinstance(source, da.Array):
        _check_futures(source, feature_store.WEIGHTS)
        meta = np.empty((0,) * source.ndim, source.dtype)
        values = source.map_blocks(_remove_mask, dtype=source.dtype, meta=meta)
    else:
        values = np.asarray(remove_mask(source, feature_store.WEIGHTS))
    feature_store.check_weights_like(values.shape, values.dtype, feature_store.WEIGHTS)
    _check_length(values.shape[0], features)
    if isinstance(values, np.ndarray):
        values = scatter_rows(values, features.array.chunks[0][0])
    return values.astype(np.float64)[:, None].rechunk((features.array.chunks[0], (1,)))


def _check_futures(source: da.Array, what: str) -> None:
    """Raise if the array has blocks on a cluster that this run does not use."""
    if current_client() is not None or "distributed" not in sys.modules:
        return
    from distributed import futures_of

    if futures_of(source):
        raise InputError(
            f"{what} is persisted on a cluster, but this run computes in threads, because it is "
            "inside a Dask task or because of Dask's configuration; give a path, or an array that "
            "is not persisted"
        )


def _remove_mask(block: Any, block_info: Any = None) -> Any:
    return remove_mask(block, feature_store.WEIGHTS, block_info[None]["array-location"][0][0])


def _check_length(n_rows: int, features: Features) -> None:
    if n_rows != features.n_rows:
        raise InputError(
            f"got {n_rows} sample weights for {features.n_rows} rows; give one weight per row"
        )


def _read_weights(source: StoredArray | NpyColumn, spans: _Spans) -> NDArray[np.float64]:
    return read_in_turn(lambda: _read_numbers(source, spans)).astype(np.float64)[:, None]


def _read_numbers(source: StoredArray | NpyColumn, spans: _Spans) -> NDArray[Any]:
    if isinstance(source, NpyColumn):
        return _joined([source.read(start, stop) for start, stop in spans])
    return read_spans(source, spans, feature_store.WEIGHTS)
