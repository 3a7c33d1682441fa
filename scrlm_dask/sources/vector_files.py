"""Uncompressed binary arrays: .npy, .fbin, .fvecs and raw files, and uncompressed .npz members."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.base import Source, memory_of, native, source_file, table_bytes
from scrlm_dask.storage.manifest import SourceFile
from scrlm_dask.storage.npy_files import NpyHeader, read_header

MAGIC = b"\x93NUMPY"
BIN_DTYPES = {".fbin": "<f4", ".u8bin": "u1", ".i8bin": "i1"}
VECS_DTYPES = {".fvecs": "<f4", ".bvecs": "u1", ".ivecs": "<i4"}
_COUNT_BYTES = 4


@dataclass(frozen=True)
class FlatSource(Source):
    """A contiguous array in a file.

    The file is not memory-mapped: mapped pages count as memory of the worker, and truncating a
    mapped file kills the process.
    """

    offset: int  # position of the first item, in bytes
    fortran: bool = False
    fixed: str | None = None  # name in messages if the path of the file is not enough

    @property
    def what(self) -> str:
        """Path of the file, or the fixed name."""
        return self.fixed or super().what

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows start..stop-1; the file is opened for each read."""
        with open(self.files[0].path, "rb") as file:  # noqa: PTH123
            in_columns = self.fortran and len(self.shape) == 2
            read = self._read_columns if in_columns else self._read_items
            return read(file, start, stop).astype(native(self.dtype), copy=False)

    def _read_items(self, file: Any, start: int, stop: int) -> NDArray[Any]:
        values = np.empty((stop - start, *self.shape[1:]), self.dtype)
        row_bytes = table_bytes(self.shape[1:], self.dtype)
        file.seek(self.offset + start * row_bytes)
        read = file.readinto(memory_of(values)) if values.size else 0
        if read != values.nbytes:
            raise _truncated(self, start + read // row_bytes)
        return values

    def _read_columns(self, file: Any, start: int, stop: int) -> NDArray[Any]:
        """Read rows of an array in Fortran order: one read per column, which is contiguous."""
        values = np.empty((self.n_features, stop - start), self.dtype)
        for number, column in enumerate(values):
            item = number * self.n_rows + start
            file.seek(self.offset + item * self.dtype.itemsize)
            if column.size and file.readinto(memory_of(column)) != column.nbytes:
                raise _truncated(self, start)
        return np.ascontiguousarray(values.T)


def _truncated(source: Source, row: int) -> StoreError:
    return StoreError(
        f"{source.what} is truncated: it ends before row {row}, but was longer when it was opened; "
        "do not write to it while it is read"
    )


def open_flat(path: str, header: NpyHeader) -> FlatSource:
    """Open a file whose size must match its header exactly."""
    file = source_file(path)
    check_size(file, header)
    return FlatSource((file,), header.shape, header.dtype, header.offset, header.fortran)


def check_size(file: SourceFile, header: NpyHeader) -> None:
    """Raise if the header claims more or fewer rows than the file has.

    The check prevents the allocation of memory for a wrong shape.
    """
    shape, dtype, end = header.shape, header.dtype, file.bytes
    needed = header.offset + table_bytes(shape, dtype)
    if needed == end:
        return
    n_rows = max(0, end - header.offset) // max(1, table_bytes(shape[1:], dtype))
    raise StoreError(
        f"{file.path} claims {shape[0] if shape else 1} rows ({shape} of {dtype}, {needed} bytes), "
        f"but has {end} bytes, enough for {n_rows} rows; it is truncated or has another format: "
        "restore it"
    )


def open_npy(path: str) -> FlatSource:
    """Open a .npy file of any shape."""
    with open(path, "rb") as file:  # noqa: PTH123
        header = read_header(file, path)
    return open_flat(path, header)


def open_bin(path: str) -> FlatSource:
    """Open a .fbin or similar file: numbers of rows and of features (uint32), then the items."""
    dtype = _dtype_for(path, BIN_DTYPES)
    with open(path, "rb") as file:  # noqa: PTH123
        counts = file.read(2 * _COUNT_BYTES)
    if len(counts) < 2 * _COUNT_BYTES:
        raise StoreError(
            f"{path} has {len(counts)} bytes, less than its header ({2 * _COUNT_BYTES}); restore it"
        )
    rows, features = (int(n) for n in np.frombuffer(counts, "<u4"))
    return open_flat(path, NpyHeader((rows, features), False, dtype, len(counts)))


def open_raw(path: str, dtype: str | None, features: int | None) -> FlatSource:
    """Open a file without a header; `dtype` and `features` are required."""
    if dtype is None or features is None:
        raise InputError(
            f"{path} is read as raw items and has no header; "
            "give --features NUMBER and --raw-dtype (or --dtype)"
        )
    item = np.dtype(dtype)
    size, row_bytes = source_file(path).bytes, item.itemsize * features
    if features < 1 or size % row_bytes:
        raise StoreError(
            f"{path} has {size} bytes, which is not a whole number of rows of {features} x {item} "
            f"({row_bytes} bytes); row {size // max(1, row_bytes)} is truncated, or --features or "
            "--raw-dtype is wrong"
        )
    return open_flat(path, NpyHeader((size // row_bytes, features), False, item, 0))


@dataclass(frozen=True)
class VecsSource(Source):
    """A .fvecs or similar file: per row, the number of features (int32) and then the items."""

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows start..stop-1; raise if their numbers of features differ."""
        record = _record_dtype(self.dtype, self.n_features)
        with open(self.files[0].path, "rb") as file:  # noqa: PTH123
            file.seek(start * record.itemsize)
            rows = np.fromfile(file, record, stop - start)
        if len(rows) < stop - start:
            raise _truncated(self, start + len(rows))
        wrong = np.flatnonzero(rows["features"] != self.n_features)
        if len(wrong):
            row = start + int(wrong[0])
            raise StoreError(
                f"row {row} of {self.what} claims {rows['features'][wrong[0]]} features, but row 0 "
                f"has {self.n_features}; the file is damaged or its rows have different lengths: "
                "restore it"
            )
        return rows["items"].astype(native(self.dtype))


def open_vecs(path: str) -> VecsSource:
    """Open a .fvecs, .bvecs or .ivecs file; the first row gives the number of features."""
    dtype = _dtype_for(path, VECS_DTYPES)
    file = source_file(path)
    with open(path, "rb") as stream:  # noqa: PTH123
        first = stream.read(_COUNT_BYTES)
    features = int(np.frombuffer(first, "<i4")[0]) if len(first) == _COUNT_BYTES else 0
    row_bytes = _COUNT_BYTES + max(0, features) * dtype.itemsize
    if features < 1 or file.bytes % row_bytes:
        raise StoreError(
            f"row 0 of {path} claims {features} features, but {file.bytes} bytes are not a whole "
            f"number of such rows (row {file.bytes // row_bytes} is truncated); restore it"
        )
    return VecsSource((file,), (file.bytes // row_bytes, features), dtype)


def _record_dtype(dtype: np.dtype[Any], features: int) -> np.dtype[Any]:
    return np.dtype([("features", "<i4"), ("items", dtype, (features,))])


def _dtype_for(path: str, dtypes: dict[str, str]) -> np.dtype[Any]:
    suffix = Path(path).suffix.lower()
    if suffix not in dtypes:
        raise InputError(
            f"the suffix of {path} must be one of {', '.join(dtypes)}, got {suffix or 'none'}"
        )
    return np.dtype(dtypes[suffix])
