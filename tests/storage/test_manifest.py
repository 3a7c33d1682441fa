"""The manifest: expected content of a store, missing blocks, and digests of blocks."""

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

from scrlm_dask.errors import InputError, MissingError, StoreError
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
    compare_digests,
    create_manifest,
    digest_arrays,
    missing_blocks,
    open_digests,
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
    """Create a store with the manifest above and write the given blocks."""
    url = create_features_store(path / "s", MANIFEST, **options).url
    for block in blocks:
        rows = MANIFEST.rows_of(block)
        here = slice(rows.start, rows.stop)
        labels = np.zeros(len(rows), np.int32) if options.get("labels") else None
        ids = NAMES[here] if options.get("ids") else None
        write_features_block(url, rows.start, ROWS[here], labels, ids)
    return url


def test_manifest_round_trip(tmp_path: Path) -> None:
    url = store_in(tmp_path)
    assert read_manifest(url) == MANIFEST
    assert (MANIFEST.n_blocks, MANIFEST.rows_of(0), MANIFEST.rows_of(2)) == (
        3,
        range(0, 4),
        range(8, 10),
    )


def test_foreign_stores_have_no_manifest(tmp_path: Path) -> None:
    zarr.create_array(str(tmp_path / "a"), shape=(2, 2), dtype="float32")
    zarr.create_group(str(tmp_path / "g"), attributes={"manifest": "bill of lading"})
    assert read_manifest(str(tmp_path / "a")) is None
    assert read_manifest(str(tmp_path / "g")) is None
    with pytest.raises(StoreError, match=rf"(?=.*{tmp_path}/a\b)(?=.*manifest)"):
        check_digest(str(tmp_path / "a"), 0, ROWS)
    with pytest.raises(StoreError, match=rf"(?=.*{tmp_path}/a\b)(?=.*manifest)"):
        missing_blocks(str(tmp_path / "a"))
    with pytest.raises(MissingError, match=f"{tmp_path}/nowhere"):
        read_manifest(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    "change",
    [
        *({"format": 2}, {"n_rows": None}, {"more": 1}, {"sources": 3}, {"n_rows": "5"}),
        *({"block_rows": 0}, {"n_features": -1}, {"request": []}, {"dtype": 4}),
        {"sources": [{"path": "x", "bytes": "5"}]},
    ],
)
def test_manifest_of_another_version_is_rejected(tmp_path: Path, change: dict[str, Any]) -> None:
    url = store_in(tmp_path)
    attributes = zarr.open_group(url, mode="r+").attrs
    content = {**attributes["manifest"], **change}
    attributes["manifest"] = {k: v for k, v in content.items() if v is not None}
    with pytest.raises(StoreError, match=rf"(?=.*{url}\b)(?=.*manifest)") as caught:
        read_manifest(url)
    assert caught.value.__cause__ is not None
    assert str(caught.value.__cause__) in str(caught.value)


def test_blocks_without_a_digest_are_missing(tmp_path: Path) -> None:
    url = store_in(tmp_path)
    assert missing_blocks(url) == [0, 1, 2]
    write_digest(url, 1, ROWS[4:8])
    assert missing_blocks(url) == [0, 2]
    write_digest(url, 2, ROWS[8:])
    write_digest(url, 0, ROWS[:4])
    assert missing_blocks(url) == []


def test_digests_are_a_zarr_array(tmp_path: Path) -> None:
    url = store_in(tmp_path, 0)
    digests = zarr.open_array(f"{url}/digests", mode="r")
    assert (digests.shape, digests.chunks, digests.dtype) == ((3, 32), (1, 32), np.uint8)
    assert digests[0].tobytes() == digest_arrays(ROWS[:4])
    assert sorted(zarr.open_group(url, mode="r").array_keys()) == ["digests", "features"]


def test_unfinished_store_names_missing_blocks(tmp_path: Path) -> None:
    url = store_in(tmp_path, 1)
    with pytest.raises(StoreError, match=rf"(?=.*{url}\b)(?=.*\b2 of 3\b)(?=.*\b0, 2\b)"):
        open_features_store(url)
    # also after a writer has marked it complete too early
    mark_complete(url)
    with pytest.raises(StoreError, match=rf"(?=.*{url}\b)(?=.*\b2 of 3\b)(?=.*\b0, 2\b)"):
        open_features_store(url)


def test_first_missing_blocks_are_named(tmp_path: Path) -> None:
    url = create_features_store(tmp_path / "s", Manifest(100, 2, "float16", 2, (), {}))
    with pytest.raises(StoreError, match=r"(?=.*\b50 of 50\b)(?=.*\b0, 1, 2, 3, 4, \.\.\.)"):
        open_features_store(url)


def test_store_is_unfinished_until_it_is_marked_complete(tmp_path: Path) -> None:
    url = store_in(tmp_path, 0, 1, 2)
    with pytest.raises(StoreError, match=rf"{url}\b"):
        open_features_store(url)
    mark_complete(url)
    assert open_features_store(url).shape == (10, 2)


@pytest.mark.parametrize("ids", [None, "str"])
@pytest.mark.parametrize("labels", [False, True])
def test_stored_blocks_match_their_digests(tmp_path: Path, labels: bool, ids: str | None) -> None:
    url = store_in(tmp_path, 0, 1, 2, labels=labels, ids=ids)
    for block in range(3):
        rows = MANIFEST.rows_of(block)
        arrays = block_arrays(url, rows.start, rows.stop)
        assert len(arrays) == 1 + labels + (ids is not None)
        check_digest(url, block, *arrays)


@pytest.mark.parametrize("labels", [False, True])
def test_several_blocks_are_compared_at_once(tmp_path: Path, labels: bool) -> None:
    url = store_in(tmp_path, 0, 1, 2, labels=labels)
    features, *others = block_arrays(url, 4, 10)
    compare_digests(open_digests(url), url, 1, 4, features, *others)
    features[4] = 0
    with pytest.raises(StoreError, match=r"(?=.*\bblock 2\b)(?=.*\brows 8\D+9\b)"):
        compare_digests(open_digests(url), url, 1, 4, features, *others)


def test_changed_block_is_named_with_its_rows(tmp_path: Path) -> None:
    url = store_in(tmp_path, 0, 1, 2)
    changed = ROWS[8:].copy()
    changed[1, 1] = np.nextafter(changed[1, 1], 0)
    facts = rf"(?=.*\bblock 2\b)(?=.*\brows 8\D+9\b)(?=.*{url}\b)(?=.*digest)"
    with pytest.raises(StoreError, match=facts):
        check_digest(url, 2, changed)
    with pytest.raises(StoreError, match="block 0"):
        check_digest(url, 0, ROWS[4:8])


def test_missing_digest_is_an_error(tmp_path: Path) -> None:
    url = store_in(tmp_path, 0, 1, 2)
    Path(url, "digests/c/1/0").unlink()
    with pytest.raises(StoreError, match=rf"(?=.*\bc/1/0\b)(?=.*{url}/digests\b)"):
        check_digest(url, 1, ROWS[4:8])


def test_blocks_of_another_type_are_rejected(tmp_path: Path) -> None:
    url = store_in(tmp_path, labels=True)
    with pytest.raises(InputError, match=rf"(?=.*\bfeatures\b)(?=.*\bfloat64\b)(?=.*{url}\b)"):
        write_features_block(url, 0, ROWS[:4].astype(float), np.zeros(4, np.int32))
    with pytest.raises(InputError, match=rf"(?=.*\blabels\b)(?=.*\bint64\b)(?=.*{url}\b)"):
        write_features_block(url, 0, ROWS[:4], np.zeros(4, np.int64))  # type: ignore[arg-type]
    assert missing_blocks(url) == [0, 1, 2]


@pytest.mark.parametrize(("dtype", "ids"), [("float64", None), ("int8", None), ("float16", "S5")])
def test_unsupported_types_are_rejected(tmp_path: Path, dtype: str, ids: str | None) -> None:
    with pytest.raises(InputError, match=rf"(?=.*\b{dtype}\b)(?=.*\b{ids}\b)"):
        create_features_store(tmp_path / "s", Manifest(1, 1, dtype, 1, (), {}), ids=ids)
    assert not (tmp_path / "s").exists()


# --- the digest --------------------------------------------------------------------------------


def test_digest_is_sha256_of_type_shape_and_bytes() -> None:
    expected = hashlib.sha256(b"<f4(4, 2)" + ROWS[:4].tobytes()).digest()
    assert digest_arrays(ROWS[:4]) == expected
    # memory layout and byte order do not matter
    assert digest_arrays(np.asfortranarray(ROWS[:4])) == expected
    assert digest_arrays(ROWS[:4].astype(">f4")) == expected
    assert digest_arrays(ROWS[:8:2]) != expected


def test_digest_depends_on_borders_between_values() -> None:
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


def test_manifest_is_added_to_an_existing_group(tmp_path: Path) -> None:
    zarr.create_group(str(tmp_path / "g"), attributes={"mine": 1})
    create_manifest(str(tmp_path / "g"), MANIFEST)
    assert read_manifest(str(tmp_path / "g")) == MANIFEST
    assert zarr.open_group(str(tmp_path / "g"), mode="r").attrs["mine"] == 1
