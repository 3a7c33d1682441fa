"""Foreign Zarr groups: choice of the array, and columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.zarr_store import looks_like_zarr, open_zarr, open_zarr_values
from scrlm_dask.storage.locations import locate

X = np.arange(12, dtype=np.float32).reshape(6, 2)


def test_table_of_a_group(tmp_path: Path) -> None:
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
    with pytest.raises(InputError, match=r"(?=.*\b2\b)(?=.*\bemb, other\b)(?=.*--dataset)"):
        open_zarr(locate(tmp_path / "x"))
    with pytest.raises(InputError, match=rf"(?=.*{tmp_path}/x)(?=.*'embed')(?=.*\bemb, )"):
        open_zarr(locate(tmp_path / "x"), "embed")


def test_column_of_an_array_and_unfinished_group_are_rejected(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a", data=X)
    with pytest.raises(InputError, match=f"(?=.*{tmp_path}/a)(?=.*'label')"):
        open_zarr(locate(tmp_path / "a"), "label")
    group = zarr.create_group(tmp_path / "g", attributes={"complete": False})
    group.create_array("emb", data=X)
    with pytest.raises(StoreError, match=f"{tmp_path}/g"):
        open_zarr(locate(tmp_path / "g"))
    group.attrs["complete"] = True
    assert open_zarr(locate(tmp_path / "g")).shape == X.shape


@pytest.mark.parametrize("name", [None, "emb"])
@pytest.mark.parametrize(
    "change",
    [
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0, 2]}}},
        {"shape": [10**15, 2]},
        {"shape": [-6, 2]},
        {"data_type": "none"},
        {"codecs": []},
    ],
)
def test_damaged_metadata_of_a_member(
    tmp_path: Path, change: dict[str, Any], name: str | None
) -> None:
    zarr.create_group(tmp_path / "x").create_array("emb", data=X)
    metadata = tmp_path / "x/emb/zarr.json"
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | change))
    with pytest.raises(StoreError, match=f"{tmp_path}/x.*metadata"):
        open_zarr(locate(tmp_path / "x"), name)
