"""Texts of people: a text a line, CSV whose quoted fields may hold line breaks, and JSON lines.

One pass over the file finds where some records begin; reading streams from the nearest of them.
"""

from __future__ import annotations

import codecs
import csv
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.base import TEXT, Source, choices, source_file
from scrlm_dask.sources.text import STEP, LineIndex, is_int64, line_index

Form = Literal["lines", "csv", "tsv", "jsonl"]
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_LONGEST_FIELD = 2**26  # a quote that is never closed must not swallow a large file
_LOOKED_AT = 1000  # rows, to tell numbers from texts


@dataclass(frozen=True)
class RecordSource(Source):
    """One value of each record: a text, or, for ids and labels, an integer."""

    form: Form
    index: LineIndex
    names: tuple[str, ...] = ()  # of the fields of a CSV file
    name: str | None = None  # of the field that is read

    @property
    def columns(self) -> tuple[str, ...]:
        return () if self.name is None else (self.name,)

    @property
    def streams(self) -> bool:
        return True

    def locate(self, row: int) -> str:
        of = self.what if self.form == "lines" else f"column {self.name!r} of {self.what}"
        return f"row {row} of {of}" if self.form in _DELIMITERS else f"line {row + 1} of {of}"

    def column(self, name: str) -> Source:
        """Integers, if the first values are: labels and ids may be either."""
        if self.form == "lines":
            return super().column(name)
        other = _picked(self, name)
        first = list(other._values(0, min(self.n_rows, _LOOKED_AT)))
        told = next((value for value in first if str(value) != "-1"), "-1")
        return replace(other, dtype=np.dtype(np.int64)) if is_int64(str(told)) else other

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return self._array(self._values(start, stop), start)

    def batches(self, start: int, stop: int, rows: int) -> Iterator[NDArray[Any]]:
        values = self._values(start, stop)
        for first in range(start, stop, rows):
            yield self._array(islice(values, min(rows, stop - first)), first)

    def _array(self, values: Iterator[Any], first: int) -> NDArray[Any]:
        if self.dtype.kind == "T":
            return np.array([str(value) for value in values], dtype=self.dtype)
        return np.array([self._integer(v, first + i) for i, v in enumerate(values)], np.int64)

    def _integer(self, value: Any, row: int) -> int:
        if not is_int64(str(value)):
            raise StoreError(
                f"{self.locate(row)} holds {value!r}, where the first rows hold integers; write "
                "integers plainly, or names of which the first is no integer"
            )
        return int(value)

    def _values(self, start: int, stop: int) -> Iterator[Any]:
        """What is missing, or null, is the empty text."""
        header = int(self.form in _DELIMITERS)
        position, _, skip = self.index.span(start + header, stop + header)
        with open(self.files[0].path, "rb") as file:  # noqa: PTH123
            file.seek(position)
            records = islice(_records(file, self.form, self.what), skip, None)
            for row in range(start, stop):
                record = next(records, None)
                if record is None:
                    raise StoreError(f"{self.what} ends before row {row} now; do not write to it")
                yield self._value(record, row)

    def _value(self, record: Any, row: int) -> Any:
        if self.form == "lines":
            return record
        if self.form in _DELIMITERS:
            if len(record) != len(self.names):
                raise StoreError(
                    f"row {row} of {self.what} has {len(record)} fields and its header has "
                    f"{len(self.names)}; quote fields that hold the delimiter"
                )
            return record[self.names.index(str(self.name))]
        value = _object(record, self.locate(row)).get(str(self.name))
        if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
            raise StoreError(f"{self.locate(row)} holds {value!r:.60}, which is no text")
        if isinstance(value, str) and not _is_unicode(value):
            raise StoreError(
                f"{self.locate(row)} holds {value!r:.60}, with half of a surrogate pair, which is "
                "no character; write it anew, or leave it out"
            )
        return "" if value is None else value


def open_lines(path: str) -> RecordSource:
    index = line_index(path)
    return RecordSource((source_file(path),), (index.n_lines,), TEXT, "lines", index)


def open_json_lines(path: str, column: str | None) -> RecordSource:
    index = line_index(path)
    whole = RecordSource((source_file(path),), (index.n_lines,), TEXT, "jsonl", index)
    with open(path, "rb") as file:  # noqa: PTH123
        first = _object(next(_records(file, "jsonl", path)), f"line 1 of {path}")
    return _picked(replace(whole, names=tuple(first)), column)


def open_csv(path: str, form: Literal["csv", "tsv"], column: str | None) -> RecordSource:
    stat = os.stat(path)  # noqa: PTH116
    index = _record_index(path, form, stat.st_size, stat.st_mtime_ns)
    if index.n_lines < 2:
        raise StoreError(f"{path} has no row after its header; it needs at least one")
    with open(path, "rb") as file:  # noqa: PTH123
        names = tuple(next(_records(file, form, path)))
    shape = (index.n_lines - 1,)
    return _picked(RecordSource((source_file(path),), shape, TEXT, form, index, names), column)


def _picked(source: RecordSource, column: str | None) -> RecordSource:
    if column is None:
        raise InputError(
            f"{source.what} has several columns ({choices('text', source.names)}); say which holds "
            "the texts with --column"
        )
    if column not in source.names:
        raise InputError(
            f"{source.what} has no column {column!r} (it has {choices(column, source.names)}); "
            "name one of them"
        )
    return replace(source, name=column)


@lru_cache(maxsize=64)
def _record_index(path: str, form: Form, n_bytes: int, modified: int) -> LineIndex:
    """Where records of a CSV file begin, its header among them; remembered for it as it is."""
    offsets, n_records, begins = [], 0, 0
    with open(path, "rb") as file:  # noqa: PTH123
        taken = _Taken(file)
        for _ in _records(file, form, path, taken):
            if n_records % STEP == 0:
                offsets.append(begins)
            n_records, begins = n_records + 1, taken.n_bytes
    return LineIndex(np.array(offsets, np.int64).tobytes(), n_records, begins)


class _Taken:
    """Lines of a file, and how many bytes they were so far."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.n_bytes = file, 0

    def __iter__(self) -> Iterator[bytes]:
        for line in self._file:
            self.n_bytes += len(line)
            yield line


def _records(file: IO[bytes], form: Form, what: str, lines: _Taken | None = None) -> Iterator[Any]:
    """Records from where the file stands: lists of fields of CSV, else lines."""
    at = file.tell()
    texts = _decoded(lines or file, at, what)
    if form not in _DELIMITERS:
        yield from (text.rstrip("\r\n") for text in texts)
        return
    csv.field_size_limit(_LONGEST_FIELD)
    try:
        for record in csv.reader(texts, delimiter=_DELIMITERS[form], strict=True):
            if record:  # a line with nothing in it is no record
                yield record
    except csv.Error as error:
        raise StoreError(
            f"{what} is no good {form.upper()} ({error}, after byte {at}); quote fields that hold "
            "quotes, delimiters or line breaks"
        ) from error


def _decoded(lines: _Taken | IO[bytes], at: int, what: str) -> Iterator[str]:
    for number, line in enumerate(lines):
        if number == 0 and at == 0:
            line = line.removeprefix(codecs.BOM_UTF8)
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise StoreError(
                f"{what} is not UTF-8 text ({error}, {number} lines after byte {at}); convert it"
            ) from error


def _is_unicode(text: str) -> bool:
    """JSON may spell half of a character, as in \\ud800."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(line) if line.strip() else {}
    except ValueError as error:
        raise StoreError(f"{where} is no JSON ({error}); restore it") from error
    except RecursionError as error:
        raise StoreError(
            f"{where} is nested too deeply to be read; leave such values out"
        ) from error
    if not isinstance(found, dict):
        raise StoreError(f"{where} holds {found!r:.60}; each line is an object, {{...}}")
    return found
