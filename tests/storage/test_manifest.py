"""The manifest: what a store must hold, which of its blocks are there, whether they are whole."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.storage.feature_store import (
    block_arrays,
    create_features_store,
    mark_complete,
    open_features_store,
    write_features_block,
)
from scrlm_dask.storage.manifest import (
    Manifest,
    SourceFile,
    check_digest,
    create_manifest,
    digest_arrays,
    missing_blocks,
    read_manifest,
    write_digest,
)

MANIFEST = Manifest(
    n_rows=10,
    n_features=2,
    dtype="float32",
    block_rows=4,
    sources=(SourceFile("/data/a.npy", 200), SourceFile("/data/b.npy", 80)),
    request={"format": "npy", "columns": None},
)
ROWS: NDArray[np.float32] = np.arange(20, dtype=np.float32).reshape(10, 2)
NAMES = np.array([f"row {i}" for i in range(10)], np.dtypes.StringDType())


def store_in(path: Path, *blocks: int, **options: Any) -> str:
    """A store of the manifest above in which the given blocks are written."""
    url = create_features_store(path / "s", MANIFEST, **options).url
    for block in blocks:
        rows = MANIFEST.rows_of(block)
        here = slice(rows.start, rows.stop)
        labels = np.zeros(len(rows), np.int32) if options.get("labels") else None
        ids = NAMES[here] if options.get("ids") else None
        write_features_block(url, rows.start, ROWS[here], labels, ids)
    return url


def test_the_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    url = store_in(tmp_path)
    assert read_manifest(url) == MANIFEST
    assert (MANIFEST.n_blocks, MANIFEST.rows_of(0), MANIFEST.rows_of(2)) == (
        3,
        range(0, 4),
        range(8, 10),
    )


def test_stores_of_others_have_none(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "a"), shape=(2, 2), dtype="float32")
    zarr.create_group(str(tmp_path / "g"), attributes={"manifest": "bill of lading"})
    assert read_manifest(str(tmp_path / "a")) is None
    assert read_manifest(str(tmp_path / "g")) is None
    with pytest.raises(StoreError, match="has no manifest"):
        check_digest(str(tmp_path / "a"), 0, ROWS)
    with pytest.raises(StoreError, match="is an array and has no manifest"):
        missing_blocks(str(tmp_path / "a"))
    with pytest.raises(StoreError, match="does not exist"):
        read_manifest(str(tmp_path / "nowhere"))


@pytest.mark.parametrize("change", [{"format": 2}, {"n_rows": None}, {"more": 1}, {"sources": 3}])
def test_a_manifest_of_another_version_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    url = store_in(tmp_path)
    attributes = zarr.open_group(url, mode="r+").attrs
    content = {**attributes["manifest"], **change}
    attributes["manifest"] = {k: v for k, v in content.items() if v is not None}
    with pytest.raises(StoreError, match=r"manifest of .*another version.*write the store again"):
        read_manifest(url)


def test_blocks_without_a_digest_are_missing(tmp_path: Path) -> None:
    url = store_in(tmp_path)
    assert missing_blocks(url) == [0, 1, 2]
    write_digest(url, 1, ROWS[4:8])
    assert missing_blocks(url) == [0, 2]
    write_digest(url, 2, ROWS[8:])
    write_digest(url, 0, ROWS[:4])
    assert missing_blocks(url) == []


def test_the_digests_are_an_array_that_zarr_knows(tmp_path: Path) -> None:
    url = store_in(tmp_path, 0)
    digests = zarr.open_array(f"{url}/digests", mode="r")
    assert (digests.shape, digests.chunks, digests.dtype) == ((3, 32), (1, 32), np.uint8)
    assert digests[0].tobytes() == digest_arrays(ROWS[:4])
    assert sorted(zarr.open_group(url, mode="r").array_keys()) == ["digests", "features"]


def test_an_unfinished_store_says_which_blocks_it_lacks(tmp_path: Path) -> None:
    url = store_in(tmp_path, 1)
    with pytest.raises(StoreError, match=r"unfinished: 2 of 3 blocks are missing \(0, 2\)"):
        open_features_store(url)
    # a writer that says it is done too early is not believed
    mark_complete(url)
    with pytest.raises(StoreError, match=r"unfinished: 2 of 3 blocks are missing \(0, 2\)"):
        open_features_store(url)


def test_of_many_missing_blocks_the_first_few_are_named(tmp_path: Path) -> None:
    url = create_features_store(tmp_path / "s", Manifest(100, 2, "float16", 2, (), {}))
    with pytest.raises(StoreError, match=r"50 of 50 blocks are missing \(0, 1, 2, 3, 4, \.\.\.\)"):
        open_features_store(url)


def test_a_store_with_every_block_is_unfinished_until_it_is_marked(tmp_path: Path) -> None:
    url = store_in(tmp_path, 0, 1, 2)
    with pytest.raises(StoreError, match="whoever wrote it was stopped"):
        open_features_store(url)
    mark_complete(url)
    assert open_features_store(url).shape == (10, 2)


@pytest.mark.parametrize("ids", [None, "str"])
@pytest.mark.parametrize("labels", [False, True])
def test_what_is_read_back_has_the_digest(tmp_path: Path, labels: bool, ids: str | None) -> None:
    url = store_in(tmp_path, 0, 1, 2, labels=labels, ids=ids)
    for block in range(3):
        rows = MANIFEST.rows_of(block)
        arrays = block_arrays(url, rows.start, rows.stop)
        assert len(arrays) == 1 + labels + (ids is not None)
        check_digest(url, block, *arrays)


def test_a_changed_block_is_named_with_its_rows(tmp_path: Path) -> None:
    url = store_in(tmp_path, 0, 1, 2)
    changed = ROWS[8:].copy()
    changed[1, 1] = np.nextafter(changed[1, 1], 0)
    with pytest.raises(StoreError, match=rf"block 2 \(rows 8 to 9\) of .*{url} is not what was"):
        check_digest(url, 2, changed)
    with pytest.raises(StoreError, match="block 0"):
        check_digest(url, 0, ROWS[4:8])


def test_a_digest_that_is_gone_is_an_error_not_zeros(tmp_path: Path) -> None:
    url = store_in(tmp_path, 0, 1, 2)
    Path(url, "digests/c/1/0").unlink()
    with pytest.raises(StoreError, match=r"c/1/0 of the digests .* is missing"):
        check_digest(url, 1, ROWS[4:8])


def test_a_block_in_another_type_is_not_converted_in_silence(tmp_path: Path) -> None:
    url = store_in(tmp_path, labels=True)
    with pytest.raises(InputError, match="features of float64 do not go into"):
        write_features_block(url, 0, ROWS[:4].astype(float), np.zeros(4, np.int32))
    with pytest.raises(InputError, match="labels of int64 do not go into"):
        write_features_block(url, 0, ROWS[:4], np.zeros(4, np.int64))  # type: ignore[arg-type]
    assert missing_blocks(url) == [0, 1, 2]


@pytest.mark.parametrize(("dtype", "ids"), [("float64", None), ("int8", None), ("float16", "S5")])
def test_only_what_readers_understand_is_laid_out(
    tmp_path: Path, dtype: str, ids: str | None
) -> None:
    with pytest.raises(InputError, match=f"features of {dtype} with ids of {ids} cannot"):
        create_features_store(tmp_path / "s", Manifest(1, 1, dtype, 1, (), {}), ids=ids)
    assert not (tmp_path / "s").exists()


# --- the digest --------------------------------------------------------------------------------


def test_the_digest_is_sha256_of_type_shape_and_bytes() -> None:
    expected = hashlib.sha256(b"<f4(4, 2)" + ROWS[:4].tobytes()).digest()
    assert digest_arrays(ROWS[:4]) == expected
    # neither the layout in memory nor the byte order is part of what is stored
    assert digest_arrays(np.asfortranarray(ROWS[:4])) == expected
    assert digest_arrays(ROWS[:4].astype(">f4")) == expected
    assert digest_arrays(ROWS[:8:2]) != expected


def test_a_border_that_moves_is_noticed() -> None:
    text = np.dtypes.StringDType()
    assert digest_arrays(np.array(["ab", "c"], text)) != digest_arrays(np.array(["a", "bc"], text))
    assert digest_arrays(ROWS[:2], ROWS[2:4]) != digest_arrays(ROWS[:3], ROWS[3:4])
    assert digest_arrays(ROWS[:2]) != digest_arrays(ROWS[:2].reshape(1, 4))
    assert digest_arrays(np.zeros(2, np.int32)) != digest_arrays(np.zeros(2, np.float32))
    assert digest_arrays(np.zeros((0, 2))) != digest_arrays(np.zeros((0, 3)))


@given(
    arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=6)),
    st.data(),
)
def test_any_flipped_bit_changes_the_digest(values: NDArray[np.float32], data: Any) -> None:
    before = digest_arrays(values)
    flat = values.copy().reshape(-1).view(np.uint8)
    flat[data.draw(st.integers(0, flat.size - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert digest_arrays(flat.view(np.float32).reshape(values.shape)) != before


def test_the_manifest_can_be_given_to_a_group_that_is_there(tmp_path: Path) -> None:
    zarr.create_group(str(tmp_path / "g"), attributes={"mine": 1})
    create_manifest(str(tmp_path / "g"), MANIFEST)
    assert read_manifest(str(tmp_path / "g")) == MANIFEST
    assert zarr.open_group(str(tmp_path / "g"), mode="r").attrs["mine"] == 1
