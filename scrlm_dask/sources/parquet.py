"""Columns of Parquet files; each row group is decoded once, in small pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from os import SEEK_END
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import StoreError
from scrlm_dask.optional import import_optional
from scrlm_dask.sources import arrow
from scrlm_dask.sources.base import Source, reading, source_file

MAGIC = b"PAR1"
_FEW_ROWS = 16  # rows that are decoded at a time to find the first list
_PIECE_BYTES = 8 * 2**20  # size of the pieces of a row group that are decoded at a time
_HEADER_BYTES = 512  # of a page header that are read first; long statistics need more
_MOST_HEADER_BYTES = 2**24  # pyarrow has the same limit
_MOST_VARINT_BITS = 70
_DATA_PAGE, _DATA_PAGE_V2 = 0, 3
# Numbers of fields of PageHeader in parquet.thrift.
_TYPE, _COMPRESSED_SIZE, _HEADER, _HEADER_V2 = 1, 3, 5, 8
_NUM_VALUES = 1  # of both kinds of data page headers


@dataclass(frozen=True)
class ParquetSource(arrow.ArrowSource):
    """Columns of a Parquet file.

    Page checksums are verified if the file has them (`write_page_checksum=True`). Without them, a
    flipped byte is detected only if decompression or decoding fails. The numbers of rows and values
    in the metadata must agree with each other and with the decoded rows.
    """

    group_rows: tuple[int, ...]  # number of rows of each row group
    group_values: tuple[int, ...]  # largest number of values of a column in each row group

    @property
    def unit_rows(self) -> int:
        """Number of rows of the largest row group."""
        return max(self.group_rows, default=1)

    @property
    def streams(self) -> bool:
        """Always true: `batches` decodes each row group once."""
        return True

    def column(self, name: str) -> Source:
        """Open another column of the same file."""
        return open_parquet_column(self.files[0].path, name)

    def _pieces(self, start: int, stop: int) -> Iterator[NDArray[Any]]:
        sizes = np.array(self.group_rows, np.int64)
        ends = np.cumsum(sizes)
        groups = np.flatnonzero((ends > start) & (ends - sizes < stop) & (sizes > 0)).tolist()
        if not groups or start >= stop:
            return
        with reading(self.what):
            parquet = _open(self.what)
            leaves = _leaves(parquet, self.picked)
        for group in groups:
            end = int(ends[group])
            first = end - int(sizes[group])
            with reading(f"{self.what} (row group {group}, from row {first} on)"):
                _check_pages(parquet, group, leaves, self.what)
            batches = self._batches(parquet, group, first)
            yield from self._slice_batches(batches, first, max(start, first), min(stop, end))
            if stop >= end:
                self._check_values_read(group)

    def _batches(self, parquet: Any, group: int, first: int) -> Iterator[Any]:
        with reading(f"{self.what} (row group {group}, from row {first} on)"):
            yield from parquet.iter_batches(
                batch_size=self._piece_rows,
                row_groups=[group],
                columns=list(self.picked.columns),
                use_threads=False,
            )

    def _check_values_read(self, group: int) -> None:
        """Raise if a row group of lists has values that belong to none of its rows."""
        n_rows, n_values = self.group_rows[group], self.group_values[group]
        if self.picked.as_list and n_values > n_rows * max(1, self.n_features):
            raise StoreError(
                f"row group {group} of {self.what} has {n_values} values, but {n_rows} rows of "
                f"{self.n_features} items: the file is damaged, or lists have different lengths"
            )

    @property
    def _piece_rows(self) -> int:
        row_bytes = self.dtype.itemsize * prod(self.shape[1:])
        return max(1, _PIECE_BYTES // row_bytes)


def open_parquet(
    path: str,
    asked: Sequence[str] = (),
    apart: Sequence[str] = (),
    nulls_as_nan: bool = False,
) -> ParquetSource:
    """Open the features of a Parquet file; columns are selected by `arrow.pick_columns`."""
    file = source_file(path)
    with reading(path):
        parquet = _open(path)
        picked = arrow.pick_columns(parquet.schema_arrow, asked, apart, path, nulls_as_nan)
        rows = _group_rows(parquet, path)
        values = _group_values(parquet, picked, rows, path)
        width = _width(parquet, picked, path) if picked.as_list else len(picked.columns)
    return ParquetSource((file,), (sum(rows), width), picked.dtype, picked, rows, values)


def open_parquet_column(path: str, name: str) -> ParquetSource:
    """Open a column with one value per row: labels or ids."""
    with reading(path):
        parquet = _open(path)
        picked = arrow.pick_value(parquet.schema_arrow, name, path)
        rows = _group_rows(parquet, path)
        values = _group_values(parquet, picked, rows, path)
    return ParquetSource((source_file(path),), (sum(rows),), picked.dtype, picked, rows, values)


def count_rows(path: str) -> int:
    """Return the number of rows in the metadata of a Parquet file."""
    with reading(path):
        return sum(_group_rows(_open(path), path))


def _group_rows(parquet: Any, path: str) -> tuple[int, ...]:
    """Return the number of rows of each row group; their sum must be that of the file."""
    metadata = parquet.metadata
    rows = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    if sum(rows) != metadata.num_rows or min(rows, default=0) < 0:
        raise StoreError(
            f"the metadata of {path} is damaged: the file has {metadata.num_rows} rows, but its "
            f"{len(rows)} row groups have {sum(rows)}; restore the file"
        )
    return rows


def _group_values(
    parquet: Any, picked: arrow.Picked, group_rows: tuple[int, ...], path: str
) -> tuple[int, ...]:
    """Return the largest number of values of a column in each row group.

    Values are counted without nesting: those of a list are its items, and a list that is null or
    empty is one value. Each number must be possible for the number of rows.
    """
    leaves = _leaves(parquet, picked)
    kind = parquet.schema_arrow.field(picked.columns[0]).type
    fixed = import_optional("pyarrow", "Parquet").types.is_fixed_size_list(kind)
    length = (kind.list_size if fixed else None) if picked.as_list else 1
    values, offsets = [], set[tuple[int, int]]()
    for group, n_rows in enumerate(group_rows):
        columns = [parquet.metadata.row_group(group).column(leaf) for leaf in leaves]
        for leaf, column in zip(leaves, columns, strict=True):
            at = leaf, column.data_page_offset
            if not _are_possible(n_rows, column.num_values, length) or (n_rows and at in offsets):
                raise StoreError(
                    f"the metadata of {path} is damaged: column {column.path_in_schema!r} of row "
                    f"group {group} has {column.num_values} values from byte {at[1]} on, which is "
                    f"not possible for {n_rows} rows; restore the file"
                )
            offsets.add(at)
        # Such row groups are rare: they are empty, or have less than one byte per value.
        if not n_rows or any(c.num_values > c.total_uncompressed_size for c in columns):
            _check_pages(parquet, group, leaves, path)
        values.append(max((column.num_values for column in columns), default=0))
    return tuple(values)


def _leaves(parquet: Any, picked: arrow.Picked) -> list[int]:
    """Return the numbers of the stored columns; a column of lists is stored with a longer path."""
    names, first = set(picked.columns), f"{picked.columns[0]}."
    return [
        number
        for number, leaf in enumerate(parquet.schema)
        if leaf.path in names or (picked.as_list and leaf.path.startswith(first))
    ]


def _check_pages(parquet: Any, group: int, leaves: Sequence[int], path: str) -> None:
    """Raise unless the pages of a row group have as many values as its metadata claims."""
    columns = parquet.metadata.row_group(group)
    with open(path, "rb") as file:  # noqa: PTH123 - the path must stay a str
        for column in (columns.column(leaf) for leaf in leaves):
            start = column.data_page_offset
            if column.has_dictionary_page and 0 < column.dictionary_page_offset < start:
                start = column.dictionary_page_offset
            n_values = count_values(file, start, column.total_compressed_size)
            if n_values != column.num_values:
                raise StoreError(
                    f"{path} is damaged: the metadata has {column.num_values} values for column "
                    f"{column.path_in_schema!r} of row group {group}, but the pages have "
                    f"{n_values}; restore the file"
                )


def _are_possible(n_rows: int, n_values: int, length: int | None) -> bool:
    """Return whether rows of `length` values (None: any number), or null, have `n_values`."""
    more = n_values - n_rows
    if n_rows == 0 or (length is not None and length <= 1):
        return more == 0
    if length is None or more < 0:
        return more >= 0
    return more % (length - 1) == 0 and more // (length - 1) <= n_rows


def _width(parquet: Any, picked: arrow.Picked, path: str) -> int:
    types = import_optional("pyarrow", "Parquet").types
    kind = parquet.schema_arrow.field(picked.columns[0]).type
    if types.is_fixed_size_list(kind):
        return int(kind.list_size)
    # the schema contains no length for lists of variable size, so use the length of the first list
    name, first = picked.columns[0], 0
    for batch in parquet.iter_batches(batch_size=_FEW_ROWS, columns=list(picked.columns)):
        width = arrow.find_width(batch.column(name), picked, first, f"column {name!r} of {path}")
        if width or not picked.nulls_as_nan:
            return width
        first += batch.num_rows
    return 0


def _open(path: str) -> Any:
    pq = import_optional("pyarrow.parquet", f"the Parquet file {path}")
    return pq.ParquetFile(
        path,
        page_checksum_verification=True,
        pre_buffer=False,
        # otherwise a whole column of a row group is loaded into memory before it is decoded
        buffer_size=2**20,
    )


def count_values(file: BinaryIO, start: int, size: int) -> int:
    """Return the number of values in the data pages within `size` bytes from `start` on.

    pyarrow reads as many rows as the metadata claims, and ignores other rows in the pages.
    """
    return sum(_page_values(file, start, min(start + size, file.seek(0, SEEK_END))))


def _page_values(file: BinaryIO, at: int, end: int) -> Iterator[int]:
    """Yield the number of values of each data page."""
    while at < end:
        header, n_bytes = _read_header(file, at, end)
        try:
            kind, size = header[_TYPE], header[_COMPRESSED_SIZE]
            if kind in (_DATA_PAGE, _DATA_PAGE_V2):
                yield header[_HEADER if kind == _DATA_PAGE else _HEADER_V2][_NUM_VALUES]
        except (KeyError, TypeError) as error:
            raise ValueError(f"there is no page header at byte {at}") from error
        at += n_bytes + max(0, size)


def _read_header(file: BinaryIO, at: int, end: int) -> tuple[dict[int, Any], int]:
    """Return the header of the page at a position, and the size of the header."""
    n_bytes = _HEADER_BYTES
    while True:
        file.seek(at)
        decoder = _Decoder(file.read(n_bytes))
        try:
            return decoder.read_fields(), decoder.at
        except IndexError:
            if at + n_bytes >= end or n_bytes >= _MOST_HEADER_BYTES:
                raise ValueError(f"the page header at byte {at} has no end") from None
            n_bytes *= 8


class _Decoder:
    """Decoder of Thrift's compact protocol; raises IndexError at the end of the data."""

    def __init__(self, data: bytes) -> None:
        self._data, self.at = data, 0

    def read_fields(self) -> dict[int, Any]:
        """Return the fields of a structure by their numbers."""
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._integer()
            fields[number] = self._value(head & 15)
        return fields

    def _value(self, kind: int) -> Any:
        if kind in (1, 2):  # true, false: no bytes
            return kind == 1
        if kind == 3:  # a byte
            return self._byte()
        if kind in (4, 5, 6):  # integers of 16, 32 and 64 bits
            return self._integer()
        if kind == 8:  # bytes
            return self._skip(self._varint())
        if kind == 12:
            return self.read_fields()
        # Headers of pages contain no other types.
        raise ValueError(f"unknown type {kind} in the header of a page")

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, _MOST_VARINT_BITS, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("a number in the header of a page has more than 64 bits")

    def _integer(self) -> int:
        number = self._varint()
        return (number >> 1) ^ -(number & 1)

    def _skip(self, n_bytes: int) -> None:
        self.at += n_bytes
        if self.at > len(self._data):
            raise IndexError(self.at)
