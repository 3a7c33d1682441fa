"""Descriptions of stores, made without reading their rows."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec, GzipCodec, ZstdCodec

from scrlm_dask import IngestConfig, ingest
from scrlm_dask.errors import InputError, MissingError, StoreError
from scrlm_dask.storage import arrays
from scrlm_dask.storage.arrays import read_rows
from scrlm_dask.storage.feature_store import (
    create_features_store,
    mark_complete,
    open_features_store,
    open_origins,
    write_features_block,
)
from scrlm_dask.storage.manifest import Manifest
from scrlm_dask.storage.store_info import describe_store

ROWS: NDArray[np.float32] = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
MANIFEST = Manifest(10, 4, "float32", 4, (), {})


def array_in(path: Path, **options: Any) -> None:
    array = zarr.create_array(str(path), **{"shape": ROWS.shape, "dtype": "float32", **options})
    array[...] = ROWS


def test_our_store(tmp_path: Path) -> None:
    url = create_features_store(tmp_path / "s", MANIFEST, labels=True, ids="str")
    empty = describe_store(url)
    assert not empty.is_complete
    assert (empty.marked_complete, empty.missing_blocks, empty.n_missing_chunks) == (
        False,
        (0, 1, 2),
        3,
    )
    names = np.array(["x"] * 10, np.dtypes.StringDType())
    for start in (0, 4, 8):
        rows = ROWS[start : start + 4]
        labels = np.zeros(len(rows), np.int32)
        write_features_block(url, start, rows, labels, names[: len(rows)])
    assert not describe_store(url).is_complete  # it is not marked complete yet
    mark_complete(url)
    found = describe_store(url)
    assert found.is_complete
    assert (found.features.shape, found.features.chunks) == ((10, 4), (4, 4))
    assert (found.inner_chunks, found.n_chunks, found.zarr_format) == (None, 3, 3)
    assert found.codecs == ("bytes", "crc32c")
    assert found.has_checksums
    assert found.raw_bytes == 160
    # three full chunks with four bytes of checksum each, and the array's own metadata
    metadata = (tmp_path / "s/features/zarr.json").stat().st_size
    assert found.stored_bytes == 3 * (4 * 4 * 4 + 4) + metadata
    assert found.manifest == MANIFEST
    assert (found.labels, found.ids) == ("int32", "str")


def test_bare_array_with_shards(tmp_path: Path) -> None:
    array_in(tmp_path / "a", chunks=(2, 4), shards=(4, 4), compressors=[Crc32cCodec()])
    found = describe_store(tmp_path / "a")
    assert (found.features.chunks, found.inner_chunks, found.n_chunks) == ((4, 4), (2, 4), 3)
    assert found.codecs == ("sharding_indexed", "bytes", "crc32c")
    assert (found.manifest, found.labels, found.ids, found.marked_complete) == (None,) * 4
    assert found.is_complete


@pytest.mark.parametrize(
    ("options", "codecs"),
    [
        ({"zarr_format": 2, "compressors": None}, ()),
        ({"zarr_format": 2}, ("zstd",)),
        ({"zarr_format": 3}, ("bytes", "zstd")),
    ],
)
def test_codecs(tmp_path: Path, options: dict[str, Any], codecs: tuple[str, ...]) -> None:
    array_in(tmp_path / "a", chunks=(5, 4), **options)
    found = describe_store(tmp_path / "a")
    assert found.codecs == codecs
    assert not found.has_checksums
    assert found.zarr_format == options["zarr_format"]


@pytest.mark.parametrize(
    "options",
    [
        {"zarr_format": 3, "compressors": [ZstdCodec(checksum=True)]},
        {"zarr_format": 3, "compressors": [ZstdCodec(checksum=True)], "shards": (10, 4)},
        {"zarr_format": 3, "compressors": [GzipCodec()]},
        {"zarr_format": 2, "compressors": [numcodecs.Zstd(checksum=True)]},
    ],
    ids=["zstd", "zstd in shards", "gzip", "zstd of Zarr 2"],
)
def test_checksums_detect_a_flipped_byte(tmp_path: Path, options: dict[str, Any]) -> None:
    array_in(tmp_path / "a", chunks=(5, 4), **options)
    found = describe_store(tmp_path / "a")
    assert found.has_checksums
    path = next(p for p in sorted((tmp_path / "a").rglob("*")) if p.is_file() and p.suffix == "")
    whole = path.read_bytes()
    for at in range(20, 90):  # the stored numbers, without headers and checksums
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(StoreError):
            read_rows(found.features, 0, 5, "it")


def test_missing_chunks_are_counted(tmp_path: Path) -> None:
    array_in(tmp_path / "a", chunks=(3, 4))
    (tmp_path / "a/c/1/0").unlink()
    found = describe_store(tmp_path / "a")
    assert (found.n_chunks, found.n_missing_chunks, found.is_complete) == (4, 1, False)


def test_other_stores_are_rejected(tmp_path: Path) -> None:
    zarr.create_group(str(tmp_path / "g"))
    with pytest.raises(StoreError, match=f"(?=.*{tmp_path}/g)(?=.*'features')"):
        describe_store(tmp_path / "g")
    with pytest.raises(MissingError, match=f"{tmp_path}/nowhere"):
        describe_store(tmp_path / "nowhere")
    zarr.create_array(str(tmp_path / "i"), shape=(3, 3), dtype="int32")
    with pytest.raises(InputError, match=rf"(?=.*{tmp_path}/i\b)(?=.*\bint32\b)"):
        describe_store(tmp_path / "i")


@pytest.mark.parametrize("shuffle", [False, True])
def test_source_rows_of_ingested_stores_are_known(tmp_path: Path, shuffle: bool) -> None:
    np.save(tmp_path / "x.npy", ROWS)
    ingest(tmp_path / "x.npy", tmp_path / "store", IngestConfig(shuffle=shuffle))
    assert describe_store(tmp_path / "store").has_source_rows
    array_in(tmp_path / "a")
    assert not describe_store(tmp_path / "a").has_source_rows


# --- damaged metadata --------------------------------------------------------------------------


def change_json(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def claim_digests(store: Path, n_blocks: int) -> None:
    change_json(store / "digests/zarr.json", lambda c: c.update(shape=[n_blocks, 32]))


def claim_rows(store: Path, n_rows: int) -> None:
    change_json(store / "features/zarr.json", lambda c: c.update(shape=[n_rows, 4]))


def claim_manifest_rows(store: Path, n_rows: int) -> None:
    change_json(store / "zarr.json", lambda c: c["attributes"]["manifest"].update(n_rows=n_rows))


@pytest.mark.parametrize("claim", [claim_digests, claim_rows, claim_manifest_rows])
def test_features_digests_and_manifest_must_have_the_same_rows(
    tmp_path: Path, claim: Callable[[Path, int], None]
) -> None:
    url = create_features_store(tmp_path / "s", MANIFEST)
    claim(tmp_path / "s", 5_000_000)
    for read in (describe_store, open_features_store):
        with pytest.raises(StoreError, match=rf"(?=.*{url})(?=.*5000000)(?=.*manifest)"):
            read(url)


def test_list_of_missing_blocks_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = create_features_store(tmp_path / "s", MANIFEST)
    for claim, number in ((claim_digests, 10**6), (claim_rows, 4 * 10**6)):
        claim(tmp_path / "s", number)
    claim_manifest_rows(tmp_path / "s", 4 * 10**6)
    monkeypatch.setattr(arrays, "MOST_COUNTED", 100)
    assert describe_store(url).missing_blocks == tuple(range(100))
    with pytest.raises(StoreError, match=r"\b100 of 1000000\b"):
        open_features_store(url)


@pytest.mark.parametrize("name", ["source_row", "source_file", "ids", "labels"])
def test_damaged_metadata_of_an_array_are_named(tmp_path: Path, name: str) -> None:
    np.save(tmp_path / "x.npy", ROWS)
    np.save(tmp_path / "y.npy", np.arange(10))
    columns = {name: str(tmp_path / "y.npy") for name in ("labels", "ids")}
    store = tmp_path / "x.zarr"
    ingest(tmp_path / "x.npy", store, IngestConfig(shuffle=True, **columns))  # type: ignore[arg-type]
    (store / name / "zarr.json").write_text("{")
    with pytest.raises(StoreError, match=rf"(?=.*{name})(?=.*{store})"):
        describe_store(store)
    # also if the features are missing, and the arrays of the group are listed
    (store / "features/zarr.json").unlink()
    with pytest.raises(StoreError, match=re.escape(str(store))):
        describe_store(store)


def origins_of(store: Path) -> None:
    found = open_origins(store)
    assert found is not None
    found.read(0, 10)


@pytest.mark.parametrize("name", ["source_row", "source_file"])
@pytest.mark.parametrize(
    "values",
    [np.zeros(5, "i8"), np.zeros((10, 2), "i8"), np.full(10, 0.5), np.full(10, -1), "beyond"],
)
def test_impossible_source_rows_are_rejected(tmp_path: Path, name: str, values: Any) -> None:
    np.save(tmp_path / "x.npy", ROWS)
    store = tmp_path / "x.zarr"
    ingest(tmp_path / "x.npy", store, IngestConfig(shuffle=True))
    origins_of(store)
    if isinstance(values, str):
        name, values = "source_file", np.full(10, 1)
    zarr.create_array(store / name, data=values, overwrite=True)
    with pytest.raises(StoreError, match=rf"{store}/{name}"):
        origins_of(store)
