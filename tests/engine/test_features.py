"""Features and sample weights of all supported types, as blocks of rows."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from backends import backend

from scrlm_dask.engine.block_layout import Layout
from scrlm_dask.engine.features import (
    as_features,
    as_weights,
    check_weights,
    column_of,
    persist_features,
    placeholder_blocks,
    scatter_rows,
)
from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.stores import write_features
from scrlm_dask.pipeline.synth import synth

X = np.arange(20, dtype=np.float32).reshape(10, 2)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with backend("one thread"):
        yield


def source_of(kind: str, folder: Path) -> Any:
    if kind == "numpy":
        return X
    if kind == "dask":
        return da.from_array(X, chunks=(7, 1))
    if kind == "zarr in memory":
        return zarr.array(X, chunks=(3, 2))
    write_features(X, folder / "x.zarr")
    path = folder / "x.zarr"
    return {"path": path, "text": str(path), "url": f"file://{path}"}[kind]


@pytest.mark.parametrize("kind", ["numpy", "dask", "zarr in memory", "path", "text", "url"])
def test_every_source_has_the_same_rows_and_blocks(kind: str, tmp_path: Path) -> None:
    features = as_features(source_of(kind, tmp_path), 4)
    assert features.array.chunks == ((4, 4, 2), (2,))
    np.testing.assert_array_equal(features.array.compute(), X)
    assert (features.n_rows, features.n_features, features.n_blocks) == (10, 2, 3)
    assert features.layout.row_bytes == 8
    stored = kind in ("path", "text", "url")
    assert features.path == (str(tmp_path / "x.zarr") if stored else None)
    assert features.in_memory == (kind == "numpy")


@pytest.mark.parametrize(
    ("source", "fact"),
    [
        ([[1.0]], r"\blist\b"),
        (np.ones(3), r"\b1\b"),
        (np.ones((0, 3)), r"\(0, 3\)"),
        (np.ones((2, 2), int), "int64"),
        (da.ones((4, 2), chunks=2)[da.ones(4, chunks=2) > 0], "compute_chunk_sizes"),
        (da.ones((4, 2), chunks=2, dtype=int), "int64"),
        (zarr.array(np.ones((2, 2, 2))), r"\b3\b"),
    ],
    ids=["a list", "a column", "empty", "integers", "unknown chunks", "lazy integers", "a cube"],
)
def test_rejected_features(source: Any, fact: str) -> None:
    with pytest.raises(InputError, match=fact):
        as_features(source)


def test_block_rows_must_be_positive() -> None:
    with pytest.raises(InputError, match=r"(?=.*block_rows)(?=.*\b0\b)"):
        as_features(X, 0)


def test_missing_chunks_of_an_array_in_memory_are_counted() -> None:
    array = zarr.create_array({}, shape=(10, 2), chunks=(4, 2), dtype="f4")
    array[:4] = 1.0
    with pytest.raises(StoreError, match=r"(?=.*\b2\b)(?=.*write_empty_chunks=True)"):
        as_features(array)


def test_layout_of_a_stored_array(tmp_path: Path) -> None:
    synth(tmp_path / "x.zarr", 3000, MixtureSpec(8, 3), chunk_bytes=1024 * 32)
    layout = as_features(tmp_path / "x.zarr", 500).layout
    # blocks need not be aligned with chunks; checksums need no second copy
    assert layout == Layout(3000, 8, 4, 500, 1024, read_copies=1)
    larger = as_features(tmp_path / "x.zarr", 500).in_blocks_for(400)
    assert larger.layout == layout.in_blocks_for(400) == Layout(3000, 8, 4, 1000, 1024, 2)


def test_larger_blocks_have_the_same_rows() -> None:
    features = as_features(X, 2)
    larger = features.in_blocks_for(2)  # 2 * 2 * 8 bytes of sums are 4 rows of 8 bytes
    assert larger.array.chunks[0] == (4, 4, 2)
    assert larger.made_of is features
    np.testing.assert_array_equal(larger.array.compute(), X)
    assert features.in_blocks_for(1) is features


def test_persisted_features_are_not_read_again() -> None:
    source = X.copy()
    lazy = da.from_array(source, chunks=4, name=False).map_blocks(np.copy)
    features = persist_features(as_features(lazy, 4))
    source[:] = -1.0
    np.testing.assert_array_equal(features.array.compute(), X)


def test_placeholders_use_no_memory() -> None:
    features = placeholder_blocks((10, 3), np.dtype("f4"), 4)
    assert features.array.chunks == ((4, 4, 2), (3,))
    block = features.array.to_delayed()[0, 0].compute()
    assert (block.shape, block.dtype, block.strides) == ((4, 3), np.float32, (0, 0))


def test_rows_are_scattered_in_blocks() -> None:
    found = scatter_rows(X, 4)
    assert found.chunks == ((4, 4, 2), (2,))
    np.testing.assert_array_equal(found.compute(), X)
    assert scatter_rows(X[:, 0], 4).chunks == ((4, 4, 2),)


def weights_of(kind: str, values: np.ndarray, folder: Path) -> Any:
    if kind == "dask":
        return da.from_array(values, chunks=3)
    if kind == "npy":
        np.save(folder / "w.npy", values)
        return folder / "w.npy"
    if kind == "zarr":
        array = zarr.create_array(
            str(folder / "w.zarr"), shape=(len(values),), chunks=(3,), dtype="f4"
        )
        array[:] = values
        return folder / "w.zarr"
    return values


@pytest.mark.parametrize("kind", ["numpy", "dask", "npy", "zarr"])
def test_weights_have_the_same_blocks_as_the_rows(kind: str, tmp_path: Path) -> None:
    features, values = as_features(X, 4), np.arange(1, 11, dtype=np.float32)
    source = weights_of(kind, values, tmp_path)
    check_weights(source, features)
    found = as_weights(source, features)
    assert found is not None
    assert (found.chunks, found.dtype) == (((4, 4, 2), (1,)), np.float64)
    np.testing.assert_array_equal(found.compute()[:, 0], values)


def test_no_weights() -> None:
    assert as_weights(None, as_features(X)) is None


@pytest.mark.parametrize("kind", ["npy", "zarr"])
def test_length_of_a_weights_file_is_checked_before_reading(kind: str, tmp_path: Path) -> None:
    source = weights_of(kind, np.ones(9), tmp_path)
    with pytest.raises(InputError, match=r"(?=.*\b9\b)(?=.*\b10\b)"):
        check_weights(source, as_features(X))


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        (np.where(np.arange(10) == 6, -2.0, 1.0), r"(?=.*\brow 6\b)(?=.*-2\.0)"),
        (np.where(np.arange(10) == 5, np.nan, 1.0), r"(?=.*\brow 5\b)(?=.*\bnan\b)"),
        (np.zeros(10), r"\bzero|\b0\b"),
        (np.full(10, 1e250), r"1e\+250"),
        (np.ones((10, 1)), r"\(10, 1\)"),
    ],
    ids=["negative", "NaN", "zeros", "1e250", "table"],
)
def test_rejected_weights(values: np.ndarray, facts: str) -> None:
    with pytest.raises(InputError, match=facts):
        as_weights(values, as_features(X, 4))


@pytest.mark.parametrize(("blocks", "rows"), [(None, [0, 1, 2]), ([2, 0], [2, 0])])
def test_results_of_blocks_as_a_column(blocks: list[int] | None, rows: list[int]) -> None:
    features, sizes = as_features(X, 4), [4, 4, 2]
    parts = [dask.delayed(np.full)((sizes[i], 2), i) for i in rows]
    found = column_of(parts, features, blocks, np.int64, width=2)
    assert found.chunks == (tuple(sizes[i] for i in rows), (2,))
    expected = np.concatenate([np.full((sizes[i], 2), i) for i in rows])
    np.testing.assert_array_equal(found.compute(), expected)


def test_blocks_larger_than_the_array_need_no_more_memory() -> None:
    assert (
        as_features(X, 10**15).layout.reading_bytes == as_features(X, len(X)).layout.reading_bytes
    )


@pytest.mark.parametrize("kind", ["store", "plan"])
def test_memory_of_the_largest_number_of_blocks(kind: str) -> None:
    """The blocks of the store are batched; those of the plan are not."""
    n_rows, dtype = 10**6, np.dtype("f4")
    array = zarr.create_array({}, shape=(n_rows, 2), chunks=(n_rows, 2), dtype=dtype)
    array[:] = 1.0
    tracemalloc.start()
    try:
        is_store = kind == "store"
        features = as_features(array, 1) if is_store else placeholder_blocks((n_rows, 2), dtype, 1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert features.n_blocks == n_rows
    assert peak < (5e6 if is_store else 150e6)
    with pytest.raises(InputError, match=r"\b1000001 blocks\b"):
        placeholder_blocks((n_rows + 1, 2), dtype, 1)


def test_number_of_blocks_is_bounded_before_a_list_is_created() -> None:
    with pytest.raises(InputError, match=r"\b1000000000000 blocks\b.*--block-rows"):
        placeholder_blocks((10**15, 4), np.dtype("float32"), 1000)
