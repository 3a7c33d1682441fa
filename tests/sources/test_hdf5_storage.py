"""Rows of HDF5 datasets that have no storage, which HDF5 reads as zeros."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from scrlm_dask.errors import StoreError
from scrlm_dask.sources.hdf5 import open_hdf5

X = np.arange(40, dtype=np.float32).reshape(10, 4)


@pytest.mark.parametrize("chunks", [(3, 4), (3, 2), None])
def test_rows_that_were_never_written(tmp_path: Path, chunks: tuple[int, int] | None) -> None:
    path = str(tmp_path / "x.h5")
    with h5py.File(path, "w") as file:
        data = file.create_dataset("x", X.shape, X.dtype, chunks=chunks)
        if chunks is not None:
            data[:6] = X[:6]
    with pytest.raises(StoreError, match=r"x\.h5\[x\]"):
        open_hdf5(path)
    with h5py.File(path, "a") as file:
        file["x"][:] = X
    np.testing.assert_array_equal(open_hdf5(path).read(0, 10), X)


def write_virtual(folder: Path, rows: int = 10) -> str:
    """Write a virtual dataset of two files, 5 rows each; `rows` of its rows are mapped."""
    layout = h5py.VirtualLayout(X.shape, X.dtype)
    for number in range(2):
        with h5py.File(folder / f"part{number}.h5", "w") as file:
            file["x"] = X[5 * number : 5 * number + 5]
        here = slice(5 * number, min(rows, 5 * number + 5))
        source = h5py.VirtualSource(f"part{number}.h5", "x", (5, 4))
        layout[here] = source[: here.stop - here.start]
    with h5py.File(folder / "all.h5", "w") as file:
        file.create_virtual_dataset("x", layout, fillvalue=0)
    return str(folder / "all.h5")


def test_virtual_dataset_names_its_files(tmp_path: Path) -> None:
    source = open_hdf5(write_virtual(tmp_path))
    np.testing.assert_array_equal(source.read(0, 10), X)
    names = [Path(file.path).name for file in source.files]
    assert names == ["all.h5", "part0.h5", "part1.h5"]
    assert "part1.h5" in source.notes()[0]


def test_virtual_dataset_whose_rows_are_missing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="32 of 40"):
        open_hdf5(write_virtual(tmp_path, rows=8))
    path = write_virtual(tmp_path)
    with h5py.File(tmp_path / "part1.h5", "w") as file:
        file["x"] = X[:3]
    with pytest.raises(StoreError, match=r"part1\.h5"):
        open_hdf5(path)
    with h5py.File(tmp_path / "part1.h5", "w") as file:
        file.create_dataset("x", (5, 4), X.dtype, chunks=(1, 4))[:3] = X[:3]
    with pytest.raises(StoreError, match=r"part1\.h5"):
        open_hdf5(path)
    with h5py.File(tmp_path / "part1.h5", "w") as file:
        file["y"] = X
    with pytest.raises(StoreError, match=r"part1\.h5"):
        open_hdf5(path)
    (tmp_path / "part1.h5").unlink()
    with pytest.raises(StoreError, match=r"part1\.h5"):
        open_hdf5(path)


def test_external_file(tmp_path: Path) -> None:
    path, raw = str(tmp_path / "x.h5"), tmp_path / "rows.raw"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=X, external=[(str(raw), 0, h5py.h5f.UNLIMITED)])
    source = open_hdf5(path)
    np.testing.assert_array_equal(source.read(0, 10), X)
    assert [file.path for file in source.files] == [path, str(raw)]
    raw.write_bytes(raw.read_bytes()[:-16])
    with pytest.raises(StoreError, match=r"160.*rows\.raw.*144"):
        open_hdf5(path)
    raw.unlink()
    with pytest.raises(StoreError, match=r"rows\.raw"):
        open_hdf5(path)
