"""Columns of Parquet files; each row group is decoded once, in small pieces."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import StoreError
from scrlm_dask.optional import import_optional
from scrlm_dask.sources import arrow
from scrlm_dask.sources.base import Source, reading, source_file

MAGIC = b"PAR1"
_FEW_ROWS = 16  # rows that are decoded at a time to find the first list
_PIECE_BYTES = 8 * 2**20  # size of the pieces of a row group that are decoded at a time


@dataclass(frozen=True)
class ParquetSource(arrow.ArrowSource):
    """Columns of a Parquet file.

    Page checksums are verified if the file has them (`write_page_checksum=True`). Without them, a
    flipped byte is detected only if decompression or decoding fails. The numbers of rows and values
    in the metadata must agree with each other and with the decoded rows. If all of them are too
    small by the same rows, the other rows are ignored, because pyarrow does not decode them.
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
        if groups and start < stop:
            first = int((ends - sizes)[groups[0]])
            yield from self._slice_batches(self._batches(groups, first), first, start, stop)
            for group in groups:
                if ends[group] <= stop:
                    self._check_values_read(group)

    def _batches(self, groups: list[int], first: int) -> Iterator[Any]:
        with reading(f"{self.what} (row group {groups[0]}, from row {first} on)"):
            yield from _open(self.what).iter_batches(
                batch_size=self._piece_rows,
                row_groups=groups,
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
    file = source_file(path)
    with reading(path):
        parquet = _open(path)
        picked = arrow.pick_value(parquet.schema_arrow, name, path)
        rows = _group_rows(parquet, path)
        values = _group_values(parquet, picked, rows, path)
    return ParquetSource((file,), (sum(rows),), picked.dtype, picked, rows, values)


def count_rows(path: str) -> int:
    """Return the number of rows in the metadata of a Parquet file."""
    with reading(path):
        return sum(_group_rows(_open(path), path))


def _group_rows(parquet: Any, path: str) -> tuple[int, ...]:
    """Return the number of rows of each row group; their sum must be that of the file."""
    metadata = parquet.metadata
    rows = tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))
    fewest = min(rows, default=0)
    if fewest < 0:
        raise StoreError(
            f"the metadata of {path} is damaged: row group {rows.index(fewest)} has {fewest} rows; "
            "restore the file"
        )
    if sum(rows) != metadata.num_rows:
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
    _check_chunks(parquet.metadata, picked, path)
    leaves = _leaves(parquet, picked)
    kind = parquet.schema_arrow.field(picked.columns[0]).type
    fixed = import_optional("pyarrow", "Parquet").types.is_fixed_size_list(kind)
    length = (kind.list_size if fixed else None) if picked.as_list else 1
    # There may be millions of columns in row groups, so each is looked up once, with few calls.
    groups = [parquet.metadata.row_group(group) for group in range(len(group_rows))]
    values = [0] * len(groups)
    for leaf in leaves:
        offsets = set[int]()
        for group, n_rows in enumerate(group_rows):
            column = groups[group].column(leaf)
            n_values, at = column.num_values, column.data_page_offset
            possible = n_values == n_rows or _are_possible(n_rows, n_values, length)
            if not possible or at in offsets:
                raise StoreError(
                    f"the metadata of {path} is damaged: column {column.path_in_schema!r} of row "
                    f"group {group} has {n_values} values from byte {at} on, which is not possible "
                    f"for {n_rows} rows; restore the file"
                )
            if n_rows:  # an empty row group has no pages, and may have the offset of the next
                offsets.add(at)
            values[group] = max(values[group], n_values)
    return tuple(values)


class _UnreadFile(io.RawIOBase):
    """A file of a given size whose content must not be read."""

    def __init__(self, n_bytes: int) -> None:
        self._n_bytes, self._at = n_bytes, 0

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._n_bytes}[whence]
        self._at = begin + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        raise _ChunksAreValidError


class _ChunksAreValidError(Exception):
    """Raised instead of a read of the first rows, which follows the check of all chunks."""


def _check_chunks(metadata: Any, picked: arrow.Picked, path: str) -> None:
    """Raise if the metadata of a column in a row group are invalid; read no rows.

    If they are, `RowGroupMetaData.column` of pyarrow would end the process. With `pre_buffer`,
    pyarrow checks all columns before it reads the first rows.
    """
    what = f"the Parquet file {path}"
    pa, pq = import_optional("pyarrow", what), import_optional("pyarrow.parquet", what)
    unread = pa.PythonFile(_UnreadFile(source_file(path).bytes), mode="r")
    groups = list(range(metadata.num_row_groups))
    with suppress(_ChunksAreValidError):
        batches = pq.ParquetFile(unread, metadata=metadata, pre_buffer=True).iter_batches(
            row_groups=groups, columns=list(picked.columns), use_threads=False
        )
        next(batches, None)


def _leaves(parquet: Any, picked: arrow.Picked) -> list[int]:
    """Return the numbers of the stored columns; a column of lists is stored with a longer path."""
    names, prefix = set(picked.columns), f"{picked.columns[0]}."
    # Other columns may have names that start with the same prefix.
    others = tuple(f"{n}." for n in parquet.schema_arrow.names if n.startswith(prefix))
    return [
        number
        for number, leaf in enumerate(parquet.schema)
        if leaf.path in names
        or (
            picked.as_list
            and leaf.path.startswith(prefix)
            and not f"{leaf.path}.".startswith(others)
        )
    ]


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
    arrow.check_width(0, first, name, path)
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
