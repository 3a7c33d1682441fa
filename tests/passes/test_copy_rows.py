"""Each row of a table is copied to a block of a store exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from backends import backend
from messages import expecting

from scrlm_dask.engine.execution import Execution
from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.events import BlockDone
from scrlm_dask.kernels.randomness.sampling import Permutation
from scrlm_dask.passes import copy_rows
from scrlm_dask.sources.base import Source
from scrlm_dask.sources.tables import Origins, PlainTable, ShuffledTable
from scrlm_dask.storage.feature_store import create_features_store
from scrlm_dask.storage.locations import locate
from scrlm_dask.storage.manifest import Manifest, SourceFile, missing_blocks

X = np.arange(20, dtype=np.float32).reshape(10, 2)
MANIFEST = Manifest(10, 2, "float32", 3, (), {})


@dataclass(frozen=True)
class ArraySource(Source):
    """Rows of an array that are read in units of the given number of rows."""

    values: Any = None
    unit: int = 1

    @property
    def unit_rows(self) -> int:
        return self.unit

    @property
    def streams(self) -> bool:
        return True

    def read(self, start: int, stop: int) -> Any:
        return self.values[start:stop]

    def verify(self) -> None:
        if np.isnan(self.values).any():
            raise StoreError(f"bad: {self.what}")


def source(values: np.ndarray, unit: int = 1) -> ArraySource:
    return ArraySource((SourceFile("rows.bin", 1),), values.shape, values.dtype, values, unit)


def table(values: np.ndarray = X, unit: int = 1) -> PlainTable:
    return PlainTable(source(values, unit), None, None, "float32", len(values))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with backend("one thread"):
        yield


def ingest(path: Path, rows: Any, missing: list[int], keep_nan: bool = False) -> tuple[int, int]:
    """Return the number of rows written and the number of rows reported."""
    events: list[Any] = []
    with Execution(events.append) as execution:
        written = copy_rows.ingest_pass(
            execution,
            rows,
            locate(path),
            MANIFEST,
            missing=missing,
            keep_nan=keep_nan,
        )
    return written.rows, sum(event.rows for event in events if isinstance(event, BlockDone))


@pytest.fixture
def store(tmp_path: Path) -> Path:
    create_features_store(tmp_path / "x.zarr", MANIFEST)
    return tmp_path / "x.zarr"


@pytest.mark.parametrize("unit", [1, 3, 5, 100])
def test_missing_blocks_are_written(store: Path, unit: int) -> None:
    assert ingest(store, table(unit=unit), []) == (0, 0)
    written, _ = ingest(store, table(unit=unit), [1, 3])
    assert written == 3 + 1
    assert missing_blocks(store) == [0, 2]
    features = zarr.open_group(store, mode="r")["features"]
    np.testing.assert_array_equal(features[3:6], X[3:6])
    np.testing.assert_array_equal(features[9:], X[9:])
    written, reported = ingest(store, table(X, unit), [0, 2])
    assert written == 6
    assert reported >= written  # includes rows of the same span that an earlier run wrote
    assert missing_blocks(store) == []
    np.testing.assert_array_equal(zarr.open_group(store, mode="r")["features"][:], X)


def test_rows_that_are_not_finite(store: Path) -> None:
    values = X.copy()
    values[7, 1], values[4, 0] = np.nan, np.inf
    assert copy_rows.bad_rows(values).tolist() == [4, 7]
    with Execution(lambda event: None) as execution:
        found = copy_rows.find_rows_pass(execution, table(values), MANIFEST, nan=True, zeros=False)
    assert found.tolist() == [4, 7]
    with pytest.raises(InputError, match=expecting("row 7", "rows.bin", "block 2")):
        ingest(store, table(values), [2, 3])
    assert ingest(store, table(values), [0, 1, 2, 3], keep_nan=True)[0] == 10
    np.testing.assert_array_equal(zarr.open_group(store, mode="r")["features"][:], values)


def test_all_rows_are_finite() -> None:
    with Execution(lambda event: None) as execution:
        found = copy_rows.find_rows_pass(execution, table(), MANIFEST, nan=True, zeros=True)
    assert len(found) == 0


@pytest.mark.parametrize(
    ("nan", "zeros", "rows"), [(True, False, [4]), (False, True, [2, 8]), (True, True, [2, 4, 8])]
)
def test_rows_of_zeros_are_found(nan: bool, zeros: bool, rows: list[int]) -> None:
    values = X.copy()
    values[[2, 8]], values[4, 1], values[5, 0] = 0.0, np.nan, 0.0
    with Execution(lambda event: None) as execution:
        found = copy_rows.find_rows_pass(
            execution, table(values, 5), MANIFEST, nan=nan, zeros=zeros
        )
    assert found.tolist() == rows


@pytest.mark.parametrize(("block_rows", "unit"), [(2, 1), (3, 5), (100, 1)])
def test_names_of_labels(block_rows: int, unit: int) -> None:
    labels = source(np.array(["b", "a", "b", "c", "-1", "d"]), unit)
    with Execution(lambda event: None) as execution:
        found = copy_rows.collect_labels_pass(execution, labels, 5, block_rows)
    # The label "d" belongs to row 5, which is not read.
    assert [name for name in found if name != "-1"] == ["a", "b", "c"]


def test_shuffled_table_contains_each_row_once(tmp_path: Path) -> None:
    shuffled = ShuffledTable(str(tmp_path), MANIFEST, seed=3, labels=False, ids=None)
    with Execution(lambda event: None) as execution:
        origins = Origins(np.array([10]), np.zeros(1, np.int32))
        rows = replace(table(), origins=origins)
        copy_rows.shuffle_pass(execution, rows, shuffled, keep_nan=False)
    found = np.concatenate([rows.features for rows in shuffled.batches(0, 10, 3)])
    np.testing.assert_array_equal(found[Permutation(10, seed=3).places(np.arange(10))], X)


def test_complete_files_are_verified() -> None:
    copy_rows.check_stored_pass([source(X)])
    with pytest.raises(StoreError, match=r"bad: .*rows\.bin"):
        copy_rows.check_stored_pass([source(X), source(np.full((2, 2), np.nan))])
