"""HDF5 files: choice of the dataset, types and chunks."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from formats import write_hdf5

from scrlm_dask.errors import InputError
from scrlm_dask.sources.hdf5 import open_hdf5

X = np.arange(40, dtype=np.float32).reshape(10, 4)


def test_choice_of_the_dataset(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path, X)[0][0]
    with pytest.raises(InputError, match="--dataset"):
        open_hdf5(path)
    with pytest.raises(InputError, match=r"(?=.*'no')(?=.*test)"):
        open_hdf5(path, "no")
    assert open_hdf5(path, "test").n_features == 4


def test_single_table_texts_and_chunks(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("a/x", data=X, chunks=(3, 4))
        file["names"] = ["é", "b"]
    source = open_hdf5(str(tmp_path / "x.h5"))
    assert (source.what, source.unit_rows) == (f"{tmp_path}/x.h5[a/x]", 3)
    np.testing.assert_array_equal(source.read(2, 7), X[2:7])
    assert source.column("names").read(0, 2).tolist() == ["é", "b"]


def test_dataset_without_data_next_to_the_table(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["x"], file["note"] = X, h5py.Empty("f4")
    np.testing.assert_array_equal(open_hdf5(str(tmp_path / "x.h5")).read(0, 10), X)
    with pytest.raises(InputError, match="note"):
        open_hdf5(str(tmp_path / "x.h5"), "note")


@pytest.mark.parametrize("target", ["other.h5", "gone.h5"])
def test_links_and_datasets_without_rows_are_named(tmp_path: Path, target: str) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = X
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["deep/link"] = h5py.ExternalLink(target, "/x")
        file["null"], file["one"] = h5py.Empty("f4"), 3.0
    with pytest.raises(InputError) as caught:
        open_hdf5(str(tmp_path / "x.h5"))
    assert all(name in str(caught.value) for name in ("deep/link", target, "null", "one"))
