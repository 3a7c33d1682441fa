"""Columns of Parquet files; each row group is decoded once, in small pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    flipped byte is detected only if decompression or decoding fails.
    """

    group_rows: tuple[int, ...]  # number of rows of each row group

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

    def _batches(self, groups: list[int], first: int) -> Iterator[Any]:
        with reading(f"{self.what} (row group {groups[0]}, from row {first} on)"):
            yield from _open(self.what).iter_batches(
                batch_size=self._piece_rows,
                row_groups=groups,
                columns=list(self.picked.columns),
                use_threads=False,
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
        groups = _groups(parquet)
        width = _width(parquet, picked, path) if picked.as_list else len(picked.columns)
    return ParquetSource((file,), (sum(groups), width), picked.dtype, picked, groups)


def open_parquet_column(path: str, name: str) -> ParquetSource:
    """Open a column with one value per row: labels or ids."""
    with reading(path):
        parquet = _open(path)
        schema, groups = parquet.schema_arrow, _groups(parquet)
    picked = arrow.pick_value(schema, name, path)
    return ParquetSource((source_file(path),), (sum(groups),), picked.dtype, picked, groups)


def count_rows(path: str) -> int:
    """Return the number of rows in the metadata of a Parquet file."""
    with reading(path):
        return sum(_groups(_open(path)))


def _groups(parquet: Any) -> tuple[int, ...]:
    metadata = parquet.metadata
    return tuple(metadata.row_group(i).num_rows for i in range(metadata.num_row_groups))


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
