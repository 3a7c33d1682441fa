"""`scrlm ingest` of thousands of files, with few file descriptors."""

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

OPEN_FILES = 256


def _rows_of(number: int) -> np.ndarray:
    """Return the rows of a file: 1 to 3 rows with the number of the file and of the row."""
    n_rows = 1 + number % 3
    return np.array([[number + 1, row, 0.5, 1] for row in range(n_rows)], np.float32)


def _write_npy(folder: Path, number: int) -> None:
    np.save(folder / f"part-{number}.npy", _rows_of(number))


def _write_parquet(folder: Path, number: int) -> None:
    lists = pa.array(_rows_of(number).tolist(), pa.list_(pa.float32(), 4))
    pq.write_table(pa.table({"emb": lists}), folder / f"part-{number}.parquet")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "n_files"), [(_write_npy, 5000), (_write_parquet, 500)], ids=["npy", "parquet"]
)
def test_many_files(
    measured: Callable[..., Any],
    tmp_path: Path,
    write: Callable[[Path, int], None],
    n_files: int,
) -> None:
    """Rows are in numeric order of the files, with the file and the row of each."""
    folder, out = tmp_path / "parts", tmp_path / "out.zarr"
    folder.mkdir()
    for number in range(n_files):
        write(folder, number)
    # Blocks of 1000 rows: each of them spans hundreds of files.
    chunks = ("--chunk-size", "16kB")
    measured("ingest", folder, out, *chunks, "--nworkers", 0, open_files=OPEN_FILES).ok()
    group = zarr.open_group(out, mode="r")
    expected = [_rows_of(number) for number in range(n_files)]
    np.testing.assert_array_equal(group["features"][:], np.concatenate(expected))
    files = np.repeat(np.arange(n_files), [len(rows) for rows in expected])
    np.testing.assert_array_equal(group["source_file"][:], files)
    np.testing.assert_array_equal(group["source_row"][:], np.concatenate(expected)[:, 1])
    manifest = group.attrs["manifest"]
    print(type(manifest), json.dumps(manifest)[:600])
