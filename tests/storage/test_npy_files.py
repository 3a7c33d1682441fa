"""Headers of .npy files: one reader for ingestion and for columns such as labels."""

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
def test_header(version: tuple[int, int], fortran: bool) -> None:
    x = np.arange(6, dtype=">f4").reshape(2, 3)
    file = BytesIO()
    np.lib.format.write_array(file, np.asfortranarray(x) if fortran else x, version)
    file.seek(0)
    header = read_header(file, "x.npy")
    assert header[:3] == ((2, 3), fortran, x.dtype)
    assert file.read() == x.tobytes("F" if fortran else "C")


def npy_header(header: dict[str, Any]) -> bytes:
    file = BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, **header})
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (npy_header({"shape": (3,)}).replace(b"}", b"("), "multi-line"),
        (b"1,2,3", "magic string"),
        (b"", "EOF"),
        (npy_header({"shape": (3,)})[:30], "EOF"),
        (b"\x93NUMPY\x03\x00" + bytes(100), r"\(3, 0\)"),
        (npy_header({"shape": (-3,)}), r"\(-3,\)"),
        (npy_header({"shape": (3,), "descr": "|O"}), r"\bobject\b"),
        (npy_header({"shape": (3,), "descr": [("a", "<f4")]}), r"\[\('a', '<f4'\)\]"),
    ],
)
def test_invalid_files_are_rejected_by_both_readers(
    tmp_path: Path, content: bytes, fact: str
) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    for read in (lambda: open_npy(str(path)), lambda: open_npy_column(locate(path), "the truth")):
        with pytest.raises(StoreError, match=rf"(?=.*{path})(?=.*{fact})"):
            read()
