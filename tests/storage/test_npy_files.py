"""Headers of .npy files: one reader for those who copy them and those who read a column."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scrlm_dask.errors import StoreError
from scrlm_dask.sources.vector_files import open_npy
from scrlm_dask.storage.locations import locate
from scrlm_dask.storage.npy_files import open_npy_column, read_header


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
@pytest.mark.parametrize("fortran", [False, True])
def test_what_it_says(version: tuple[int, int], fortran: bool) -> None:
    x = np.arange(6, dtype=">f4").reshape(2, 3)
    file = BytesIO()
    np.lib.format.write_array(file, np.asfortranarray(x) if fortran else x, version)
    file.seek(0)
    header = read_header(file, "it")
    assert header[:3] == ((2, 3), fortran, x.dtype)
    assert file.read() == x.tobytes("F" if fortran else "C")


def claiming(header: dict[str, Any]) -> bytes:
    file = BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, **header})
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"1,2,3", "magic string"),
        (b"", "EOF"),
        (claiming({"shape": (3,)})[:30], "EOF"),
        (b"\x93NUMPY\x03\x00" + bytes(100), "version"),
        (claiming({"shape": (-3,)}), "claims the shape"),
        (claiming({"shape": (3,), "descr": "|O"}), "pickled objects, which are never loaded"),
        (claiming({"shape": (3,), "descr": [("a", "<f4")]}), "records"),
    ],
)
def test_both_refuse_the_same(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    for opened in (lambda: open_npy(str(path)), lambda: open_npy_column(locate(path), "the truth")):
        with pytest.raises(StoreError, match=rf"x\.npy cannot be read as \.npy.*{words}"):
            opened()
