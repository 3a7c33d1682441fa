"""Several sources one after the other, as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError
from scrlm_dask.sources.base import Source

_Piece = TypeVar("_Piece", bound=Any)  # rows that can be measured, sliced and put together


@dataclass(frozen=True)
class JoinedSource(Source):
    parts: tuple[Source, ...]

    @property
    def what(self) -> str:
        return f"{self.parts[0].what} and {len(self.parts) - 1} more"

    @property
    def columns(self) -> tuple[str, ...]:
        return self.parts[0].columns

    @property
    def unit_rows(self) -> int:
        return max(part.unit_rows for part in self.parts)

    @property
    def streams(self) -> bool:
        return all(part.streams or part.unit_rows == 1 for part in self.parts)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        pieces = [part.read(first, last) for part, first, last in self._within(start, stop)]
        if len(pieces) == 1:
            return pieces[0].astype(self.dtype, copy=False)
        empty = np.empty((0, *self.shape[1:]), self.dtype)
        return np.concatenate([empty, *pieces]).astype(self.dtype, copy=False)

    def batches(self, start: int, stop: int, rows: int) -> Iterator[NDArray[Any]]:
        pieces = (
            piece
            for part, first, last in self._within(start, stop)
            for piece in part.batches(first, last, rows)
        )
        for batch in recut(pieces, rows, np.concatenate):
            yield batch.astype(self.dtype, copy=False)

    def locate(self, row: int) -> str:
        for part, first, _ in self._within(row, row + 1):
            return part.locate(first)
        return super().locate(row)

    def column(self, name: str) -> Source:
        return join([part.column(name) for part in self.parts])

    def verify(self) -> None:
        for part in self.parts:
            part.verify()

    def notes(self) -> list[str]:
        """Each once, however many of the parts say it."""
        said, n_parts = Counter(n for part in self.parts for n in part.notes()), len(self.parts)
        return [
            note if times == n_parts else f"{note} (of {times} of the {n_parts} files)"
            for note, times in said.items()
        ]

    def _within(self, start: int, stop: int) -> Iterator[tuple[Source, int, int]]:
        """The parts that hold rows start..stop-1, and which rows of theirs."""
        ends = np.cumsum([part.n_rows for part in self.parts])
        number = int(np.searchsorted(ends, start, side="right"))
        while start < stop and number < len(self.parts):
            part, end = self.parts[number], int(ends[number])
            before = end - part.n_rows
            yield part, start - before, min(stop, end) - before
            start, number = max(start, end), number + 1


def join(parts: Sequence[Source]) -> Source:
    """One source of several, which must be equally wide."""
    first = parts[0]
    for part in parts[1:]:
        if part.shape[1:] != first.shape[1:]:
            raise InputError(
                f"{part.what} has {_width(part)} and {first.what} has {_width(first)}; "
                "rows of one store come from one encoder"
            )
    if len(parts) == 1:
        return first
    return JoinedSource(
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
            f"{parts[0].what} holds {parts[0].dtype} and {other.what} holds {other.dtype}, which "
            "have no type in common; write all of them as text, or all as numbers"
        ) from error


def recut(
    pieces: Iterator[_Piece], rows: int, concatenate: Callable[[list[_Piece]], _Piece]
) -> Iterator[_Piece]:
    """The same rows in pieces of `rows`, the last perhaps smaller."""
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
    return f"{part.n_features} features" if len(part.shape) == 2 else "one value a row"
