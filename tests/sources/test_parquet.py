"""Parquet: large lists, and row groups that are streamed instead of kept in memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from formats import columns_of

from scrlm_dask.sources.parquet import open_parquet


def test_large_lists(tmp_path: Path) -> None:
    x = np.arange(40.0).reshape(10, 4)
    table = pa.table({"emb": pa.array(x.tolist(), pa.large_list(pa.float64()))})
    pq.write_table(table, tmp_path / "x.parquet")
    np.testing.assert_array_equal(open_parquet(str(tmp_path / "x.parquet")).read(2, 9), x[2:9])


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
