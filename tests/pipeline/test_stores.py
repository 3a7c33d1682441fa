"""Write Dask arrays to features stores and open them, also on workers without the path."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from backends import backend
from messages import expecting
from numpy.typing import NDArray

from scrlm_dask.errors import (
    ClusterError,
    InputError,
    MissingError,
    StoreError,
    UnusableRowsError,
)
from scrlm_dask.events import Note, PhaseFinished
from scrlm_dask.pipeline.ingest import ingest
from scrlm_dask.pipeline.ingest_job import IngestConfig
from scrlm_dask.pipeline.inspect import verify_store
from scrlm_dask.pipeline.stores import open_features, write_features
from scrlm_dask.storage.feature_store import block_arrays, is_shuffled, open_origins
from scrlm_dask.storage.manifest import check_digest, missing_blocks, read_manifest

ROWS: NDArray[np.float32] = np.random.default_rng(0).standard_normal((1000, 16)).astype(np.float32)
TRUTH = np.arange(1000) % 7 - 1
BLOCK_BYTES = 300 * 16 * 4  # 300 rows


@pytest.fixture(scope="module")
def workers() -> Iterator[None]:
    with backend("two workers of two threads"):
        yield


@pytest.fixture
def threads() -> Iterator[None]:
    with backend("three threads"):
        yield


def lazy(values: NDArray[Any], chunks: Any = (170, 5)) -> da.Array:
    return da.from_array(values, chunks=chunks)


def check_store(path: Path, features: NDArray[Any], labels: NDArray[Any] | None) -> None:
    """Check the rows, the labels and the digest of each block."""
    group = zarr.open_group(path, mode="r")
    assert group.attrs["complete"] is True
    np.testing.assert_array_equal(group["features"][:], features)
    assert group["features"].dtype == features.dtype
    assert ("labels" in group) == (labels is not None)
    if labels is not None:
        np.testing.assert_array_equal(group["labels"][:], labels)
    manifest = read_manifest(str(path))
    assert manifest is not None
    assert group["features"].chunks == (manifest.block_rows, features.shape[1])
    for block in range(manifest.n_blocks):
        rows = manifest.rows_of(block)
        check_digest(str(path), block, *block_arrays(str(path), rows.start, rows.stop))


@pytest.mark.slow
@pytest.mark.cluster
@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize("truth", [TRUTH, da.from_array(TRUTH, chunks=77)], ids=["numpy", "dask"])
def test_workers_write_and_read_blocks(tmp_path: Path, truth: Any) -> None:
    path = tmp_path / "x.zarr"
    url = write_features(lazy(ROWS), path, labels=truth, chunk_bytes=BLOCK_BYTES)
    assert url == str(path)
    check_store(path, ROWS, TRUTH)
    assert zarr.open_array(path / "features", mode="r").chunks == (300, 16)
    opened = open_features(path, block_rows=300)
    assert (opened.shape, opened.dtype, opened.chunks[0]) == ((1000, 16), "f4", (300,) * 3 + (100,))
    np.testing.assert_array_equal(opened.compute(), ROWS)
    np.testing.assert_allclose(opened.mean(axis=0).compute(), ROWS.mean(axis=0), atol=1e-6)


@pytest.mark.cluster
@pytest.mark.usefixtures("workers")
def test_moved_store_raises_instead_of_reading_zeros(tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    write_features(lazy(ROWS), path)
    opened = open_features(path)
    shutil.move(path, tmp_path / "elsewhere.zarr")
    with pytest.raises(MissingError, match=expecting(path / "features")):
        opened.sum().compute()


@pytest.mark.cluster
@pytest.mark.usefixtures("workers")
def test_path_that_exists_only_on_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working directory of the workers differs, so the path refers to another folder."""
    monkeypatch.chdir(tmp_path)
    path = Path("/proc/self/cwd/x.zarr")
    with backend("one thread"):
        write_features(lazy(ROWS), path)
        opened = open_features(path)
    assert zarr.open_array(path / "features", mode="r").shape == ROWS.shape
    with pytest.raises(ClusterError, match=expecting(path, "2 of 2")):
        open_features(path)
    with pytest.raises(MissingError, match=expecting(path / "features")):
        opened.sum().compute()
    # Workers do not write to another folder either.
    with pytest.raises(ClusterError, match=expecting("/proc/self/cwd/y.zarr", "2 of 2")):
        write_features(lazy(ROWS), "/proc/self/cwd/y.zarr")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.zarr"]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("given", "dtype", "stored"),
    [
        ("float16", None, "float16"),
        ("float32", None, "float32"),
        ("float64", None, "float32"),
        (">f4", None, "float32"),
        ("float32", "float16", "float16"),
        ("float16", "float32", "float32"),
    ],
)
def test_dtypes(tmp_path: Path, given: str, dtype: str | None, stored: str) -> None:
    values = ROWS.astype(given)
    path = tmp_path / "x.zarr"
    write_features(lazy(values), path, dtype=dtype, chunk_bytes=BLOCK_BYTES)
    check_store(path, values.astype(stored), None)


@pytest.mark.usefixtures("threads")
def test_default_blocks_have_64_mebibytes(tmp_path: Path) -> None:
    wide = da.zeros((3 * 2**13, 2**10), dtype=np.float32, chunks=(1000, 300))
    write_features(wide, tmp_path / "x.zarr")
    array = zarr.open_array(tmp_path / "x.zarr/features", mode="r")
    assert array.chunks == (2**14, 2**10)  # 64 MiB
    assert array.nchunks_initialized == 2  # chunks of zeros are also stored


@pytest.mark.usefixtures("threads")
def test_error_names_the_value_that_is_too_large(tmp_path: Path) -> None:
    values = ROWS.copy()
    values[431, 7] = 7e4
    with pytest.raises(InputError, match=expecting("row 431", 70000, 7, "float16")):
        write_features(lazy(values), tmp_path / "x.zarr", dtype="float16")
    assert list(tmp_path.iterdir()) == []
    values[431, 7] = np.inf  # infinite input is stored unchanged
    write_features(lazy(values), tmp_path / "x.zarr", dtype="float16")
    check_store(tmp_path / "x.zarr", values.astype(np.float16), None)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"labels": np.zeros(999, int)}, (999, 1000)),
        ({"labels": np.zeros(1000)}, ("(1000,)", "float64")),
        ({"labels": np.full(1000, 2**40)}, ("row 0", 2**40)),
        ({"dtype": "float64"}, ("dtype", "float64", "float16", "float32")),
    ],
)
def test_rejected_input_leaves_nothing(
    tmp_path: Path, options: dict[str, Any], facts: tuple[Any, ...]
) -> None:
    with pytest.raises(InputError, match=expecting(*facts)):
        write_features(lazy(ROWS), tmp_path / "x.zarr", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("threads")
def test_empty_folder_is_a_valid_output(tmp_path: Path) -> None:
    (tmp_path / "x.zarr").mkdir()
    write_features(lazy(ROWS), tmp_path / "x.zarr")
    check_store(tmp_path / "x.zarr", ROWS, None)
    assert [file.name for file in tmp_path.iterdir()] == ["x.zarr"]


@pytest.mark.usefixtures("threads")
def test_store_may_be_overwritten_with_its_own_rows(tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    write_features(lazy(ROWS), path, labels=TRUTH, chunk_bytes=BLOCK_BYTES)
    doubled = 2 * open_features(path, block_rows=100)
    with pytest.raises(StoreError, match=expecting(path)):
        write_features(doubled, path)
    write_features(doubled, path, overwrite=True, chunk_bytes=BLOCK_BYTES)
    check_store(path, 2 * ROWS, None)
    assert [p.name for p in tmp_path.iterdir()] == ["x.zarr"]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("source", ["x.zarr", "x.zarr/inner", "x.zarr/features"])
def test_source_at_or_inside_the_output_is_rejected(tmp_path: Path, source: str) -> None:
    path = tmp_path / "x.zarr"
    write_features(lazy(ROWS), path, chunk_bytes=BLOCK_BYTES)
    write_features(lazy(ROWS), path / "inner", chunk_bytes=BLOCK_BYTES)
    with pytest.raises(StoreError, match=expecting(path, tmp_path / source)):
        write_features(tmp_path / source, path, overwrite=True)
    check_store(path / "inner", ROWS, None)


@pytest.mark.usefixtures("threads")
def test_source_that_changes_while_it_is_written(tmp_path: Path) -> None:
    path, out = tmp_path / "x.zarr", tmp_path / "out.zarr"
    write_features(lazy(ROWS), path, chunk_bytes=BLOCK_BYTES)

    def change(event: object) -> None:
        if isinstance(event, PhaseFinished):
            zarr.open_array(path / "features", mode="r+")[0] = 5

    with pytest.raises(UnusableRowsError, match=expecting(path)):
        write_features(path, out, listener=change)
    assert not out.exists()


@pytest.mark.usefixtures("threads")
def test_old_store_is_kept_if_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    write_features(lazy(ROWS), path, chunk_bytes=BLOCK_BYTES)
    late = lazy(ROWS).map_blocks(_fail_late, dtype=ROWS.dtype)
    with pytest.raises(RuntimeError, match="block 4"):
        write_features(late, path, overwrite=True, chunk_bytes=BLOCK_BYTES)
    check_store(path, ROWS, None)
    assert [p.name for p in tmp_path.iterdir()] == ["x.zarr"]


def _fail_late(block: NDArray[Any], block_id: tuple[int, int] = (0, 0)) -> NDArray[Any]:
    if block_id[0] == 4:
        raise RuntimeError("block 4")
    return block


@pytest.mark.slow
def test_store_of_a_killed_writer_is_unfinished(tmp_path: Path) -> None:
    """The process exits while it writes, without any cleanup, as with SIGKILL."""
    code = f"""
import os, dask, dask.array as da, numpy as np, scrlm_dask

calls = []

def die_late(block, block_id):
    calls.append(block_id)
    return block if len(calls) < 4 else os._exit(9)

x = da.zeros((1000, 16), dtype=np.float32, chunks=(200, 16)).map_blocks(
    die_late, dtype="f4", meta=np.empty((0, 0), "f4")
)
with dask.config.set(scheduler="synchronous"):
    scrlm_dask.FeatureStore.write(x, {str(tmp_path / "x.zarr")!r}, chunk_bytes={200 * 64})
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 9
    assert len(missing_blocks(str(tmp_path / "x.zarr"))) == 2
    with pytest.raises(StoreError, match=expecting(tmp_path / "x.zarr", "2 of 5")):
        open_features(tmp_path / "x.zarr")
    with backend("three threads"):
        write_features(lazy(ROWS), tmp_path / "x.zarr", overwrite=True)
    check_store(tmp_path / "x.zarr", ROWS, None)


def ingest_shuffled(folder: Path, **config: Any) -> tuple[Path, Path]:
    """Ingest rows with labels and ids; return the source and the store."""
    source = folder / "x.npy"
    np.save(source, ROWS)
    np.save(folder / "y.npy", TRUTH)
    names = {"labels": str(folder / "y.npy"), "ids": str(folder / "y.npy")}
    ingest(source, folder / "a", IngestConfig(chunk_bytes=BLOCK_BYTES, **names, **config))
    return source, folder / "a"


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("part", ["", "features"])
def test_copy_has_the_source_rows_of_the_store(tmp_path: Path, shuffle: bool, part: str) -> None:
    source, store = ingest_shuffled(tmp_path, shuffle=shuffle)
    write_features(store / part, tmp_path / "c", chunk_bytes=BLOCK_BYTES // 2)
    origins = open_origins(tmp_path / "c")
    assert origins is not None
    rows, files = origins.read(0, 1000)
    assert {origins.files[number] for number in files} == {str(source)}
    np.testing.assert_array_equal(ROWS[rows], zarr.open_array(tmp_path / "c/features", mode="r")[:])
    assert is_shuffled(tmp_path / "c") == shuffle
    assert verify_store(tmp_path / "c") == ()


@pytest.mark.usefixtures("threads")
def test_arrays_that_are_not_copied_are_named(tmp_path: Path) -> None:
    _, store = ingest_shuffled(tmp_path)
    for labels, left in ((None, ["ids", "labels"]), (TRUTH, ["ids"])):
        events: list[Any] = []
        write_features(store, tmp_path / "c", labels=labels, overwrite=True, listener=events.append)
        (note,) = [event.text for event in events if isinstance(event, Note)]
        assert sorted(re.findall(r'(\w+)="\1"', note)) == left
    events = []
    write_features(lazy(ROWS), tmp_path / "d", listener=events.append)
    assert not any(isinstance(event, Note) for event in events)
