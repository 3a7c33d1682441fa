"""Parquet: valid files of several kinds, and row groups that are streamed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from formats import columns_of
from messages import expecting

from scrlm_dask.errors import StoreError
from scrlm_dask.sources.arrow import open_arrow
from scrlm_dask.sources.parquet import open_parquet, open_parquet_column

ROWS = np.arange(40, dtype=np.float32).reshape(10, 4)
TYPES = {
    "fixed lists": pa.list_(pa.float32(), 4),
    "lists": pa.list_(pa.float32()),
    "large lists": pa.large_list(pa.float32()),
}


def _read(path: Path, *columns: str, nulls_as_nan: bool = False) -> np.ndarray:
    source = open_parquet(str(path), columns, nulls_as_nan=nulls_as_nan)
    parts = [source.read(start, min(start + 4, len(ROWS))) for start in range(0, len(ROWS), 4)]
    return np.concatenate(parts)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    "options",
    [
        {"data_page_version": "1.0"},
        {"data_page_version": "2.0", "use_dictionary": False},
        {"store_schema": False, "version": "1.0"},
        {"use_compliant_nested_type": False, "compression": "none"},
        {"row_group_size": 3, "data_page_size": 8, "write_batch_size": 1},
        {"write_statistics": False, "write_page_index": True, "compression": "zstd"},
    ],
    ids=lambda options: "-".join(options),
)
def test_lists_with_nulls(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    path, expected = tmp_path / "x.parquet", ROWS.copy()
    expected[[0, 7]] = np.nan
    lists = [None if np.isnan(row).any() else row.tolist() for row in expected]
    pq.write_table(pa.table({"emb": pa.array(lists, TYPES[kind])}), path, **options)
    np.testing.assert_array_equal(_read(path, nulls_as_nan=True), expected)
    pq.write_table(pa.table({"emb": pa.array(ROWS.tolist(), TYPES[kind])}), path, **options)
    np.testing.assert_array_equal(_read(path), ROWS)


@pytest.mark.parametrize("kind", TYPES)
def test_empty_row_groups(tmp_path: Path, kind: str) -> None:
    path, table = tmp_path / "x.parquet", pa.table({"emb": pa.array(ROWS.tolist(), TYPES[kind])})
    with pq.ParquetWriter(path, table.schema) as writer:
        for start, stop in ((0, 0), (0, 3), (3, 3), (3, 3), (3, 10), (10, 10)):
            writer.write_table(table.slice(start, stop - start))
    assert open_parquet(str(path)).group_rows == (0, 3, 0, 0, 7, 0)
    np.testing.assert_array_equal(_read(path), ROWS)


@pytest.mark.parametrize("groups", [0, 1])
def test_file_without_rows(tmp_path: Path, groups: int) -> None:
    path, schema = tmp_path / "x.parquet", pa.schema({"emb": TYPES["fixed lists"]})
    with pq.ParquetWriter(path, schema) as writer:
        for _ in range(groups):
            writer.write_table(schema.empty_table())
    assert open_parquet(str(path)).shape == (0, 4)


@pytest.mark.parametrize("rows", [[None, None], [[], None]])
def test_file_without_lists(tmp_path: Path, rows: list[list[float] | None]) -> None:
    table = pa.table({"emb": pa.array(rows, pa.list_(pa.float32()))})
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(StoreError, match=expecting(2, "'emb'", tmp_path / "x.parquet", "number")):
        open_parquet(str(tmp_path / "x.parquet"), nulls_as_nan=True)
    with pa.ipc.new_stream(tmp_path / "x.arrow", table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(StoreError, match=expecting(2, "'emb'", tmp_path / "x.arrow", "number")):
        open_arrow(str(tmp_path / "x.arrow"), nulls_as_nan=True)


@pytest.mark.parametrize("value", [None, 1.0])
def test_constant_columns(tmp_path: Path, value: float | None) -> None:
    """Pages of constant columns have many values in few bytes."""
    path, n = tmp_path / "x.parquet", 100_000
    column = pa.array([value] * n, pa.float32())
    pq.write_table(pa.table({"a": column, "b": column}), path, row_group_size=n // 2)
    expected = np.full((n, 2), np.nan if value is None else value)
    source = open_parquet(str(path), nulls_as_nan=True)
    np.testing.assert_array_equal(source.read(0, n), expected)


def test_names_that_start_with_the_name_of_the_lists(tmp_path: Path) -> None:
    """`emb.long` is another column, not a part of `emb`."""
    path, rows = tmp_path / "x.parquet", ROWS.tolist()
    long = pa.array([[*row, *row] for row in rows])
    table = pa.table({"emb": rows, "emb.long": long, "emb.norm": range(10), "emb.": rows})
    pq.write_table(table, path)
    np.testing.assert_array_equal(_read(path, "emb"), ROWS)
    np.testing.assert_array_equal(_read(path, "emb.long"), np.hstack([ROWS, ROWS]))
    np.testing.assert_array_equal(open_parquet_column(str(path), "emb.norm").read(0, 10), range(10))


def test_pandas(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    frame = pd.DataFrame({"emb": list(ROWS), "name": list("abcdefghij")}, index=range(5, 15))
    frame.to_parquet(path, row_group_size=4)
    np.testing.assert_array_equal(_read(path, "emb"), ROWS)
    assert list(open_parquet_column(str(path), "name").read(0, 10)) == list("abcdefghij")


def test_row_group_is_streamed(tmp_path: Path) -> None:
    """Peak memory stays far below the 123 MB of the row group."""
    path = tmp_path / "x.parquet"
    rng = np.random.default_rng(0)
    schema = pa.schema({"emb": pa.list_(pa.float32(), 512)})
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        table = pa.concat_tables(
            columns_of(rng.random((10_000, 512), np.float32), "fixed").select(["emb"])
            for _ in range(6)
        )
        writer.write_table(table, row_group_size=60_000)
    code = f"""
from scrlm_dask.sources.parquet import open_parquet
from scrlm_dask.engine.threads import peak_memory
source = open_parquet({str(path)!r})
assert source.unit_rows == 60_000, source.unit_rows
next(source.batches(0, 10_000, 10_000))
before, rows = peak_memory(), 0
for batch in source.batches(0, 60_000, 10_000):
    rows += len(batch)
assert rows == 60_000
print(peak_memory() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert int(done.stdout) < 60e6


def _count_calls(path: Path) -> int:
    """Return the number of Python functions that are called to open a file."""
    calls = [0]

    def count(frame: Any, event: str, argument: Any) -> None:
        calls[0] += event == "call"

    sys.setprofile(count)
    try:
        open_parquet(str(path))
    finally:
        sys.setprofile(None)
    return calls[0]


def test_columns_of_row_groups_are_checked_without_calls(tmp_path: Path) -> None:
    """A file may have millions of them."""
    table, counts = pa.table({f"f{i}": np.zeros(60) for i in range(20)}), []
    for rows in (30, 30, 2):  # the first file imports modules
        pq.write_table(table, tmp_path / f"{rows}.parquet", row_group_size=rows)
        counts.append(_count_calls(tmp_path / f"{rows}.parquet"))
    assert counts[2] - counts[1] < 28 * 20 / 2
