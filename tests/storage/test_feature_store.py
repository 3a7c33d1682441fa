"""The features store: accepted arrays, rejected arrays, and sizes of blocks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

from scrlm_dask.engine.features import as_features
from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.storage.arrays import add_array, describe, read_rows
from scrlm_dask.storage.feature_store import (
    block_rows_for,
    check_features_like,
    create_features_store,
    has_truth,
    mark_complete,
    open_features_store,
    read_true_sigmas,
    write_features_block,
)
from scrlm_dask.storage.label_store import open_labels
from scrlm_dask.storage.manifest import Manifest

ROWS: NDArray[np.float32] = np.arange(40, dtype=np.float32).reshape(10, 4)
TRUTH: NDArray[np.int32] = np.array([0, 0, 0, 1, 1, 1, 2, 2, -1, -1], np.int32)
FLOAT32 = np.dtype(np.float32)


def empty_store(path: Path, n_rows: int, **options: Any) -> str:
    manifest = Manifest(n_rows, 4, "float32", 4, (), {"by": "a test"})
    return create_features_store(path, manifest, labels=True, **options).url


def finished_store(path: Path) -> str:
    """Write 10 rows in blocks of 4, as `synth` does."""
    url = empty_store(path, 10, attributes={"mixture": {"seed": 3}})
    for start in (0, 4, 8):
        write_features_block(url, start, ROWS[start : start + 4], TRUTH[start : start + 4])
    mark_complete(url)
    return url


def array_in(path: Path | str, values: NDArray[Any] = ROWS, **options: Any) -> zarr.Array[Any]:
    options = {"shape": values.shape, "chunks": values.shape, "dtype": values.dtype, **options}
    array = zarr.create_array(str(path), **options)
    array[...] = values
    return array


# --- our stores --------------------------------------------------------------------------------


def test_layout_of_a_store(tmp_path: Path) -> None:
    url = finished_store(tmp_path / "s")
    assert url == f"{tmp_path}/s"
    group = zarr.open_group(url, mode="r")
    assert group.metadata.zarr_format == 3
    attributes = dict(group.attrs)
    assert attributes.pop("manifest")["request"] == {"by": "a test"}
    assert attributes == {"mixture": {"seed": 3}, "scrlm": "features", "complete": True}
    assert sorted(group.array_keys()) == ["digests", "features", "labels"]
    features, labels = group["features"], group["labels"]
    assert isinstance(features, zarr.Array)
    assert isinstance(labels, zarr.Array)
    assert (features.dtype, features.shape, features.chunks) == (np.float32, (10, 4), (4, 4))
    assert (labels.dtype, labels.shape, labels.chunks) == (np.int32, (10,), (4,))
    for array in (features, labels):
        assert [c["name"] for c in array.metadata.to_dict()["codecs"]] == ["bytes", "crc32c"]
    assert np.isnan(features.fill_value)  # never a feature
    assert labels.fill_value == -2  # neither a cluster nor an outlier
    # a block is one file: two workers never write to the same one
    assert sorted(p.name for p in (tmp_path / "s/features/c").iterdir()) == ["0", "1", "2"]


def test_finished_store_is_opened_and_read(tmp_path: Path) -> None:
    url = finished_store(tmp_path / "s")
    store = open_features_store(url)
    assert store.location.url == f"{tmp_path}/s/features"
    assert (store.shape, store.chunks) == ((10, 4), (4, 4))
    np.testing.assert_array_equal(read_rows(store, 0, 10, "it"), ROWS)
    assert has_truth(url)
    np.testing.assert_array_equal(read_rows(open_labels(url, "it"), 0, 10, "it"), TRUTH)


def test_unfinished_store_with_all_rows_is_rejected(tmp_path: Path) -> None:
    url = finished_store(tmp_path / "s")
    open_features_store(url)
    zarr.open_group(url, mode="r+").attrs["complete"] = False
    with pytest.raises(StoreError, match=f"{tmp_path}/s"):
        open_features_store(url)


def test_new_store_is_unfinished(tmp_path: Path) -> None:
    url = empty_store(tmp_path / "s", 10)
    with pytest.raises(StoreError, match=rf"(?=.*{tmp_path}/s)(?=.*\b0, 1, 2\b)"):
        open_features_store(url)


def test_finished_store_with_a_missing_chunk_is_rejected(tmp_path: Path) -> None:
    url = finished_store(tmp_path / "s")
    (tmp_path / "s/features/c/1/0").unlink()
    with pytest.raises(StoreError, match=r"(?=.*/s/features\b)(?=.*\bc/1/0\b)(?=.*\brow 4\b)"):
        open_features_store(url)


def test_blocks_of_zeros_are_stored(tmp_path: Path) -> None:
    url = empty_store(tmp_path / "s", 8)
    for start in (0, 4):
        write_features_block(url, start, np.zeros((4, 4), np.float32), np.zeros(4, np.int32))
    mark_complete(url)
    stored = open_features_store(url)
    np.testing.assert_array_equal(read_rows(stored, 0, 8, "it"), np.zeros((8, 4)))


def test_blocks_of_fill_values_are_stored(tmp_path: Path) -> None:
    url = empty_store(tmp_path / "s", 4)
    write_features_block(url, 0, np.full((4, 4), np.nan, np.float32), np.full(4, -2, np.int32))
    mark_complete(url)
    store = open_features_store(url)
    assert np.isnan(read_rows(store, 0, 4, "it")).all()
    assert has_truth(url)
    assert read_rows(open_labels(url, "it"), 0, 4, "it").tolist() == [-2] * 4


def test_sigmas_of_the_true_mixture(tmp_path: Path) -> None:
    url = finished_store(tmp_path / "s")
    assert read_true_sigmas(url) is None
    add_array(f"{url}/true_sigmas", np.array([0.25, 0.5]))
    sigmas = read_true_sigmas(url)
    assert sigmas is not None
    assert sigmas.tolist() == [0.25, 0.5]
    array_in(tmp_path / "bare")
    assert read_true_sigmas(tmp_path / "bare") is None


# --- foreign stores ----------------------------------------------------------------------------


# consolidated metadata is not part of the Zarr v3 specification yet
@pytest.mark.parametrize(("zarr_format", "consolidated"), [(2, False), (2, True), (3, False)])
def test_foreign_group_is_read(tmp_path: Path, zarr_format: Any, consolidated: bool) -> None:
    zarr.create_group(str(tmp_path / "g"), zarr_format=zarr_format)
    for name, values in (("features", ROWS), ("labels", TRUTH), ("paths", TRUTH)):
        array_in(tmp_path / "g" / name, values, zarr_format=zarr_format)
    if consolidated:
        zarr.consolidate_metadata(str(tmp_path / "g"))
    store = open_features_store(tmp_path / "g")
    np.testing.assert_array_equal(read_rows(store, 0, 10, "it"), ROWS)
    assert has_truth(tmp_path / "g")
    np.testing.assert_array_equal(read_rows(open_labels(tmp_path / "g", "it"), 0, 10, "it"), TRUTH)


def test_bare_array_has_no_truth(tmp_path: Path) -> None:
    array_in(tmp_path / "a")
    store = open_features_store(str(tmp_path / "a"))
    assert not has_truth(str(tmp_path / "a"))
    np.testing.assert_array_equal(read_rows(store, 0, 10, "it"), ROWS)


def test_array_inside_a_group_is_opened_by_its_path(tmp_path: Path) -> None:
    zarr.create_group(str(tmp_path / "g"))
    array_in(tmp_path / "g/embeddings")
    store = open_features_store(tmp_path / "g/embeddings")
    np.testing.assert_array_equal(read_rows(store, 0, 10, "it"), ROWS)


@pytest.mark.parametrize("where", ["bare array", "group"])
def test_store_at_an_fsspec_url(where: str) -> None:
    root = f"memory://scrlm-{uuid4().hex}"
    try:
        if where == "group":
            zarr.create_group(f"{root}/x.zarr")
        name = "x.zarr/features" if where == "group" else "x.zarr"
        array_in(f"{root}/{name}", chunks=(3, 4))
        stored = open_features_store(f"{root}/x.zarr")
        assert stored.location.url == f"{root}/{name}"  # workers open it by this URL
        np.testing.assert_array_equal(read_rows(stored, 2, 7, "it"), ROWS[2:7])
        fsspec.filesystem("memory").rm(f"{root}/{name}/c/1/0")
        with pytest.raises(StoreError, match=rf"(?=.*{root}/{name})(?=.*\bc/1/0\b)(?=.*row 3\b)"):
            open_features_store(f"{root}/x.zarr")
        with pytest.raises(StoreError, match=rf"(?=.*{root}/{name})(?=.*\bc/1/0\b)(?=.*rows 2\b)"):
            read_rows(stored, 2, 7, "it")
    finally:
        fsspec.filesystem("memory").rm(root, recursive=True)


def test_group_without_features_lists_its_arrays(tmp_path: Path) -> None:
    zarr.create_group(str(tmp_path / "g"))
    with pytest.raises(StoreError, match=f"(?=.*{tmp_path}/g)(?=.*'features')"):
        open_features_store(tmp_path / "g")
    array_in(tmp_path / "g/img")
    array_in(tmp_path / "g/emb")
    with pytest.raises(StoreError) as caught:
        open_features_store(tmp_path / "g")
    for fact in (f"{tmp_path}/g", "'features'", "emb, img"):
        assert fact in str(caught.value)


def test_group_called_features_is_not_an_array(tmp_path: Path) -> None:
    zarr.create_group(str(tmp_path / "g")).create_group("features")
    with pytest.raises(StoreError, match=f"(?=.*{tmp_path}/g)(?=.*'features')"):
        open_features_store(tmp_path / "g")


def test_other_files_in_the_group_are_ignored(tmp_path: Path) -> None:
    # without a warning: users keep a README with their data
    finished_store(tmp_path / "s")
    (tmp_path / "s/README.md").write_text("embeddings of the cats\n")
    assert open_features_store(tmp_path / "s").shape == (10, 4)


# --- rejected arrays ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        (np.ones(4, np.float32), [r"\b1\b"]),
        (np.ones((2, 3, 4), np.float32), [r"\b3\b"]),
        (np.ones((), np.float32), [r"\b0\b"]),
        (np.ones((4, 4), np.int32), [r"\bint32\b", "float16", "float64", "astype.*float32"]),
        (np.ones((4, 4), np.uint8), [r"\buint8\b", "astype.*float32"]),
        (np.ones((4, 4), np.complex64), [r"\bcomplex64\b", "astype.*float32"]),
        (np.ones((4, 4), np.bool_), [r"\bbool\b", "astype.*float32"]),
    ],
    ids=["1-D", "3-D", "0-D", "int32", "uint8", "complex64", "bool"],
)
@pytest.mark.parametrize("where", ["bare", "group/features"])
def test_other_shapes_and_types_are_rejected(
    tmp_path: Path, values: NDArray[Any], facts: list[str], where: str
) -> None:
    if where != "bare":
        zarr.create_group(str(tmp_path / "group"))
    array_in(tmp_path / where, values)
    with pytest.raises(InputError) as caught:
        open_features_store(tmp_path / where.split("/")[0])
    assert f"{tmp_path}/{where}" in str(caught.value)
    for fact in facts:
        assert re.search(fact, str(caught.value).replace(f"{tmp_path}/{where}", ""))


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
def test_table_without_rows_or_features_is_rejected(tmp_path: Path, shape: tuple[int, int]) -> None:
    zarr.create_array(str(tmp_path / "a"), shape=shape, chunks=(3, 4), dtype="float32")
    with pytest.raises(InputError) as caught:
        open_features_store(tmp_path / "a")
    for fact in (f"{tmp_path}/a", str(shape)):
        assert fact in str(caught.value)


def test_open_array_is_checked(tmp_path: Path) -> None:
    array = array_in(tmp_path / "a", chunks=(3, 4))
    assert as_features(array).path == describe(array).location.url
    assert open_features_store(tmp_path / "a") == describe(array)
    (tmp_path / "a/c/2/0").unlink()
    with pytest.raises(StoreError, match=r"(?=.*\bc/2/0\b)(?=.*\brow 6\b)"):
        as_features(array)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ">f4", ">f8"])
def test_all_float_types_are_accepted(dtype: str) -> None:
    check_features_like((1, 1), np.dtype(dtype), "it")


# --- blocks ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_rows", "n_features", "chunk_rows", "target", "expected"),
    [
        (1000, 4, None, 160, 10),  # 16 bytes per row, so 10 rows fit
        (1000, 4, None, 175, 10),
        (1000, 4, 3, 160, 9),  # whole chunks only
        (1000, 4, 10, 160, 10),
        (1000, 4, 25, 160, 25),  # a chunk is never split
        (8, 4, None, 160, 8),  # at most all rows
        (8, 4, 5, 160, 8),
        (1000, 4, None, 15, 1),  # a row wider than the target
        (1000, 4, 1, 15, 1),
    ],
)
def test_rows_of_a_block(
    n_rows: int, n_features: int, chunk_rows: int | None, target: int, expected: int
) -> None:
    assert block_rows_for((n_rows, n_features), FLOAT32, chunk_rows, target) == expected


def test_default_block_is_64_mebibytes() -> None:
    assert block_rows_for((10**9, 1024), FLOAT32, None) == 64 * 2**20 // 4096
