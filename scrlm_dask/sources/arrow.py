"""Arrow: conversion of columns to arrays, and files in Arrow's stream format.

Nulls and list lengths are checked before conversion, because pyarrow raises no errors: `values` of
a list column ignores slicing, `flatten` drops null rows and so shifts all later rows, and lists of
different lengths are flattened silently.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.optional import import_optional
from scrlm_dask.sources import base
from scrlm_dask.sources.sharded import concatenate, regroup
from scrlm_dask.text import quoted

_DROP_OR_KEEP = "use --nan drop to drop such rows, or --nan keep to store nulls as NaN"


@dataclass(frozen=True)
class Picked:
    """The columns of a schema that contain the features, and their common dtype."""

    columns: tuple[str, ...]
    as_list: bool  # True: one column of lists; False: one column per feature
    dtype: np.dtype[Any]
    nulls_as_nan: bool = False  # True: nulls are read as NaN; False: nulls are rejected


def pick_columns(
    schema: Any,
    asked: Sequence[str],
    apart: Sequence[str],
    what: str,
    nulls_as_nan: bool = False,
) -> Picked:
    """Select the columns that contain the features: the columns `asked`, if given.

    Otherwise columns in `apart` are ignored. Of the remaining columns, select the only column of
    lists of numbers. If there is no such column, select all of them; they must be numeric. With
    `nulls_as_nan`, integers are read as floats.
    """
    known = {field.name: field.type for field in schema}
    for name in (*asked, *apart):
        base.check_column(name, list(known), what)
    columns = list(asked) or _feature_columns(known, apart, what)
    item = item_type(known[columns[0]])
    if len(columns) == 1 and item is not None:
        dtype = _widen(np.dtype(item.to_pandas_dtype()), nulls_as_nan)
        return Picked(tuple(columns), True, dtype, nulls_as_nan)
    for name in columns:
        if not _is_number(known[name]):
            raise InputError(
                f"column {name!r} of {what} contains {known[name]}; features must be numbers or "
                "lists of numbers"
            )
    dtypes = [np.dtype(known[name].to_pandas_dtype()) for name in columns]
    dtype = _widen(np.result_type(*dtypes), nulls_as_nan)
    return Picked(tuple(columns), False, dtype, nulls_as_nan)


def _widen(dtype: np.dtype[Any], nulls_as_nan: bool) -> np.dtype[Any]:
    """Return a dtype of floats if the dtype is one of integers and nulls are read as NaN."""
    return np.result_type(dtype, np.float32) if nulls_as_nan and dtype.kind in "iu" else dtype


def _feature_columns(known: dict[str, Any], apart: Sequence[str], what: str) -> list[str]:
    left = {name: kind for name, kind in known.items() if name not in apart}
    lists = [name for name, kind in left.items() if item_type(kind) is not None]
    if len(lists) == 1:
        return lists
    if lists:
        raise InputError(
            f"{what} has several columns of lists ({', '.join(lists)}); use --column NAME to "
            "select one"
        )
    numbers = [name for name, kind in left.items() if _is_number(kind)]
    if not numbers:
        raise InputError(
            f"{what} has no column of numbers or of lists of numbers (it has {', '.join(known)})"
        )
    base.reject_non_numeric(what, {name: str(left[name]) for name in left if name not in numbers})
    return numbers


def item_type(kind: Any) -> Any | None:
    """Return the type of the numbers in a list column; None for other columns."""
    pa = import_optional("pyarrow", "Arrow")
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return kind.value_type if _is_number(kind.value_type) else None
    return None


def lists_to_rows(
    array: Any, width: int | None, first: int, what: str, nulls_as_nan: bool = False
) -> NDArray[Any]:
    """Convert a list array to shape (rows, width).

    `width` is the expected length of each list; None: the length of the first list that is not
    null. In messages, rows are numbered from `first` on. With `nulls_as_nan`, null items become
    NaN, and null lists become rows of NaN; otherwise both are rejected.
    """
    pa = import_optional("pyarrow", "Arrow")
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if not nulls_as_nan:
        _check_no_null_rows(array, first, what, _DROP_OR_KEEP)
    valid = np.flatnonzero(array.is_valid().to_numpy(zero_copy_only=False))
    n_rows, array = len(array), array.drop_null() if array.null_count else array
    lengths = import_optional("pyarrow.compute", "Arrow").list_value_length(array)
    lengths = lengths.to_numpy(zero_copy_only=False)
    width = int(lengths[0]) if width is None and len(lengths) else width or 0
    wrong = np.flatnonzero(lengths != width)
    if len(wrong):
        raise StoreError(
            f"row {first + int(valid[wrong[0]])} of {what} has {lengths[wrong[0]]} items, expected "
            f"{width}; all rows must have the same length"
        )
    values = array.flatten()
    if values.null_count and not nulls_as_nan:
        row = first + _find_null(values) // max(1, width)
        raise StoreError(f"row {row} of {what} contains a null; {_DROP_OR_KEEP}")
    rows = np.asarray(values.to_numpy(zero_copy_only=False)).reshape(len(array), width)
    if len(rows) == n_rows:
        return rows
    filled = np.full((n_rows, width), np.nan, _widen(rows.dtype, nulls_as_nan))
    filled[valid] = rows
    return filled


def scalars_to_values(array: Any) -> NDArray[Any]:
    """Convert a column of numbers or strings to shape (rows,); null numbers become NaN."""
    types = import_optional("pyarrow", "Arrow").types
    if types.is_string(array.type) or types.is_large_string(array.type):
        return np.array(array.to_pylist(), dtype=base.TEXT)
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _decode(array: Any) -> Any:
    """Return a dictionary array as an array of its values, and other arrays unchanged.

    The null count of a dictionary array omits the rows whose value in the dictionary is null.
    """
    types = import_optional("pyarrow", "Arrow").types
    return array.dictionary_decode() if types.is_dictionary(array.type) else array


def find_width(column: Any, picked: Picked, first: int, what: str) -> int:
    """Return the length of the first list of a column; 0 if all lists are null and may be null."""
    lists = column.drop_null() if picked.nulls_as_nan else column
    return int(lists_to_rows(lists.slice(0, 1), None, first, what, picked.nulls_as_nan).shape[1])


def check_width(width: int, n_rows: int, name: str, path: str) -> None:
    """Raise if a column has rows but no width, because all its lists are null or empty."""
    if n_rows and not width:
        raise StoreError(
            f"none of the {n_rows} row(s) of column {name!r} of {path} contains numbers, so the "
            "number of features is unknown; exclude this file from the sources, or write it again"
        )


def _check_no_null_rows(array: Any, first: int, what: str, advice: str) -> None:
    if array.null_count:
        raise StoreError(f"row {first + _find_null(array)} of {what} is null; {advice}")


def _find_null(array: Any) -> int:
    return int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])


def pick_value(schema: Any, name: str, what: str) -> Picked:
    """Select the column of labels or ids called `name`."""
    base.check_column(name, schema.names, what)
    types, kind = import_optional("pyarrow", "Arrow").types, schema.field(name).type
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_string(kind) or types.is_large_string(kind):
        return Picked((name,), False, base.TEXT)
    if not _is_number(kind):
        raise InputError(
            f"column {name!r} of {what} contains {kind}; labels and ids must be integers or strings"
        )
    return Picked((name,), False, np.dtype(kind.to_pandas_dtype()))


@dataclass(frozen=True)
class ArrowSource(base.Source):
    """Rows that are read as record batches: features, or one column of labels or ids."""

    picked: Picked

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that are read."""
        return self.picked.columns

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows start..stop-1."""
        empty = np.empty((0, *self.shape[1:]), base.native(self.dtype))
        return np.concatenate([empty, *self._pieces(start, stop)])

    def batches(self, start: int, stop: int, rows: int) -> Iterator[NDArray[Any]]:
        """Yield rows start..stop-1, `rows` at a time; each record batch is decoded once."""
        yield from regroup(self._pieces(start, stop), rows, np.concatenate)

    @abstractmethod
    def _pieces(self, start: int, stop: int) -> Iterator[NDArray[Any]]:
        """Yield rows start..stop-1 in pieces of any size."""

    def _slice_batches(
        self, batches: Iterator[Any], first: int, start: int, stop: int
    ) -> Iterator[NDArray[Any]]:
        """Yield rows start..stop-1 of record batches, the first of which starts at row `first`."""
        for batch in batches:
            low, high = max(start, first), min(stop, first + batch.num_rows)
            if low < high:
                rows = self._rows(batch.slice(low - first, high - low), low)
                yield rows.astype(base.native(self.dtype), copy=False)
            first += batch.num_rows
            if first >= stop:
                return
        raise StoreError(
            f"{self.what} is truncated: it ends at row {first}, before row {stop - 1}; restore it"
        )

    def _rows(self, batch: Any, first: int) -> NDArray[Any]:
        """Convert a record batch to an array; its first row has the number `first`."""
        whats = [f"column {name!r} of {self.what}" for name in self.columns]
        columns = [_decode(batch.column(name)) for name in self.columns]
        nulls_as_nan = self.picked.nulls_as_nan
        if self.picked.as_list:
            return lists_to_rows(columns[0], self.n_features, first, whats[0], nulls_as_nan)
        if len(self.shape) == 1:
            _check_no_null_rows(columns[0], first, whats[0], "fill it or drop the row")
            return scalars_to_values(columns[0])
        rows = np.empty((batch.num_rows, len(columns)), self.dtype)
        for number, (column, what) in enumerate(zip(columns, whats, strict=True)):
            if not nulls_as_nan:
                _check_no_null_rows(column, first, what, _DROP_OR_KEEP)
            rows[:, number] = scalars_to_values(column)
        return rows


@dataclass(frozen=True)
class ArrowStream(ArrowSource):
    """A file in Arrow's stream format.

    Arrow has no checksums, so a flipped byte in the values is not detected.
    """

    def column(self, name: str) -> base.Source:
        """Open another column of the same file."""
        with base.reading(self.what):
            schema = _schema(self.what)
        picked = pick_value(schema, name, self.what)
        return replace(self, shape=(self.n_rows,), dtype=picked.dtype, picked=picked)

    def _pieces(self, start: int, stop: int) -> Iterator[NDArray[Any]]:
        with base.reading(f"{self.what} (rows {start} to {stop - 1})"):
            batches = _batches(self.what, self.columns)
            yield from self._slice_batches(batches, 0, start, stop)


def open_arrow(
    path: str,
    asked: Sequence[str] = (),
    apart: Sequence[str] = (),
    nulls_as_nan: bool = False,
) -> ArrowStream:
    """Open the features of an Arrow stream file; columns are selected by `pick_columns`."""
    file = base.source_file(path)
    with base.reading(path):
        picked = pick_columns(_schema(path), asked, apart, path, nulls_as_nan)
        n_rows, width = _count(path, picked, file.bytes)
    return ArrowStream((file,), (n_rows, width), picked.dtype, picked)


def _schema(path: str) -> Any:
    pa = import_optional("pyarrow", f"the Arrow file {path}")
    with pa.memory_map(path) as file:
        return pa.ipc.open_stream(file).schema


def _batches(path: str, columns: Sequence[str]) -> Iterator[Any]:
    """Yield record batches of a memory-mapped file; values are read from disk only when used.

    Lengths and offsets are validated, because Arrow aborts the process or reads past the end of
    the file if they are wrong.
    """
    pa = import_optional("pyarrow", f"the Arrow file {path}")
    with pa.memory_map(path) as file:
        for batch in pa.ipc.open_stream(file):
            picked = batch.select(list(columns))
            picked.validate(full=True)
            yield picked


def _count(path: str, picked: Picked, n_bytes: int) -> tuple[int, int]:
    """Return the number of rows and the number of features.

    The headers of all batches are read, so that a truncated file is detected here. A killed writer
    leaves a stream without an end marker. Arrow accepts such a stream, so the marker is checked.
    """
    n_rows, width = 0, 0 if picked.as_list else len(picked.columns)
    for batch in _batches(path, picked.columns):
        if picked.as_list and width == 0 and batch.num_rows:
            width = find_width(batch.column(picked.columns[0]), picked, n_rows, path)
        n_rows += batch.num_rows
    if picked.as_list and picked.nulls_as_nan:
        check_width(width, n_rows, picked.columns[0], path)
    with open(path, "rb") as file:  # noqa: PTH123
        file.seek(max(0, n_bytes - 8))
        end = file.read()
    if end[-4:] != b"\0\0\0\0":
        raise StoreError(
            f"{path} is truncated: there is no end marker after row {n_rows}; restore it"
        )
    return n_rows, width


def _is_number(kind: Any) -> bool:
    types = import_optional("pyarrow", "Arrow").types
    return bool(types.is_floating(kind) or types.is_integer(kind))


STATE, SPLITS = "state.json", "dataset_dict.json"


def looks_like_dataset(folder: str) -> bool:
    """Return whether a folder was written by `save_to_disk` of Hugging Face datasets."""
    return any((Path(folder) / name).is_file() for name in (STATE, SPLITS))


def open_dataset(
    folder: str, asked: Sequence[str], apart: Sequence[str], nulls_as_nan: bool = False
) -> base.Source:
    """Open a folder that was written by `save_to_disk` of Hugging Face datasets."""
    if (Path(folder) / SPLITS).is_file():
        splits = _texts(_read_json(Path(folder) / SPLITS).get("splits", []), folder, SPLITS)
        raise InputError(
            f"{folder} contains several splits ({', '.join(splits)}); give one of them, such as "
            f"{Path(folder) / splits[0] if splits else folder}"
        )
    state = _read_json(Path(folder) / STATE)
    if state.get("_indices_data_files"):
        raise InputError(
            f"{folder} contains a selection of rows (_indices_data_files), which is not supported; "
            "save it again after flatten_indices()"
        )
    files = state.get("_data_files") or []
    entries = files if isinstance(files, list) else [files]
    listed = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries]
    names = _texts(listed, folder, STATE)
    if not names:
        raise StoreError(f"{folder}/{STATE} lists no data files; save the dataset again")
    for name in names:
        if Path(name).name != name:
            raise StoreError(f"{folder}/{STATE} lists {name}, which is not a file of this folder")
    paths = [str(Path(folder) / name) for name in names]
    for path in paths:
        if not Path(path).is_file():
            raise StoreError(f"{path}, listed in {STATE}, does not exist; restore it")
    # dataset_info.json is ignored: it describes the split as it was loaded, not as it was saved
    return concatenate([open_arrow(path, asked, apart, nulls_as_nan) for path in paths])


def _texts(values: Any, folder: str, file: str) -> list[str]:
    """Return the names in a file; raise if they are not a list of texts."""
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise StoreError(
            f"{folder}/{file} must list names, got {quoted(values)}; save the dataset again"
        )
    return values


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{path} cannot be read ({error}); save the dataset again") from error
    if not isinstance(content, dict):
        raise StoreError(f"{path} must contain a JSON object; save the dataset again")
    return content
