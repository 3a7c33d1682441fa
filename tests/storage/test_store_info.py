"""Descriptions of stores, made without reading their rows."""

from __future__ import annotations

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
from scrlm_dask.storage.arrays import read_rows
from scrlm_dask.storage.feature_store import (
    create_features_store,
    mark_complete,
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
