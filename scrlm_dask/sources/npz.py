"""Members of .npz archives.

An uncompressed member is a .npy file inside the archive, which can be read at any position. A
compressed member can only be read from its beginning.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources import base
from scrlm_dask.sources.vector_files import FlatSource, check_size
from scrlm_dask.storage.manifest import SourceFile
from scrlm_dask.storage.npy_files import NpyHeader, read_header

_PIECE = 2**24


@dataclass(frozen=True)
class StoredMember(FlatSource):
    """An uncompressed member, which is read in place.

    The archive's checksum covers the whole member, so only `verify` checks it.
    """

    data: tuple[int, int] = (0, 0)  # offsets of begin and end of the member in the archive
    crc: int = 0

    def column(self, name: str) -> base.Source:
        """Open another member of the same archive."""
        return open_npz(self.files[0].path, name)

    def verify(self) -> None:
        """Compare the member with its CRC-32 in the archive."""
        crc, left = 0, self.data[1] - self.data[0]
        with open(self.files[0].path, "rb") as file:  # noqa: PTH123
            file.seek(self.data[0])
            while left:
                piece = file.read(min(left, _PIECE))
                if not piece:
                    raise StoreError(f"{self.what} was truncated while it was read; restore it")
                crc = zlib.crc32(piece, crc)
                left -= len(piece)
        if crc != self.crc:
            raise StoreError(
                f"{self.what} does not match its checksum (somewhere in rows 0 to "
                f"{self.n_rows - 1}); restore the file"
            )


@dataclass(frozen=True)
class DeflatedMember(base.Source):
    """A compressed member; every reader decompresses it from its beginning."""

    member: str

    @property
    def what(self) -> str:
        """Path of the archive and name of the member."""
        return f"{self.files[0].path}[{self.member}]"

    @property
    def unit_rows(self) -> int:
        """Number of all rows, because the member is decompressed as a whole."""
        return self.n_rows

    @property
    def streams(self) -> bool:
        """Always true: `batches` decompresses the member once."""
        return True

    def notes(self) -> list[str]:
        """Report that the archive is compressed, so that only one worker can read it."""
        return [
            "the archive is compressed, so one worker reads it sequentially while the others wait; "
            "use np.savez instead of np.savez_compressed to allow parallel reads"
        ]

    def column(self, name: str) -> base.Source:
        """Open another member of the same archive."""
        return open_npz(self.files[0].path, name)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows start..stop-1; all rows before them are also decompressed."""
        if stop <= start:
            return np.empty((0, *self.shape[1:]), base.native(self.dtype))
        return next(self.batches(start, stop, stop - start))

    def batches(self, start: int, stop: int, rows: int) -> Iterator[NDArray[Any]]:
        """Yield rows start..stop-1, `rows` at a time, in one pass over the member."""
        path = self.files[0].path
        row_bytes = base.table_bytes(self.shape[1:], self.dtype)
        with (
            base.reading(f"{self.what} (rows {start} to {stop - 1})"),
            zipfile.ZipFile(path) as archive,
            archive.open(self.member) as file,
        ):
            read_header(file, self.what)
            file.seek(start * row_bytes, os.SEEK_CUR)
            for first in range(start, stop, rows):
                values = np.empty((min(rows, stop - first), *self.shape[1:]), self.dtype)
                # zipfile checks the CRC when a read reaches the end, before these rows are yielded
                _fill(file, values, f"it ends before row {first + len(values)}")
                yield values.astype(base.native(self.dtype), copy=False)


def open_npz(path: str, name: str | None = None) -> base.Source:
    """Open the member called `name`, or the only table in the archive."""
    file = base.source_file(path)
    with base.reading(path), zipfile.ZipFile(path) as archive:
        infos = {
            info.filename.removesuffix(".npy"): info
            for info in archive.infolist()
            if info.filename.endswith(".npy")
        }
        headers = {}
        for key, info in infos.items():
            if name in (None, key):
                with archive.open(info) as member:
                    headers[key] = read_header(member, f"{path}[{key}]")
        chosen = _choose(path, name, headers, infos)
        return _open_member(file, infos[chosen], headers[chosen])


def _choose(
    path: str, name: str | None, headers: dict[str, NpyHeader], infos: dict[str, Any]
) -> str:
    if name is not None:
        if name not in headers:
            listed = base.choices(name, sorted(infos))
            raise InputError(
                f"{path} contains no array {name!r} (it contains {listed}); give one of these"
            )
        return name
    tables = [key for key, header in headers.items() if len(header.shape) == 2]
    return base.only_table(path, tables, list(infos))


def _open_member(file: SourceFile, info: zipfile.ZipInfo, header: NpyHeader) -> base.Source:
    shape, fortran, dtype, header_bytes = header
    what = f"{file.path}[{info.filename}]"
    # compare the member's size in the archive's directory with the member's own header
    check_size(SourceFile(what, info.file_size), header)
    if info.compress_type == zipfile.ZIP_STORED:
        begin = _data_offset(file.path, info)
        end = begin + info.file_size
        if end > file.bytes:
            raise StoreError(
                f"{what} is truncated: {shape[0]} rows require {end} bytes, but the file has "
                f"{file.bytes}; restore it"
            )
        offset = begin + header_bytes
        return StoredMember((file,), shape, dtype, offset, fortran, what, (begin, end), info.CRC)
    if fortran and len(shape) == 2:
        raise InputError(
            f"{what} is compressed and in Fortran order, so its rows cannot be read sequentially; "
            "save it with np.savez, or in C order"
        )
    return DeflatedMember((file,), shape, dtype, info.filename)


def _data_offset(path: str, info: zipfile.ZipInfo) -> int:
    """Return the offset of an uncompressed member's data.

    The data follow the member's local header. Its name and its extra field may have other lengths
    there than in the archive's directory.
    """
    with open(path, "rb") as file:  # noqa: PTH123
        file.seek(info.header_offset + 26)
        lengths = np.frombuffer(file.read(4), "<u2")
    return info.header_offset + 30 + int(lengths.sum())


def _fill(file: IO[bytes], values: NDArray[Any], message: str) -> None:
    view = base.memory_of(values)
    done = 0
    while done < len(view):
        piece = file.read(min(len(view) - done, _PIECE))
        if not piece:
            raise EOFError(message)
        view[done : done + len(piece)] = piece
        done += len(piece)
