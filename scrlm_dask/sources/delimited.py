"""CSV and other text files: tables of numbers, and one text per line, CSV record or JSON object.

One pass over a file builds an index: the offset of every 4096th line or record. A read starts at
the last such offset before its rows. A row of numbers is one line. A record of texts may span
several lines, because quoted CSV fields may contain line breaks.
"""

from __future__ import annotations

import codecs
import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.base import (
    TEXT,
    Source,
    check_column,
    choices,
    reject_non_numeric,
    source_file,
)
from scrlm_dask.text import quoted, shorten

Form = Literal["lines", "csv", "tsv", "jsonl"]
TABLE_SUFFIXES = (".csv", ".tsv", ".txt")
TEXT_FORMS: dict[str, Form] = {
    **{".txt": "lines", ".csv": "csv", ".tsv": "tsv"},
    **{".jsonl": "jsonl", ".ndjson": "jsonl"},
}
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_INDEX_STEP = 4096  # lines between two offsets of the index
_PIECE_BYTES = 2**24
_SAMPLE_BYTES = 2**20
_MAX_FIELD = 2**26  # an unclosed quote must not load a large file into memory
_SAMPLE_ROWS = 1000  # rows that decide whether values are integers or strings
_NEWLINE = 10
_UNIT_SEPARATOR = "\x1f"  # separates fields that may contain commas
_FIRST_ARE_INTEGERS = ", but the first rows contain integers"
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,18})")  # at most as many digits as 2^63 has


@dataclass(frozen=True)
class LineIndex:
    """Offsets of every `_INDEX_STEP`-th line or record, as bytes of an int64 array."""

    offsets: bytes
    n_lines: int
    end: int  # offset of the end of the last line

    def span(self, start: int, stop: int) -> tuple[int, int, int]:
        """Return begin and end of bytes with lines start..stop-1, and how many lines to skip."""
        known = np.frombuffer(self.offsets, np.int64)
        last = -(-stop // _INDEX_STEP)
        to = int(known[last]) if last < len(known) else self.end
        return int(known[start // _INDEX_STEP]), to, start % _INDEX_STEP


@dataclass(frozen=True)
class DelimitedSource(Source):
    """Rows of a text file, accessed through an index of its lines or records."""

    index: LineIndex
    names: tuple[str, ...]  # names of all fields of a row

    def _to_array(self, values: Iterable[Any], first: int, why: str) -> NDArray[Any]:
        """Convert the values of rows from `first` on to strings or integers.

        `why` explains in messages why integers are expected.
        """
        if self.dtype.kind == "T":
            return np.array([str(value) for value in values], dtype=self.dtype)
        integers = []
        for row, value in enumerate(values, first):
            if not _is_int64(str(value)):  # int() would silently change 02139 or 1_000
                raise StoreError(
                    f"{self.locate(row)} contains {quoted(value)}{why}; write plain integers in "
                    "all rows, or strings, with a first value that is not an integer"
                )
            integers.append(int(value))
        return np.array(integers, np.int64)


@dataclass(frozen=True)
class LineSource(DelimitedSource):
    """One row per line: numbers as float64, or one field as integers or strings.

    A file that is truncated inside its last number is not detected. A file that is truncated
    elsewhere has a row with too few fields, which is detected.
    """

    header: bool
    delimiter: str | None  # None: spaces
    fields: tuple[int, ...]  # positions of the fields that are read

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that are read; empty without a header."""
        return tuple(self.names[field] for field in self.fields) if self.header else ()

    def column(self, name: str) -> Source:
        """Open another column of the same file."""
        check_column(name, self.names, self.what)
        return self._select_value(self.names.index(name))

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Parse rows start..stop-1."""
        lines = self._read_lines(start, stop)
        if not lines:
            return np.empty((0, *self.shape[1:]), self.dtype)
        self._check_fields(lines, start)
        if self.dtype.kind == "f":
            return self._parse_numbers(lines, start)
        why = f" in column {quoted(self.names[self.fields[0]])}, but row 0 contains an integer"
        return self._to_array(self._first_fields(lines, start), start, why)

    def notes(self) -> list[str]:
        """Report that the first line is used as a header."""
        return ["the first line is used as column names"] * self.header

    def _select_value(self, field: int) -> LineSource:
        """Return the source of one field: integers if the first value is a plain integer.

        The value -1 (an outlier) does not count, because labels may be names, with -1 for outliers.
        """
        values = replace(self, shape=(self.n_rows,), fields=(field,))
        lines = values._read_lines(0, min(self.n_rows, _SAMPLE_ROWS))
        return replace(values, dtype=_value_dtype(values._first_fields(lines, 0)))

    def _first_fields(self, lines: list[str], start: int) -> Iterator[str]:
        return (row[self.fields[0]] for row in self._split_lines(lines, start))

    def _split_lines(self, lines: list[str], start: int) -> Iterator[list[str]]:
        for row, line in enumerate(lines, start):
            yield _split(line, self.delimiter, self.locate(row))

    def _parse_numbers(self, lines: list[str], start: int) -> NDArray[Any]:
        try:
            return np.loadtxt(
                lines,
                delimiter=self.delimiter,
                usecols=self.fields,
                ndmin=2,
                comments=None,
                quotechar='"',
                dtype=np.float64,
            )
        except ValueError as error:
            rows = list(self._split_lines(lines, start))
            if any(not row[field].strip() for row in rows for field in self.fields):
                # pandas writes NaN as an empty field
                filled = [_UNIT_SEPARATOR.join(t.strip() or "nan" for t in row) for row in rows]
                return replace(self, delimiter=_UNIT_SEPARATOR)._parse_numbers(filled, start)
            for number, row in enumerate(rows):
                for field in self.fields:
                    if not _is_number(row[field]):
                        raise StoreError(
                            f"row {start + number} of {self.what} contains {quoted(row[field])} "
                            f"in column {quoted(self.names[field])}; features must be numbers"
                        ) from error
            raise StoreError(
                f"rows from {start} on of {self.what} cannot be parsed ({shorten(str(error))})"
            ) from error

    def _read_lines(self, start: int, stop: int) -> list[str]:
        begin, end, skip = self.index.span(start + self.header, stop + self.header)
        with open(self.files[0].path, "rb") as file:  # noqa: PTH123
            file.seek(begin)
            data = file.read(end - begin)
        if begin == 0:
            data = data.removeprefix(codecs.BOM_UTF8)
        lines = data.split(b"\n")[skip : skip + stop - start]
        if len(lines) < stop - start:
            raise StoreError(
                f"{self.what} is truncated: it ends before row {stop - 1}, but was longer when it "
                "was opened; do not write to it while it is read"
            )
        try:
            return [line.rstrip(b"\r").decode() for line in lines]
        except UnicodeDecodeError as error:
            raise StoreError(
                f"rows {start} to {stop - 1} of {self.what} are not UTF-8 text ({error}); convert "
                "the file"
            ) from error

    def _check_fields(self, lines: list[str], start: int) -> None:
        """Raise if a line has too few or too many fields, which NumPy's parser would ignore."""
        expected = len(self.names)
        for number, line in enumerate(lines):
            d, row = self.delimiter, start + number
            # counting delimiters is faster than splitting
            if d is None or '"' in line:
                n = len(_split(line, d, self.locate(row)))
            else:
                n = line.count(d) + 1
            if n != expected or not line.strip():
                raise StoreError(
                    f"row {row} (line {row + 1 + self.header}) of {self.what} has "
                    f"{n if line.strip() else 0} fields, expected {expected}"
                )


@dataclass(frozen=True)
class RecordSource(DelimitedSource):
    """One value per record: a string or, for ids and labels, an integer."""

    form: Form
    selected: str | None = None  # name of the field that is read

    @property
    def columns(self) -> tuple[str, ...]:
        """Name of the field that is read; empty if records are lines."""
        return () if self.selected is None else (self.selected,)

    @property
    def streams(self) -> bool:
        """Always true: `batches` reads the file sequentially and parses each record once."""
        return True

    def locate(self, row: int) -> str:
        """Return the position of a row: row number in CSV or TSV, else line number (from 1)."""
        of = self.what if self.form == "lines" else f"column {self.selected!r} of {self.what}"
        return f"row {row} of {of}" if self.form in _DELIMITERS else f"line {row + 1} of {of}"

    def column(self, name: str) -> Source:
        """Open another field of the same records."""
        if self.form == "lines":
            return super().column(name)
        other = _select_field(self, name)
        values = list(other._read_values(0, min(self.n_rows, _SAMPLE_ROWS)))
        return replace(other, dtype=_value_dtype(map(str, values)))

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Parse records start..stop-1."""
        return self._to_array(self._read_values(start, stop), start, _FIRST_ARE_INTEGERS)

    def batches(self, start: int, stop: int, rows: int) -> Iterator[NDArray[Any]]:
        """Yield records start..stop-1, `rows` at a time, in one pass over the file."""
        values = self._read_values(start, stop)
        for first in range(start, stop, rows):
            batch = islice(values, min(rows, stop - first))
            yield self._to_array(batch, first, _FIRST_ARE_INTEGERS)

    def _read_values(self, start: int, stop: int) -> Iterator[Any]:
        header = int(self.form in _DELIMITERS)
        position, _, skip = self.index.span(start + header, stop + header)
        with open(self.files[0].path, "rb") as file:  # noqa: PTH123
            file.seek(position)
            records = islice(_read_records(file, self.form, self.what), skip, None)
            for row in range(start, stop):
                record = next(records, None)
                if record is None:
                    raise StoreError(
                        f"{self.what} is truncated: it ends before row {row}, but was longer when "
                        "it was opened; do not write to it while it is read"
                    )
                yield self._select_value(record, row)

    def _select_value(self, record: Any, row: int) -> Any:
        if self.form == "lines":
            return record
        if self.form == "jsonl":
            return self._select_json(record, row)
        if len(record) != len(self.names):
            raise StoreError(
                f"row {row} of {self.what} has {len(record)} fields, but the header has "
                f"{len(self.names)}; quote fields that contain the delimiter"
            )
        return record[self.names.index(str(self.selected))]

    def _select_json(self, line: str, row: int) -> str | int:
        """Return a string or an integer; a missing or null value becomes the empty string."""
        value = _parse_object(line, self.locate(row)).get(str(self.selected))
        if value is None:
            return ""
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise StoreError(f"{self.locate(row)} must be a string, got {quoted(value)}")
        try:
            str(value).encode()
        except UnicodeEncodeError as error:  # JSON allows half of a surrogate pair, as in \ud800
            raise StoreError(
                f"{self.locate(row)} contains {quoted(value)}, with an unpaired surrogate, which "
                "is not a valid character; correct or remove it"
            ) from error
        return value


def open_csv(path: str, asked: Sequence[str] = (), apart: Sequence[str] = ()) -> LineSource:
    """Open a table of numbers: the columns `asked`, if given, otherwise all except `apart`."""
    first = _read_first_lines(path)
    delimiter = _guess_delimiter(path, first[0])
    fields = _split(first[0], delimiter, f"line 1 of {path}")
    header = _is_header(fields)
    names = tuple(fields) if header else tuple(str(i) for i in range(len(fields)))
    for name in (*asked, *apart):
        check_column(name, names, path)
    if header and not names[0] and not asked and "" not in apart:
        raise InputError(
            f"the first column of {path} has no name and is probably a pandas index, not a "
            "feature; exclude it with --exclude '', or write the file with index=False"
        )
    chosen = [i for i, name in enumerate(names) if (name in asked if asked else name not in apart)]
    if len(first) > header:
        row = dict(enumerate(_split(first[int(header)], delimiter, f"row 0 of {path}")))
        texts = {i: row[i] for i in chosen if row.get(i, "").strip() and not _is_number(row[i])}
        reject_non_numeric(path, {names[i]: f"{quoted(t)} in row 0" for i, t in texts.items()})
    file = source_file(path)
    index = _index_lines(path)
    shape = (index.n_lines - header, len(chosen))
    return LineSource(
        *((file,), shape, np.dtype(np.float64), index, names),
        *(header, delimiter, tuple(chosen)),
    )


def open_value_lines(path: str, n_rows: int) -> LineSource:
    """Open a file with one value per line; with `n_rows` + 1 lines, the first is a header."""
    file = source_file(path)
    index = _index_lines(path)
    header = index.n_lines == n_rows + 1
    shape = (index.n_lines - header,)
    # the delimiter is a line break, so that commas are part of the values
    lines = LineSource((file,), shape, TEXT, index, ("value",), header, "\n", (0,))
    return lines._select_value(0)


def open_texts(path: str, column: str | None = None) -> RecordSource:
    """Open the texts of a file whose suffix is in `TEXT_FORMS`.

    `column` is required for all forms except lines.
    """
    form = TEXT_FORMS[Path(path).suffix.lower()]
    has_header = form in _DELIMITERS
    file = source_file(path)
    index = _index_records(path, form) if has_header else _index_lines(path)
    if index.n_lines <= has_header:
        raise StoreError(f"{path} must have at least one row after its header, got 0")
    shape = (index.n_lines - has_header,)
    source = RecordSource((file,), shape, TEXT, index, (), form)
    if form == "lines":
        return source
    with open(path, "rb") as stream:  # noqa: PTH123
        first = next(_read_records(stream, form, path))
    names = first if has_header else _parse_object(first, f"line 1 of {path}")
    return _select_field(replace(source, names=tuple(names)), column)


def _select_field(source: RecordSource, column: str | None) -> RecordSource:
    if column is None:
        raise InputError(
            f"{source.what} has several columns ({choices('text', source.names)}); use --column "
            "NAME to select the column of texts"
        )
    check_column(column, source.names, source.what, hint="")
    return replace(source, selected=column)


def _index_lines(path: str) -> LineIndex:
    end = _find_end(path)
    offsets, n_lines, position = [np.zeros(1, np.int64)], 1, 0
    with open(path, "rb") as file:  # noqa: PTH123
        while position < end:
            piece = file.read(min(_PIECE_BYTES, end - position))
            if not piece:
                raise StoreError(
                    f"{path} was truncated while it was read; do not write to it while it is read"
                )
            begins = position + 1 + np.flatnonzero(np.frombuffer(piece, np.uint8) == _NEWLINE)
            offsets.append(begins[-n_lines % _INDEX_STEP :: _INDEX_STEP])
            n_lines += len(begins)
            position += len(piece)
    if end == 0:
        raise StoreError(f"{path} is empty; it must have at least one row")
    return LineIndex(np.concatenate(offsets).astype(np.int64).tobytes(), n_lines, end)


def _index_records(path: str, form: Form) -> LineIndex:
    offsets, n_records = [0], 0
    with open(path, "rb") as file:  # noqa: PTH123
        for _ in _read_records(file, form, path):
            n_records += 1
            # csv.reader does not read ahead, so the position is that of the next record
            if n_records % _INDEX_STEP == 0:
                offsets.append(file.tell())
        return LineIndex(np.array(offsets, np.int64).tobytes(), n_records, file.tell())


def _find_end(path: str) -> int:
    """Return the offset of the end of the last line; trailing empty lines are not rows."""
    end = source_file(path).bytes
    with open(path, "rb") as file:  # noqa: PTH123
        while end:
            begin = max(0, end - _SAMPLE_BYTES)
            file.seek(begin)
            kept = file.read(end - begin).rstrip()
            if kept:
                return begin + len(kept)
            end = begin
    return 0


def _read_records(file: IO[bytes], form: Form, path: str) -> Iterator[Any]:
    """Yield records from the file's position on: lists of fields for CSV and TSV, else lines."""
    begin = file.tell()
    texts = _decode_lines(file, begin, path)
    if form not in _DELIMITERS:
        yield from (text.rstrip("\r\n") for text in texts)
        return
    csv.field_size_limit(_MAX_FIELD)
    try:
        # csv.reader returns an empty list for an empty line, which is not a record
        yield from filter(None, csv.reader(texts, delimiter=_DELIMITERS[form], strict=True))
    except csv.Error as error:
        where = f"{path} (after byte {begin})"
        raise StoreError(_describe_invalid(where, form.upper(), error)) from error


def _decode_lines(file: IO[bytes], begin: int, path: str) -> Iterator[str]:
    for number, line in enumerate(file):
        text = line.removeprefix(codecs.BOM_UTF8) if number == 0 and begin == 0 else line
        try:
            yield text.decode()
        except UnicodeDecodeError as error:
            raise StoreError(
                f"{path} is not UTF-8 text ({error}, {number} lines after byte {begin}); convert "
                "the file"
            ) from error


def _read_first_lines(path: str) -> list[str]:
    """Return the first two lines that are not empty, without a byte order mark."""
    with open(path, "rb") as file:  # noqa: PTH123
        # lines may be long, with thousands of numbers
        lines = [file.readline(64 * _SAMPLE_BYTES) for _ in range(2)]
    try:
        texts = [line.decode("utf-8-sig").rstrip("\r\n") for line in lines if line.strip()]
    except UnicodeDecodeError as error:
        raise StoreError(
            f"{path} is not UTF-8 text ({error}); give its --format if it is not CSV, otherwise "
            "decompress it or convert it to UTF-8"
        ) from error
    if not texts:
        raise StoreError(f"{path} is empty; it must have at least one row")
    return texts


def _guess_delimiter(path: str, line: str) -> str | None:
    if Path(path).suffix.lower() == ".tsv":
        return "\t"
    return next((d for d in (",", "\t", ";") if d in line), None if " " in line.strip() else ",")


def _describe_invalid(where: str, form: str, error: csv.Error) -> str:
    return (
        f"{where} is not valid {form} ({error}); quote fields that contain quotes, delimiters or "
        f"line breaks, close all quotes, and shorten fields of more than {_MAX_FIELD} characters"
    )


def _split(line: str, delimiter: str | None, where: str) -> list[str]:
    if delimiter is None:
        return line.split()
    if delimiter == "\n" or '"' not in line:
        return line.split(delimiter)
    csv.field_size_limit(_MAX_FIELD)
    try:
        return next(csv.reader([line], delimiter=delimiter))
    except csv.Error as error:
        raise StoreError(_describe_invalid(where, "CSV", error)) from error


def _is_header(fields: list[str]) -> bool:
    """Return whether the fields of the first line are column names.

    pandas names columns 0, 1, 2, ... by default. The line "0,1" may be a row of numbers, but a
    longer sequence that starts at 0 is very likely a header.
    """
    numbers = [field for field in fields if _is_number(field)]
    if any(not _INTEGER.fullmatch(number) for number in numbers):
        return False  # a row, perhaps with a string or a missing value
    counted = [str(i) for i in range(len(numbers))]
    return numbers == counted and (len(numbers) < len(fields) or len(fields) > 2)


def _parse_object(line: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line) if line.strip() else {}
    except ValueError as error:
        raise StoreError(f"{where} is not valid JSON ({error}); restore it") from error
    except RecursionError as error:
        raise StoreError(
            f"{where} is nested too deeply to be parsed; remove such values"
        ) from error
    if not isinstance(value, dict):
        raise StoreError(f"{where} must be a JSON object, {{...}}, got {quoted(value)}")
    return value


def _value_dtype(values: Iterable[str]) -> np.dtype[Any]:
    decisive = next((value for value in values if value != "-1"), "-1")
    return np.dtype(np.int64) if _is_int64(decisive) else TEXT


def _is_int64(text: str) -> bool:
    return _INTEGER.fullmatch(text) is not None and -(2**63) <= int(text) < 2**63


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
