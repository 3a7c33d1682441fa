"""Lazy access to .npy files: parse the header, then read slices of a 1-D array, local or remote."""

from __future__ import annotations

import math
from dataclasses import dataclass
from io import BytesIO
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import MissingError, ScrlmError, StoreError
from scrlm_dask.storage.locations import Location

_HEADER_BYTES = 2**16
_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
    # version 3.0 is only used for structured dtypes
}


class NpyHeader(NamedTuple):
    """Shape, memory order and dtype of an array, and the position of its data in the file."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    offset: int  # of the first item, in bytes


@dataclass(frozen=True)
class NpyColumn:
    """A .npy file whose rows are read when needed; small enough to send to every worker."""

    location: Location
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int  # of the first item, in bytes

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Read rows start..stop-1 of a 1-D array."""
        size = self.dtype.itemsize
        with self.location.files() as (filesystem, path):
            piece = filesystem.cat_file(
                path, start=self.offset + start * size, end=self.offset + stop * size
            )
        if len(piece) != (stop - start) * size:
            raise StoreError(
                f"{self.location} is truncated: it ends before row {stop - 1}, but was longer when "
                "it was opened; do not write to it during a run"
            )
        return np.frombuffer(piece, self.dtype)


def read_npy(location: Location, what: str) -> NDArray[Any]:
    """Read all of a small array of any shape."""
    open_npy_column(location, what)  # rejects damaged files
    with location.files(what) as (filesystem, path):
        file = BytesIO(filesystem.cat_file(path))
    values: NDArray[Any] = np.load(file, allow_pickle=False)
    return values


def open_npy_column(location: Location, what: str) -> NpyColumn:
    """Read the header and check the size of the file; `what` names the file in messages."""
    try:
        return _open(location, what)
    except StoreError:
        raise
    except FileNotFoundError as error:
        raise MissingError(f"{what} {location} does not exist; check the path") from error
    except OSError as error:
        raise _unreadable(f"{what} {location}", error) from error


def read_header(file: IO[bytes], what: str) -> NpyHeader:
    """Read the header of an array of numbers or strings, and leave the file at its first item."""
    try:
        version = np.lib.format.read_magic(file)
        if version not in _HEADER_READERS:
            raise ValueError(f"version {version} of the format is not supported")
        shape, fortran, dtype = _HEADER_READERS[version](file)
    except (MemoryError, ScrlmError):
        raise
    except Exception as error:  # NumPy evaluates the header as Python source: many types of error
        raise _unreadable(what, error) from error
    if dtype.hasobject or dtype.names:
        raise StoreError(
            f"{what} cannot be read as .npy: dtype {dtype} is not supported; records and pickled "
            "objects are never loaded, because a pickle can run arbitrary code; save plain numbers"
        )
    if any(n < 0 for n in shape):
        raise StoreError(
            f"{what} cannot be read as .npy: its header claims shape {shape}; restore it"
        )
    return NpyHeader(shape, fortran, dtype, file.tell())


def _unreadable(what: str, error: Exception) -> StoreError:
    return StoreError(f"{what} cannot be read as .npy ({error}); restore it")


def _open(location: Location, what: str) -> NpyColumn:
    location.check_regular()
    with location.files(what) as (filesystem, path):
        size = filesystem.info(path)["size"]
        file = BytesIO(filesystem.cat_file(path, start=0, end=min(size, _HEADER_BYTES)))
    header = read_header(file, f"{what} {location}")
    needed = header.offset + math.prod(header.shape) * header.dtype.itemsize
    if size < needed:
        raise StoreError(
            f"{what} {location} cannot be read as .npy: it is truncated, {size} of {needed} bytes "
            "are present; restore it"
        )
    return NpyColumn(location, header.shape, header.dtype, header.offset)
