"""Items one after the other from some byte on: what .npy, stored .npz, .fbin and raw files are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import StoreError
from scrlm_dask.sources.base import Source, memory_of, native, source_file, table_bytes
from scrlm_dask.storage.manifest import SourceFile


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
