"""Number of values in the pages of a Parquet file."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scrlm_dask.sources.parquet import count_values

N = 5000


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [False, True])
@pytest.mark.parametrize(
    "values",
    [
        np.random.default_rng(0).integers(0, 900, N),
        ["x" * 3000 + str(i) for i in range(N // 10)],  # statistics longer than the first read
        [[1.0, 2.0, 3.0]] * N,
        [None, 1.0] * N,
    ],
    ids=["numbers", "long texts", "lists", "nulls"],
)
def test_many_pages(tmp_path: Path, values: Any, dictionary: bool, version: str) -> None:
    path = tmp_path / "x.parquet"
    options = {"data_page_size": 1000, "write_batch_size": 100, "data_page_version": version}
    options |= {"use_dictionary": dictionary, "write_page_checksum": True}
    pq.write_table(pa.table({"x": values}), path, **options)
    column = pq.read_metadata(path).row_group(0).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    with path.open("rb") as file:
        assert count_values(file, start, column.total_compressed_size) == column.num_values


@pytest.mark.parametrize(
    "data",
    [b"\0", b"\xff" * 10**5, b"\x15" + b"\x80" * 10**5, b"\x18\xff\xff\xff\x7f", b"\x1c" * 50],
    ids=["empty header", "no type", "long number", "long text", "no end"],
)
def test_no_header(data: bytes) -> None:
    with pytest.raises(ValueError, match="header"):
        count_values(io.BytesIO(data), 0, 2**62)
