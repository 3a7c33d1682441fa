"""CSV and its kin: a line is a row. One pass over the file finds where some lines begin."""

from __future__ import annotations

import codecs
import csv
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.base import TEXT, Source, choices, refuse_others, source_file

SUFFIXES = (".csv", ".tsv", ".txt")
STEP = 4096  # lines between two places that the index knows
_PIECE = 2**24
_SAMPLE = 2**20
_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)")
_NEWLINE = 10
_LOOKED_AT = 1000  # rows, to tell names from numbers
_NO_TEXT = "\x1f"  # separates fields, in which commas may stand


@dataclass(frozen=True)
class LineIndex:
    """Where lines begin: every `STEP`th, as bytes of int64, and where the last line ends."""

    offsets: bytes
    n_lines: int
    end: int

    def span(self, start: int, stop: int) -> tuple[int, int, int]:
        """Bytes [from, to) that hold lines start..stop-1, and how many lines to skip in them."""
        known = np.frombuffer(self.offsets, np.int64)
        last = -(-stop // STEP)
        to = int(known[last]) if last < len(known) else self.end
        return int(known[start // STEP]), to, start % STEP


@dataclass(frozen=True)
class TextSource(Source):
    """Numbers are parsed as float64. A file that was cut inside its last number cannot be told from
    a whole one; one that was cut elsewhere has a row with too few fields."""

    index: LineIndex
    header: bool
    delimiter: str | None  # None: spaces
    names: tuple[str, ...]  # of all fields of a line
    fields: tuple[int, ...]  # those that are read

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.names[field] for field in self.fields) if self.header else ()

    def column(self, name: str) -> Source:
        _check_names(self.what, self.names, (name,))
        values = replace(
            self,
            shape=(self.n_rows,),
            dtype=np.dtype(np.int64),
            fields=(self.names.index(name),),
        )
        return replace(values, dtype=values._dtype_of_first())

    def read(self, start: int, stop: int) -> NDArray[Any]:
        lines = self._lines(start, stop)
        if not lines:
            return np.empty((0, *self.shape[1:]), self.dtype)
        self._check_fields(lines, start)
        if self.dtype.kind == "f":
            return self._parsed(lines, start)
        texts = [_split(line, self.delimiter)[self.fields[0]] for line in lines]
        if self.dtype.kind == "T":
            return np.array(texts, dtype=self.dtype)
        return np.array([self._integer(text, start + i) for i, text in enumerate(texts)], np.int64)

    def _parsed(self, lines: list[str], start: int) -> NDArray[Any]:
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
            split = [_split(line, self.delimiter) for line in lines]
            if any(not row[field].strip() for row in split for field in self.fields):
                # nothing at all is how pandas writes NaN
                filled = [_NO_TEXT.join(t.strip() or "nan" for t in row) for row in split]
                return replace(self, delimiter=_NO_TEXT)._parsed(filled, start)
            for number, row in enumerate(split):
                for field in self.fields:
                    text = row[field]
                    if not _is_number(text):
                        raise StoreError(
                            f"row {start + number} of {self.what} holds {text!r} in column "
                            f"{self.names[field]!r}; features are numbers"
                        ) from error
            raise StoreError(f"rows from {start} on of {self.what}: {error}") from error

    def _lines(self, start: int, stop: int) -> list[str]:
        skipped = int(self.header)
        begin, end, skip = self.index.span(start + skipped, stop + skipped)
        with open(self.files[0].path, "rb") as file:  # noqa: PTH123
            file.seek(begin)
            content = file.read(end - begin)
        if begin == 0:
            content = content.removeprefix(codecs.BOM_UTF8)
        lines = content.split(b"\n")[skip : skip + stop - start]
        if len(lines) < stop - start:
            raise StoreError(f"{self.what} ends before row {stop - 1} now; do not write to it")
        try:
            return [line.rstrip(b"\r").decode() for line in lines]
        except UnicodeDecodeError as error:
            raise StoreError(
                f"rows {start} to {stop - 1} of {self.what} are not UTF-8 text ({error})"
            ) from error

    def _check_fields(self, lines: list[str], start: int) -> None:
        """The parser skips empty lines, and extra fields of a row, in silence."""
        expected = len(self.names)
        for number, line in enumerate(lines):
            plain = self.delimiter is not None and '"' not in line
            n = (
                line.count(self.delimiter) + 1
                if plain and self.delimiter
                else len(_split(line, self.delimiter))
            )
            if n != expected or not line.strip():
                raise StoreError(
                    f"row {start + number} (line {start + number + 1 + self.header}) of "
                    f"{self.what} has {n if line.strip() else 0} fields and others have {expected}"
                )

    def notes(self) -> list[str]:
        return ["the first line is taken as names of columns"] * self.header

    def _dtype_of_first(self) -> np.dtype[Any]:
        """Integers, unless the first value is something else or has zeros in front.

        An outlier's -1 is neither: names may come after it.
        """
        lines = self._lines(0, min(self.n_rows, _LOOKED_AT))
        texts = (_split(line, self.delimiter)[self.fields[0]] for line in lines)
        text = next((text for text in texts if text != "-1"), "-1")
        return np.dtype(np.int64) if is_int64(text) else TEXT

    def _integer(self, text: str, row: int) -> int:
        if is_int64(text):
            return int(text)
        # 02139 or 1_000 would become other names in silence
        raise StoreError(
            f"row {row} of {self.what} holds {text!r} in column {self.names[self.fields[0]]!r}, "
            "where row 0 holds an integer; write integers plainly, or names of which the first is "
            "no integer"
        )


def open_text(path: str, asked: Sequence[str] = (), apart: Sequence[str] = ()) -> TextSource:
    """A table of numbers: the columns asked for, or all but those that are `apart`."""
    first = _first_lines(path)
    delimiter = _delimiter(path, first[0])
    fields = _split(first[0], delimiter)
    header = _is_header(fields)
    names = tuple(fields) if header else tuple(str(i) for i in range(len(fields)))
    _check_names(path, names, (*asked, *apart))
    if header and not names[0] and not asked and "" not in apart:
        raise InputError(
            f"the first column of {path} has no name: it looks like the index of pandas, which is "
            "no feature; leave it out with --exclude '', or write the file with index=False"
        )
    wanted = tuple(
        i for i, name in enumerate(names) if (name in asked if asked else name not in apart)
    )
    if len(first) > header:
        row = _split(first[int(header)], delimiter)
        refuse_others(path, {names[i]: _no_number(row[i]) for i in wanted if _is_text(row, i)})
    index = line_index(path)
    return TextSource(
        files=(source_file(path),),
        shape=(index.n_lines - header, len(wanted)),
        dtype=np.dtype(np.float64),
        index=index,
        header=header,
        delimiter=delimiter,
        names=names,
        fields=wanted,
    )


def open_text_values(path: str, n_rows: int) -> TextSource:
    """One value a line. A line more than there are rows is a header."""
    index = line_index(path)
    values = TextSource(
        files=(source_file(path),),
        shape=(index.n_lines - (index.n_lines == n_rows + 1),),
        dtype=np.dtype(np.int64),
        index=index,
        header=index.n_lines == n_rows + 1,
        # commas in a list of names are part of the names
        delimiter="\n",
        names=("value",),
        fields=(0,),
    )
    return replace(values, dtype=values._dtype_of_first())


def line_index(path: str) -> LineIndex:
    stat = os.stat(path)  # noqa: PTH116
    return _index_of(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=64)
def _index_of(path: str, n_bytes: int, modified: int) -> LineIndex:
    """Remembered for a file as it is: a command opens its source twice."""
    end = _content_end(path, n_bytes)
    offsets, n_lines, position = [np.zeros(1, np.int64)], 1, 0
    with open(path, "rb") as file:  # noqa: PTH123
        while position < end:
            piece = file.read(min(_PIECE, end - position))
            if not piece:
                raise StoreError(f"{path} was cut while it was read; do not write to it")
            begins = position + 1 + np.flatnonzero(np.frombuffer(piece, np.uint8) == _NEWLINE)
            first = -n_lines % STEP
            offsets.append(begins[first::STEP])
            n_lines += len(begins)
            position += len(piece)
    if end == 0:
        raise StoreError(f"{path} is empty; it needs at least one row")
    return LineIndex(np.concatenate(offsets).astype(np.int64).tobytes(), n_lines, end)


def _content_end(path: str, n_bytes: int) -> int:
    """Where the last line ends; empty lines after it are no rows."""
    end = n_bytes
    with open(path, "rb") as file:  # noqa: PTH123
        while end:
            begin = max(0, end - _SAMPLE)
            file.seek(begin)
            kept = file.read(end - begin).rstrip()
            if kept:
                return begin + len(kept)
            end = begin
    return 0


def _first_lines(path: str) -> list[str]:
    with open(path, "rb") as file:  # noqa: PTH123
        # a line may be long: thousands of numbers
        lines = [file.readline(64 * _SAMPLE) for _ in range(2)]
    try:
        texts = [line.decode("utf-8-sig").rstrip("\r\n") for line in lines if line.strip()]
    except UnicodeDecodeError as error:
        raise StoreError(f"{path} is no text ({error}); say what it is with --format") from error
    if not texts:
        raise StoreError(f"{path} is empty; it needs at least one row")
    return texts


def _delimiter(path: str, line: str) -> str | None:
    if Path(path).suffix.lower() == ".tsv":
        return "\t"
    return next((d for d in (",", "\t", ";") if d in line), None if " " in line.strip() else ",")


def _split(line: str, delimiter: str | None) -> list[str]:
    if delimiter is None:
        return line.split()
    if delimiter == "\n" or '"' not in line:
        return line.split(delimiter)
    return next(csv.reader([line], delimiter=delimiter))


def _is_header(fields: list[str]) -> bool:
    """Names of columns. Numbers among them can only be those that pandas gives: 0, 1, 2, ...

    Nothing but 0, 1 may well be a row; nothing but 0, 1, 2, 3 and so on hardly is.
    """
    numbers = [field for field in fields if _is_number(field)]
    if any(not _WHOLE.fullmatch(number) for number in numbers):
        return False  # a row, perhaps with a name or with something missing
    counted = [str(i) for i in range(len(numbers))]
    return numbers == counted and (len(numbers) < len(fields) or len(fields) > 2)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_names(path: str, names: tuple[str, ...], asked: Sequence[str]) -> None:
    for name in asked:
        if name not in names:
            raise InputError(
                f"{path} has no column {name!r} (it has {choices(name, names)}); name one of them "
                "(labels and ids may also be a file)"
            )


def _is_text(fields: list[str], i: int) -> bool:
    return i < len(fields) and bool(fields[i].strip()) and not _is_number(fields[i])


def _no_number(text: str) -> str:
    return f"{text!r} in row 0, which is no number"


def is_int64(text: str) -> bool:
    return _WHOLE.fullmatch(text) is not None and -(2**63) <= int(text) < 2**63
