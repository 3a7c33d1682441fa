"""Members of .npz archives. A stored member is a .npy file inside the archive; a deflated one can
be read from its beginning only."""

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
    """Read in place. The archive's checksum covers the whole member, so it is checked last."""

    data: tuple[int, int] = (0, 0)  # begin and end of the member in the file
    crc: int = 0

    def column(self, name: str) -> base.Source:
        return open_npz(self.files[0].path, name)

    def verify(self) -> None:
        crc, left = 0, self.data[1] - self.data[0]
        with open(self.files[0].path, "rb") as file:  # noqa: PTH123
            file.seek(self.data[0])
            while left:
                piece = file.read(min(left, _PIECE))
                if not piece:
                    raise StoreError(f"{self.what} was cut while it was read; restore it")
                crc = zlib.crc32(piece, crc)
                left -= len(piece)
        if crc != self.crc:
            raise StoreError(
                f"{self.what} fails its checksum (rows 0 to {self.n_rows - 1}, somewhere); "
                "restore the file"
            )


@dataclass(frozen=True)
class DeflatedMember(base.Source):
    """Inflated from its beginning for each reader, piece by piece."""

    member: str

    @property
    def what(self) -> str:
        return f"{self.files[0].path}[{self.member}]"

    @property
    def unit_rows(self) -> int:
        return self.n_rows

    @property
    def streams(self) -> bool:
        return True

    def notes(self) -> list[str]:
        return [
            "it is deflated: one worker reads it from its beginning, the others wait; "
            "np.savez (not savez_compressed) writes archives that all can read"
        ]

    def column(self, name: str) -> base.Source:
        return open_npz(self.files[0].path, name)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        if stop <= start:
            return np.empty((0, *self.shape[1:]), base.native(self.dtype))
        return next(self.batches(start, stop, stop - start))

    def batches(self, start: int, stop: int, rows: int) -> Iterator[NDArray[Any]]:
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
                # the read that reaches the end compares the checksum, before its rows go out
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
                f"{path} holds no array {name!r} (it holds {listed}); name one of them"
            )
        return name
    tables = [key for key, header in headers.items() if len(header.shape) == 2]
    if len(tables) != 1:
        listed = ", ".join(sorted(infos)) or "nothing"
        raise InputError(
            f"{path} holds {len(tables)} tables (of {listed}); say which with --dataset NAME"
        )
    return tables[0]


def _open_member(file: SourceFile, info: zipfile.ZipInfo, header: NpyHeader) -> base.Source:
    shape, fortran, dtype, header_bytes = header
    what = f"{file.path}[{info.filename}]"
    # both sizes are claims: of the archive about the member, of the member about itself
    check_size(SourceFile(what, info.file_size), header)
    if info.compress_type == zipfile.ZIP_STORED:
        begin = _data_offset(file.path, info)
        end = begin + info.file_size
        if end > file.bytes:
            raise StoreError(
                f"{what} claims {shape[0]} rows up to byte {end}, and the file has {file.bytes}; "
                "restore it"
            )
        offset = begin + header_bytes
        return StoredMember((file,), shape, dtype, offset, fortran, what, (begin, end), info.CRC)
    if fortran and len(shape) == 2:
        raise InputError(
            f"{what} is deflated and in Fortran order: its rows are spread over all of it; "
            "save it with np.savez, or in C order"
        )
    return DeflatedMember((file,), shape, dtype, info.filename)


def _data_offset(path: str, info: zipfile.ZipInfo) -> int:
    """Return where a stored member begins: after its local header, whose lengths may differ from
    those in the directory."""
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
