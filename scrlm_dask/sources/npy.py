"""NumPy's .npy files."""

from __future__ import annotations

from typing import IO, Any

import numpy as np

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.flat import FlatSource, open_flat

MAGIC = b"\x93NUMPY"


def open_npy(path: str) -> FlatSource:
    with open(path, "rb") as file:  # noqa: PTH123
        shape, fortran, dtype = read_header(file, path)
        offset = file.tell()
    return open_flat(path, shape, dtype, offset, fortran=fortran)


def read_header(file: IO[bytes], what: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, Fortran order and dtype; the file then stands at the first item."""
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
        else:  # 3.0 is for field names of structured dtypes
            raise ValueError(f"version {version} of the format")
    except (ValueError, OSError, EOFError) as error:
        raise StoreError(f"{what} has no header of a .npy file ({error}); restore it") from error
    if dtype.hasobject or dtype.names:
        raise InputError(
            f"{what} holds {dtype}: Python objects or records, which only unpickling could read, "
            "and that runs code of whoever wrote it; save plain numbers"
        )
    if any(n < 0 for n in shape):
        raise StoreError(f"{what} claims the shape {shape}; restore it")
    return shape, fortran, dtype
