"""Sources and stores of 5000 files: memory, file descriptors, and the origin of each row."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

OPEN_FILES, N_FILES = 256, 5000
THREADS = ("--nworkers", 0, "--nthreads", 2)  # the memory depends on the number of threads
MOST_BYTES = 500 * 10**6  # a process that has imported everything has 200 MB


def _rows_of(number: int) -> np.ndarray:
    """Return the rows of a file: 1 to 3 rows with the number of the file and of the row."""
    n_rows = 1 + number % 3
    return np.array([[number + 1, row, 0.5, 1] for row in range(n_rows)], np.float32)


ROWS = [_rows_of(number) for number in range(N_FILES)]


def _table(rows: np.ndarray) -> pa.Table:
    """Return a table with a column of lists, and the number of each row's file as label and id."""
    numbers = rows[:, 0].astype(int) - 1
    return pa.table(
        {
            "emb": pa.array(rows.tolist(), pa.list_(pa.float32(), 4)),
            "label": [f"class {number % 7}" for number in numbers],
            "name": [f"{number}.jpg" for number in numbers],
        }
    )


def _write_npy(folder: Path) -> list[Path]:
    paths = [folder / f"part-{number}.npy" for number in range(N_FILES)]
    for path, rows in zip(paths, ROWS, strict=True):
        np.save(path, rows)
    return paths


def _write_parquet(folder: Path) -> list[Path]:
    paths = [folder / f"part-{number}.parquet" for number in range(N_FILES)]
    for path, rows in zip(paths, ROWS, strict=True):
        pq.write_table(_table(rows), path)
    return paths


def _write_clip(folder: Path) -> list[Path]:
    """Write a folder like that of clip-retrieval: embeddings, and a table for each of them."""
    paths: list[Path] = []
    for name in ("img_emb", "metadata"):
        (folder / name).mkdir()
    for number, rows in enumerate(ROWS):
        paths += [folder / f"img_emb/img_emb_{number}.npy"]
        paths += [folder / f"metadata/metadata_{number}.parquet"]
        np.save(paths[-2], rows)
        pq.write_table(_table(rows).drop_columns("emb"), paths[-1])
    return paths


def _write_huggingface(folder: Path) -> list[Path]:
    """Write a folder like that of `save_to_disk` with 5000 shards."""
    names = [f"data-{number:05d}-of-{N_FILES:05d}.arrow" for number in range(N_FILES)]
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": name} for name in names]})
    )
    for name, rows in zip(names, ROWS, strict=True):
        table = _table(rows)
        with pa.ipc.new_stream(folder / name, table.schema) as writer:
            writer.write_table(table)
    return [folder / name for name in names]


@pytest.mark.parametrize(
    ("write", "columns"),
    [(_write_npy, 0), (_write_parquet, 1), (_write_clip, 2), (_write_huggingface, 1)],
    ids=["npy", "parquet", "clip-retrieval", "huggingface"],
)
def test_sources(
    measured: Callable[..., Any],
    tmp_path: Path,
    write: Callable[[Path], list[Path]],
    columns: int,
) -> None:
    """Rows are in numeric order of the files, with the file and the row of each."""
    folder, out = tmp_path / "parts", tmp_path / "out.zarr"
    folder.mkdir()
    paths = write(folder)
    labels = ("--labels", "label") if columns else ()
    ids = ("--ids", "name") if columns == 2 else ()
    # Blocks of 1000 rows: each of them spans hundreds of files.
    options = ("--chunk-size", "16kB", *THREADS, "--json", *labels, *ids)
    outcome = measured("ingest", folder, out, *options, open_files=OPEN_FILES, timeout=1000)
    expected = np.concatenate(ROWS)
    assert outcome.json()["rows"] == len(expected)
    assert outcome.peak_bytes < MOST_BYTES

    group = zarr.open_group(out, mode="r")
    np.testing.assert_array_equal(group["features"][:], expected)
    np.testing.assert_array_equal(group["source_row"][:], expected[:, 1])
    manifest = group.attrs["manifest"]
    sources = [Path(source["path"]) for source in manifest["sources"]]
    assert sources == paths
    assert [source["bytes"] for source in manifest["sources"]] == [
        path.stat().st_size for path in paths
    ]
    numbers = expected[:, 0].astype(int) - 1
    per_file = len(paths) // N_FILES
    np.testing.assert_array_equal(group["source_file"][:], per_file * numbers)
    if columns:
        assert group.attrs["label_names"] == [f"class {i}" for i in range(7)]
        np.testing.assert_array_equal(group["labels"][:], numbers % 7)
    if columns == 2:
        assert group["ids"][:].tolist() == [f"{number}.jpg" for number in numbers]


def test_store_of_shards(measured: Callable[..., Any], tmp_path: Path) -> None:
    """A store of other software: 5000 shards, each of two chunks."""
    store, run = tmp_path / "x.zarr", tmp_path / "run"
    n_rows, truth = 4 * N_FILES, np.arange(4 * N_FILES) % 3
    rows = 10 * np.eye(3, 4)[truth] + np.random.default_rng(0).normal(0, 0.1, (n_rows, 4))
    array = zarr.create_array(
        store, shape=(n_rows, 4), dtype="float32", chunks=(2, 4), shards=(4, 4)
    )
    array[...] = rows.astype(np.float32)
    assert sum(1 for file in (store / "c").rglob("*") if file.is_file()) == N_FILES

    def scrlm(*args: Any) -> Any:
        options = (*THREADS, "--json")
        outcome = measured(*args, *options, open_files=OPEN_FILES, timeout=1000)
        assert outcome.peak_bytes < MOST_BYTES
        return outcome.json()

    options = ("--rho", 0.3, "--clusters", 3, "--preprocess", "none", "--block-rows", 2000)
    fitted = scrlm("fit", store, *options, "--out", run)
    assert (fitted["clusters"], fitted["outliers"]) == (3, 0)
    labels = zarr.open_array(run / "labels.zarr/labels", mode="r")[:]
    pairs = np.unique(np.stack([labels, truth]), axis=1)
    assert pairs.shape == (2, 3)
    assert scrlm("verify", run, "--blocks", 2, "--losses", 0)["ok"] is True
    content = scrlm("inspect", store)
    assert (content["n_files"], content["n_missing_chunks"]) == (N_FILES, 0)

    (store / "c/4321/0").unlink()
    outcome = measured("fit", store, *options, "--out", tmp_path / "other", *THREADS)
    outcome.rejected("c/4321/0", "17284")
