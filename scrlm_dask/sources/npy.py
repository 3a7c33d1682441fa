"""NumPy's .npy files."""

from __future__ import annotations

from scrlm_dask.sources.flat import FlatSource, open_flat
from scrlm_dask.storage.npy import read_header

MAGIC = b"\x93NUMPY"


def open_npy(path: str) -> FlatSource:
    with open(path, "rb") as file:  # noqa: PTH123
        shape, fortran, dtype = read_header(file, path)
        offset = file.tell()
    return open_flat(path, shape, dtype, offset, fortran=fortran)
