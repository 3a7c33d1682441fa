"""Several files as one source: files of a folder or a pattern, in numeric order, without gaps."""

from __future__ import annotations

import glob
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.base import Source
from scrlm_dask.storage.feature_store import StoredOrigins
from scrlm_dask.storage.manifest import SourceFile
from scrlm_dask.storage.traces import Input

_NUMBER = re.compile(r"(\d+)")


_OF_TOTAL = re.compile(r"(\d+)-of-(\d+)")


def numeric_order(paths: Sequence[str]) -> list[str]:
    """Sort paths by the numbers in them: 2 before 10."""
    return sorted(paths, key=_key)


def natural_order(paths: Sequence[str]) -> list[str]:
    """Return paths in the given order, or in numeric order if a shell has probably sorted them.

    A shell expands a pattern to files in alphabetical order, with 10 before 2. This is only for
    arguments of commands: a list that a program gives has the order that the program intends.
    """
    given = list(paths)
    return numeric_order(given) if given == sorted(given) and _are_files(given) else given


def describe_order(paths: Sequence[str]) -> tuple[str, ...]:
    """Return a note if files are given in alphabetical order, but not in that of their numbers.

    Any other order is the choice of the caller.
    """
    given = list(paths)
    moved = first_moved(given, numeric_order(given))
    if moved is None or given != sorted(given) or not _are_files(given):
        return ()
    return (
        f"the {len(given)} files are read in the given order, which is alphabetical and not the "
        f"order of their numbers: {moved} is file {given.index(moved) + 1}; for numeric order, "
        "give the folder, or a pattern as one string",
    )


def first_moved(given: Sequence[str], ordered: Sequence[str]) -> str | None:
    """Return the first of the given paths that has another place in `ordered`; None if equal."""
    pairs = zip(given, ordered, strict=True)
    return next((path for path, other in pairs if path != other), None)


def _are_files(paths: Sequence[str]) -> bool:
    return all(Path(path).is_file() for path in paths)


def matching(pattern: str) -> list[str]:
    """Return the files that match a pattern, in numeric order; raise if a number is missing."""
    files = numeric_order(
        [path for path in glob.glob(pattern) if Path(path).is_file()]  # noqa: PTH207
    )
    if not files:
        raise StoreError(f"no file matches {pattern}; check the path")
    check_no_gap(files, from_first=False)
    return files


def files_in(folder: str, suffixes: Sequence[str]) -> list[str]:
    """Return the files of a folder with one of the suffixes, in numeric order.

    Raise if their suffixes differ or if a number is missing.
    """
    files = [
        str(path)
        for path in Path(folder).iterdir()
        if path.suffix.lower() in suffixes and path.is_file() and not path.name.startswith(".")
    ]
    kinds = sorted({Path(path).suffix.lower() for path in files})
    if not files:
        raise InputError(
            f"the folder {folder} contains no file with one of the suffixes {', '.join(suffixes)}; "
            "check the path, or give the files"
        )
    if len(kinds) > 1:
        raise InputError(
            f"the folder {folder} contains files of several kinds ({', '.join(kinds)}); select one "
            f"with a pattern, such as '{folder}/*{kinds[0]}'"
        )
    ordered = numeric_order(files)
    check_no_gap(ordered, from_first=True)
    return ordered


def check_no_gap(paths: Sequence[str], from_first: bool) -> None:
    """Raise if a file is missing in a series of numbered files.

    With `from_first`, also raise unless the numbers start at 0 or 1.

    Files are not checked if they are not numbered, or if their names differ in several numbers.
    """
    totals = [_OF_TOTAL.search(Path(path).name) for path in paths]
    if totals and all(totals):
        _check_totals(paths, [(int(m[1]), int(m[2])) for m in totals if m])
        return
    numbers = _numbers_of(paths)
    if numbers is None:
        return
    first = numbers[0]
    if from_first and first > 1:
        raise StoreError(
            f"{_name_like(paths[0], first, 0)} is missing: the first file is {paths[0]}; restore "
            "it, or give the files one by one"
        )
    for before, number, path in zip(numbers, numbers[1:], paths[1:], strict=False):
        if number != before + 1:
            raise StoreError(
                f"{_name_like(path, number, before + 1)} is missing: {path} follows number "
                f"{before}; restore it, or give the files one by one"
            )


def _check_totals(paths: Sequence[str], shards: list[tuple[int, int]]) -> None:
    """Check names like data-00003-of-00010, which contain the number of files."""
    numbers, total = {number for number, _ in shards}, shards[0][1]
    from_one = len(numbers) == total and (min(numbers), max(numbers)) == (1, total)
    # ends after at most one number per file, because a name may claim any total
    missing = next(number for number in count() if number not in numbers)
    if missing < total and not from_one:  # some writers count from 1
        example = _name_like(paths[0], shards[0][0], missing)
        raise StoreError(
            f"{example} is missing: {len(numbers)} of {total} files are present; restore it, or "
            "give the files one by one"
        )


def _numbers_of(paths: Sequence[str]) -> list[int] | None:
    """Return the number of each file, if the names differ in one number only; None otherwise."""
    pieces = [_NUMBER.split(Path(path).name) for path in paths]
    if len(pieces) < 2 or len({len(piece) for piece in pieces}) != 1:
        return None
    different = [i for i, texts in enumerate(zip(*pieces, strict=True)) if len(set(texts)) > 1]
    if len(different) != 1 or different[0] % 2 == 0:
        return None
    return [int(piece[different[0]]) for piece in pieces]


def _name_like(path: str, number: int, other: int) -> str:
    """Return the path with `number` replaced by `other`, padded to the same width."""
    folder, name = Path(path).parent, Path(path).name

    def replaced(match: re.Match[str]) -> str:
        text = match[0]
        return f"{other:0{len(text)}d}" if int(text) == number else text

    return str(folder / _NUMBER.sub(replaced, name, count=0))


def _key(path: str) -> tuple[object, ...]:
    """Return a key that sorts folders and files by number, and by path if 1 and 01 are equal."""
    return (*(_counted(part) for part in Path(path).parts), (), path)


def _counted(name: str) -> tuple[object, ...]:
    return tuple(int(p) if i % 2 else p for i, p in enumerate(_NUMBER.split(name)))


_Piece = TypeVar("_Piece", bound=Any)  # rows that support len(), slicing and concatenation


@dataclass(frozen=True)
class ConcatenatedSource(Source):
    """The rows of several sources, one after the other."""

    parts: tuple[Source, ...]

    @property
    def what(self) -> str:
        """Name of the first part, and the number of other parts."""
        return f"{self.parts[0].what} and {len(self.parts) - 1} more"

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the first part."""
        return self.parts[0].columns

    @property
    def unit_rows(self) -> int:
        """Largest number of rows that a part decodes at once."""
        return max(part.unit_rows for part in self.parts)

    @property
    def streams(self) -> bool:
        """Return whether `batches` decodes each unit of every part only once."""
        return all(part.streams or part.unit_rows == 1 for part in self.parts)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows start..stop-1, which may span several parts."""
        pieces = [part.read(first, last) for part, first, last in self._within(start, stop)]
        if len(pieces) == 1:
            return pieces[0].astype(self.dtype, copy=False)
        empty = np.empty((0, *self.shape[1:]), self.dtype)
        return np.concatenate([empty, *pieces]).astype(self.dtype, copy=False)

    def batches(self, start: int, stop: int, rows: int) -> Iterator[NDArray[Any]]:
        """Yield rows start..stop-1, `rows` at a time; a batch may span several parts."""
        pieces = (
            piece
            for part, first, last in self._within(start, stop)
            for piece in part.batches(first, last, rows)
        )
        for batch in regroup(pieces, rows, np.concatenate):
            yield batch.astype(self.dtype, copy=False)

    def locate(self, row: int) -> str:
        """Return the position of a row in its part."""
        for part, first, _ in self._within(row, row + 1):
            return part.locate(first)
        return super().locate(row)

    def segments(self) -> list[tuple[SourceFile, int]]:
        """Return the files of all parts, in order, and the number of rows of each."""
        return [segment for part in self.parts for segment in part.segments()]

    def stored_origins(self) -> list[StoredOrigins | None]:
        """Return the recorded source files of the segments of all parts."""
        return [origins for part in self.parts for origins in part.stored_origins()]

    @property
    def is_shuffled(self) -> bool:
        """Return whether an earlier ingest has shuffled the rows of a part."""
        return any(part.is_shuffled for part in self.parts)

    @property
    def value_names(self) -> tuple[str, ...]:
        """Names that all parts have."""
        names = self.parts[0].value_names
        return tuple(n for n in names if all(n in part.value_names for part in self.parts))

    def inputs(self) -> tuple[Input, ...]:
        """Return the files of all parts with their digests."""
        return tuple(each for part in self.parts for each in part.inputs())

    def column(self, name: str) -> Source:
        """Open a column of all parts."""
        return concatenate([part.column(name) for part in self.parts])

    def verify(self) -> None:
        """Check the integrity of all parts."""
        for part in self.parts:
            part.verify()

    def notes(self) -> list[str]:
        """Return the notes of all parts without repetition."""
        counts, n_parts = Counter(n for part in self.parts for n in part.notes()), len(self.parts)
        return [
            note if times == n_parts else f"{note} ({times} of {n_parts} files)"
            for note, times in counts.items()
        ]

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """Number of rows up to the end of each part; computed once for all reads."""
        return np.cumsum([part.n_rows for part in self.parts], dtype=np.int64)

    def _within(self, start: int, stop: int) -> Iterator[tuple[Source, int, int]]:
        """Yield the parts that contain rows start..stop-1, each with its range of rows."""
        number = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop and number < len(self.parts):
            part, end = self.parts[number], int(self._ends[number])
            before = end - part.n_rows
            yield part, start - before, min(stop, end) - before
            start, number = max(start, end), number + 1


def concatenate(parts: Sequence[Source]) -> Source:
    """Concatenate sources, which must have the same number of features."""
    first = parts[0]
    for part in parts[1:]:
        if part.shape[1:] != first.shape[1:]:
            raise InputError(
                f"{part.what} has {_width(part)}, but {first.what} has {_width(first)}; "
                "all files must have the same number of features"
            )
    if len(parts) == 1:
        return first
    return ConcatenatedSource(
        files=tuple(dict.fromkeys(file for part in parts for file in part.files)),
        shape=(sum(part.n_rows for part in parts), *first.shape[1:]),
        dtype=_common_dtype(parts),
        parts=tuple(parts),
    )


def _common_dtype(parts: Sequence[Source]) -> np.dtype[Any]:
    try:
        return np.result_type(*(part.dtype for part in parts))
    except TypeError as error:
        other = next(part for part in parts if part.dtype != parts[0].dtype)
        raise InputError(
            f"{parts[0].what} contains {parts[0].dtype}, but {other.what} contains {other.dtype}, "
            "and these have no common dtype; write all of them as strings or all as numbers"
        ) from error


def regroup(
    pieces: Iterator[_Piece], rows: int, concatenate: Callable[[list[_Piece]], _Piece]
) -> Iterator[_Piece]:
    """Yield the rows of `pieces` in pieces of `rows` rows; the last piece may be smaller."""
    waiting: list[_Piece] = []
    n_waiting = 0
    for piece in pieces:
        rest = piece
        while n_waiting + len(rest) >= rows:
            cut = rows - n_waiting
            waiting.append(rest[:cut])
            yield waiting[0] if len(waiting) == 1 else concatenate(waiting)
            waiting, n_waiting, rest = [], 0, rest[cut:]
        if len(rest):
            waiting.append(rest)
            n_waiting += len(rest)
    if waiting:
        yield waiting[0] if len(waiting) == 1 else concatenate(waiting)


def _width(part: Source) -> str:
    return f"{part.n_features} features" if len(part.shape) == 2 else "one value per row"
