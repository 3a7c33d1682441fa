"""Known data sets: stores from unpacked packages, without a network."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import zarr

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.paper.datasets import fashion_store, mnist_store, stores_for
from scrlm_dask.storage.locations import locate


def write_idx(path: Path, values: np.ndarray, kind: int = 8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(f">HBB{values.ndim}I", 0, kind, values.ndim, *values.shape)
    data = header + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def test_store_from_an_unpacked_package(tmp_path: Path) -> None:
    images, labels = np.arange(12).reshape(3, 2, 2), np.array([7, 0, 7])
    for open_store, folder, ending in (
        (mnist_store, tmp_path / "mnist/package/data", ""),
        (fashion_store, tmp_path / "fashion/usr/share/datasets/fashion-mnist", ".gz"),
    ):
        write_idx(folder / f"train-images-idx3-ubyte{ending}", images)
        write_idx(folder / f"train-labels-idx1-ubyte{ending}", labels)
        group = zarr.open_group(open_store(tmp_path), mode="r")
        assert group["features"][:].tolist() == images.reshape(3, 4).tolist()
        assert group["labels"][:].tolist() == [7, 0, 7]


def test_file_of_another_type_is_rejected(tmp_path: Path) -> None:
    write_idx(tmp_path / "mnist/package/data/train-images-idx3-ubyte", np.zeros((1, 2, 2)), kind=13)
    with pytest.raises(StoreError, match=rf"{tmp_path}/mnist/.*train-images-idx3-ubyte"):
        mnist_store(tmp_path)


def test_data_sets_are_not_fetched_into_a_url() -> None:
    out = locate("memory://out")
    with pytest.raises(InputError, match="memory://out"):
        stores_for({"mnist": None}, out, print)
    assert stores_for({"mine": "x.zarr"}, out, print) == {"mine": "x.zarr"}
