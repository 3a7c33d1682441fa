"""Blocks of a store are compared with their digests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from backends import backend
from messages import expecting

from scrlm_dask.engine.execution import Execution
from scrlm_dask.errors import StoreError
from scrlm_dask.passes.digests import DamagedBlock, check_digests_pass
from scrlm_dask.storage.feature_store import (
    create_features_store,
    mark_complete,
    open_features_store,
    write_features_block,
)
from scrlm_dask.storage.locations import Location, locate
from scrlm_dask.storage.manifest import Manifest

X = np.arange(20, dtype=np.float32).reshape(10, 2)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with backend("one thread"):
        yield


@pytest.fixture
def store(tmp_path: Path) -> Location:
    """Write ten rows in blocks of four."""
    path = locate(tmp_path / "x.zarr")
    create_features_store(path, Manifest(10, 2, "float32", 4, (), {}))
    for start in range(0, 10, 4):
        write_features_block(path, start, X[start : start + 4], None, None)
    mark_complete(path)
    return path


def damaged(store: Location, has_digests: bool = True, n: int = 4) -> tuple[DamagedBlock, ...]:
    with Execution(lambda event: None) as execution:
        return check_digests_pass(execution, store, open_features_store(store), n, has_digests)


@pytest.mark.parametrize("has_digests", [True, False])
def test_undamaged_store(store: Location, has_digests: bool) -> None:
    assert damaged(store, has_digests) == ()


def test_changed_rows_are_detected(store: Location) -> None:
    features = zarr.open_array(f"{store.url}/features", mode="r+")
    features[2, 1] = 7.0
    features[9, 0] = 7.0
    found = damaged(store)
    places = [(block.block, block.first_row, block.last_row) for block in found]
    assert places == [(0, 0, 3), (2, 8, 9)]
    for block in found:
        assert re.search(expecting(f"block {block.block}"), block.reason)
    # Without digests a changed value cannot be detected.
    assert damaged(store, has_digests=False) == ()


@pytest.mark.parametrize("has_digests", [True, False])
def test_unreadable_block_is_damaged(store: Location, has_digests: bool) -> None:
    chunk = Path(store.url) / "features" / "c" / "1" / "0"
    content = chunk.read_bytes()
    chunk.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    # A block of 8 rows has two chunks; without a digest each chunk is checked.
    found = damaged(store, has_digests, n=4 if has_digests else 8)
    assert [(block.block, block.first_row, block.last_row) for block in found] == [(1, 4, 7)]


def test_missing_store_is_not_a_damaged_block(store: Location) -> None:
    stored = open_features_store(store)
    Path(store.url).rename(f"{store.url}.moved")
    with Execution(lambda event: None) as execution, pytest.raises(StoreError, match=store.url):
        check_digests_pass(execution, store, stored, 4, has_digests=True)


def test_group_is_not_opened_for_each_block(
    store: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attributes of the group may name thousands of source files and labels."""
    stored, opened = open_features_store(store), list[str]()
    open_any = zarr.open

    def counted(path: str, *args: Any, **options: Any) -> Any:
        opened.append(path)
        return open_any(path, *args, **options)

    monkeypatch.setattr(zarr, "open", counted)
    with Execution(lambda event: None) as execution:
        assert check_digests_pass(execution, store, stored, 4, has_digests=True) == ()
    for start in range(0, 10, 4):
        write_features_block(store, start, X[start : start + 4], None, None)
    assert f"{store.url}/features" in opened
    assert store.url not in opened
