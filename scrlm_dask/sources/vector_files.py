"""Items one after the other from some byte on: what .npy, stored .npz, .fbin and raw files are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.base import Source, memory_of, native, source_file, table_bytes
from scrlm_dask.storage.manifest import SourceFile
from scrlm_dask.storage.npy_files import read_header


@dataclass(frozen=True)
class FlatSource(Source):
    """Read with plain reads, not mapped: mapped pages count as memory of the worker, and a file
    that is cut while it is mapped kills the process."""

    offset: int
    fortran: bool = False
    fixed: str | None = None  # how messages call it where the file's path is not enough

    @property
    def what(self) -> str:
        return self.fixed or super().what

    def read(self, start: int, stop: int) -> NDArray[Any]:
        with open(self.files[0].path, "rb") as file:  # noqa: PTH123
            if self.fortran and len(self.shape) == 2:
                values = self._columns(file, start, stop)
            else:
                values = self._items(file, start, stop)
        return values.astype(native(self.dtype), copy=False)

    def _items(self, file: Any, start: int, stop: int) -> NDArray[Any]:
        values = np.empty((stop - start, *self.shape[1:]), self.dtype)
        row_bytes = table_bytes(self.shape[1:], self.dtype)
        file.seek(self.offset + start * row_bytes)
        read = file.readinto(memory_of(values)) if values.size else 0
        if read != values.nbytes:
            raise self._cut(start + read // row_bytes)
        return values

    def _columns(self, file: Any, start: int, stop: int) -> NDArray[Any]:
        """Fortran order: a column after the other, so a block is a piece of each."""
        values = np.empty((self.n_features, stop - start), self.dtype)
        for number, column in enumerate(values):
            item = number * self.n_rows + start
            file.seek(self.offset + item * self.dtype.itemsize)
            if column.size and file.readinto(memory_of(column)) != column.nbytes:
                raise self._cut(start)
        return np.ascontiguousarray(values.T)

    def _cut(self, row: int) -> StoreError:
        return StoreError(
            f"{self.what} ends before row {row}, and was longer when it was opened; "
            "do not write to it meanwhile"
        )


def open_flat(
    path: str,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    offset: int,
    *,
    fortran: bool = False,
) -> FlatSource:
    """A file that must hold exactly the items that are claimed: no more, no fewer."""
    file = source_file(path)
    check_size(file, shape, dtype, offset, file.bytes)
    return FlatSource((file,), shape, dtype, offset, fortran)


def check_size(
    file: SourceFile, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int, end: int
) -> None:
    """Refuse before anything is allocated what the header claims and the file cannot hold."""
    needed = offset + table_bytes(shape, dtype)
    if needed == end:
        return
    row_bytes = max(1, table_bytes(shape[1:], dtype))
    held = max(0, end - offset) // row_bytes
    raise StoreError(
        f"{file.path} claims {shape[0] if shape else 1} rows ({shape} of {dtype}, {needed} bytes) "
        f"and has {end} bytes, enough for {held} rows; it was cut or is no such file: restore it"
    )


MAGIC = b"\x93NUMPY"


def open_npy(path: str) -> FlatSource:
    with open(path, "rb") as file:  # noqa: PTH123
        shape, fortran, dtype = read_header(file, path)
        offset = file.tell()
    return open_flat(path, shape, dtype, offset, fortran=fortran)


BIN_DTYPES = {".fbin": "<f4", ".u8bin": "u1", ".i8bin": "i1"}


VECS_DTYPES = {".fvecs": "<f4", ".bvecs": "u1", ".ivecs": "<i4"}


_COUNT_BYTES = 4


def open_bin(path: str) -> FlatSource:
    """uint32 rows, uint32 features, then the items."""
    dtype = _dtype_for(path, BIN_DTYPES)
    with open(path, "rb") as file:  # noqa: PTH123
        header = file.read(2 * _COUNT_BYTES)
    if len(header) < 2 * _COUNT_BYTES:
        raise StoreError(f"{path} has {len(header)} bytes, less than its header; restore it")
    rows, features = (int(n) for n in np.frombuffer(header, "<u4"))
    return open_flat(path, (rows, features), dtype, len(header))


def open_raw(path: str, dtype: str | None, features: int | None) -> FlatSource:
    """Items and nothing else: what they are has to be said."""
    if dtype is None or features is None:
        raise InputError(
            f"{path} is read as raw items, which do not say what they are; "
            "give --features NUMBER and --raw-dtype (or --dtype)"
        )
    item = np.dtype(dtype)
    size, row_bytes = source_file(path).bytes, item.itemsize * features
    if features < 1 or size % row_bytes:
        raise StoreError(
            f"{path} has {size} bytes, which is no whole number of rows of {features} x {item} "
            f"({row_bytes} bytes): row {size // max(1, row_bytes)} is cut, or the shape is another"
        )
    return open_flat(path, (size // row_bytes, features), item, 0)


@dataclass(frozen=True)
class VecsSource(Source):
    """Each row: int32 features, then the items."""

    def read(self, start: int, stop: int) -> NDArray[Any]:
        record = _record(self.dtype, self.n_features)
        with open(self.files[0].path, "rb") as file:  # noqa: PTH123
            file.seek(start * record.itemsize)
            rows = np.fromfile(file, record, stop - start)
        if len(rows) < stop - start:
            raise StoreError(
                f"{self.what} ends before row {start + len(rows)}, and was longer when it was "
                "opened; do not write to it meanwhile"
            )
        wrong = np.flatnonzero(rows["features"] != self.n_features)
        if len(wrong):
            row = start + int(wrong[0])
            raise StoreError(
                f"row {row} of {self.what} says it has {rows['features'][wrong[0]]} features, "
                f"and row 0 has {self.n_features}; the file is damaged or ragged: restore it"
            )
        return rows["items"].astype(native(self.dtype))


def open_vecs(path: str) -> VecsSource:
    dtype = _dtype_for(path, VECS_DTYPES)
    file = source_file(path)
    with open(path, "rb") as content:  # noqa: PTH123
        first = content.read(_COUNT_BYTES)
    features = int(np.frombuffer(first, "<i4")[0]) if len(first) == _COUNT_BYTES else 0
    row_bytes = _COUNT_BYTES + max(0, features) * dtype.itemsize
    if features < 1 or file.bytes % row_bytes:
        raise StoreError(
            f"row 0 of {path} says it has {features} features; {file.bytes} bytes are no whole "
            f"number of such rows (row {file.bytes // row_bytes} is cut): restore it"
        )
    return VecsSource((file,), (file.bytes // row_bytes, features), dtype)


def _record(dtype: np.dtype[Any], features: int) -> np.dtype[Any]:
    return np.dtype([("features", "<i4"), ("items", dtype, (features,))])


def _dtype_for(path: str, dtypes: dict[str, str]) -> np.dtype[Any]:
    suffix = Path(path).suffix.lower()
    if suffix not in dtypes:
        raise InputError(
            f"the name of {path} does not say what its items are; it must end with one of "
            f"{', '.join(dtypes)}"
        )
    return np.dtype(dtypes[suffix])
