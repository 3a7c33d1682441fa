"""Rows written by the library of each format are read back bit for bit."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

import numpy as np
import pytest
from formats import WRITERS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scrlm_dask.sources.registry import open_source

SLOW = {"huggingface"}  # takes seconds to import


def random_rows(rows: int, features: int, dtype: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(rows, features)) * 40).astype(dtype)


@pytest.mark.parametrize("name", WRITERS)
@given(data=st.data())
@settings(max_examples=12, suppress_health_check=[HealthCheck.too_slow])
def test_rows_of_any_shape(name: str, data: st.DataObject) -> None:
    write, dtypes = WRITERS[name]
    rows = data.draw(st.integers(1, 40), "rows")
    x = random_rows(
        rows, data.draw(st.integers(1, 6), "features"), data.draw(st.sampled_from(dtypes))
    )
    start = data.draw(st.integers(0, rows), "start")
    stop = data.draw(st.integers(start, rows), "stop")
    step = data.draw(st.integers(1, rows), "rows of a batch")
    with tempfile.TemporaryDirectory() as folder:
        paths, options = write(Path(folder), x)
        source = pickle.loads(pickle.dumps(open_source(paths, options)))
        assert source.shape == x.shape
        read = source.read(start, stop)
        assert read.dtype == x.dtype
        assert read.dtype.isnative
        np.testing.assert_array_equal(read, x[start:stop])
        batches = list(source.batches(start, stop, step))
        assert [len(b) for b in batches] == [min(step, stop - i) for i in range(start, stop, step)]
        for batch, first in zip(batches, range(start, stop, step), strict=True):
            np.testing.assert_array_equal(batch, x[first : min(first + step, stop)])
        source.verify()


@pytest.mark.parametrize("name", WRITERS)
def test_metadata_without_reading(name: str, tmp_path: Path) -> None:
    write, dtypes = WRITERS[name]
    x = random_rows(30, 4, dtypes[0])
    paths, options = write(tmp_path, x)
    source = open_source(paths, options)
    assert source.dtype.newbyteorder("=") == x.dtype
    assert all(Path(file.path).exists() and file.bytes > 0 for file in source.files)
    assert len(pickle.dumps(source)) < 10_000
    assert str(tmp_path) in source.locate(17)


@pytest.mark.parametrize(
    ("name", "labels", "ids"),
    [
        ("clip-retrieval", "label", "image_path"),
        ("hdf5", "label", "name"),
        ("parquet, fixed-size lists", "label", "name"),
        ("huggingface", "label", "name"),
        ("arrow", "label", "name"),
    ],
)
def test_label_and_id_columns(name: str, labels: str, ids: str, tmp_path: Path) -> None:
    write, _ = WRITERS[name]
    paths, options = write(tmp_path, random_rows(30, 4, "float32"))
    source = open_source(paths, options, (labels, ids))
    assert source.column(labels).read(3, 21).tolist() == [i % 5 for i in range(3, 21)]
    assert source.column(ids).read(3, 21).tolist() == [f"{i}.jpg" for i in range(3, 21)]
