"""Zarr arrays of others: which array of a group is read, and its columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.zarr_store import looks_like_zarr, open_zarr, open_zarr_values
from scrlm_dask.storage.locations import locate

X = np.arange(12, dtype=np.float32).reshape(6, 2)


def test_the_table_of_a_group(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path / "x")
    group.create_array("emb", data=X, chunks=(4, 2))
    group.create_array("label", data=np.arange(6))
    assert looks_like_zarr(str(tmp_path / "x"))
    source = open_zarr(locate(tmp_path / "x"))
    assert (source.unit_rows, source.locate(1)) == (4, f"row 1 of {tmp_path}/x/emb")
    np.testing.assert_array_equal(source.read(3, 6), X[3:])
    assert source.column("label").read(1, 3).tolist() == [1, 2]
    assert open_zarr_values(locate(tmp_path / "x"), "label").shape == (6,)
    group.create_array("other", data=X)
    with pytest.raises(InputError, match=r"holds 2 tables \(emb, other\); say which"):
        open_zarr(locate(tmp_path / "x"))
    with pytest.raises(InputError, match=r"no array 'embed' \(it holds emb, "):
        open_zarr(locate(tmp_path / "x"), "embed")


def test_an_array_has_no_columns_and_an_unfinished_group_is_rejected(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a", data=X)
    with pytest.raises(InputError, match="is an array, so it holds no 'label'"):
        open_zarr(locate(tmp_path / "a"), "label")
    zarr.create_group(tmp_path / "g", attributes={"complete": False})
    with pytest.raises(StoreError, match="is unfinished"):
        open_zarr(locate(tmp_path / "g"))
