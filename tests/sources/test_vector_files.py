"""Files of vectors: Fortran order, truncated files and raw items."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.vector_files import open_bin, open_npy, open_raw, open_vecs

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_fortran_order(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.asfortranarray(X))
    np.testing.assert_array_equal(open_npy(str(tmp_path / "x.npy")).read(1, 3), X[1:3])


def test_first_missing_row_of_a_truncated_file_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    vecs = b"".join(struct.pack("<i3f", 3, *row) for row in X)
    (tmp_path / "x.fvecs").write_bytes(vecs)
    for source in (open_npy(str(tmp_path / "x.npy")), open_vecs(str(tmp_path / "x.fvecs"))):
        np.testing.assert_array_equal(source.read(2, 4), X[2:])
        os.truncate(source.what, source.files[0].bytes - 1)
        with pytest.raises(StoreError, match=rf"(?=.*{source.what})(?=.*\brow 3\b)"):
            source.read(2, 4)


def test_raw_items_need_a_type_and_a_matching_size(tmp_path: Path) -> None:
    X.tofile(tmp_path / "x.dat")
    path = str(tmp_path / "x.dat")
    np.testing.assert_array_equal(open_raw(path, "float32", 3).read(0, 4), X)
    with pytest.raises(InputError, match=r"(?=.*--features)(?=.*--raw-dtype)"):
        open_raw(path, "float32", None)
    with pytest.raises(StoreError, match=r"(?=.*\b48\b)(?=.*\b5\b)(?=.*\b20\b)"):
        open_raw(path, "float32", 5)


def test_truncated_header(tmp_path: Path) -> None:
    (tmp_path / "x.fbin").write_bytes(b"\1\0\0")
    with pytest.raises(StoreError, match=rf"(?=.*{tmp_path}/x\.fbin)(?=.*\b3\b)"):
        open_bin(str(tmp_path / "x.fbin"))
