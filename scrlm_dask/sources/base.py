"""The interface of sources, and checks that formats share."""

from __future__ import annotations

import os
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, ScrlmError, StoreError
from scrlm_dask.storage.manifest import SourceFile
from scrlm_dask.text import first_line

TEXT: Any = np.dtypes.StringDType()
_CLOSE, _FEW_NAMED, _MOST_NAMED = 3, 5, 10


@dataclass(frozen=True)
class Source(ABC):
    """Rows in files: a table (rows, features), or one value per row with the shape (rows,)."""

    files: tuple[SourceFile, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def n_rows(self) -> int:
        return self.shape[0]

    @property
    def n_features(self) -> int:
        return self.shape[1]

    @property
    def what(self) -> str:
        """Return the name of the source in messages."""
        return self.files[0].path

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the names of the columns that are read, if they have names."""
        return ()

    @property
    def unit_rows(self) -> int:
        """Return the rows that are decoded at once: a row group, a chunk, a deflated file."""
        return 1

    @property
    def streams(self) -> bool:
        """Return whether `batches` reads each unit once, however many batches it becomes."""
        return False

    @property
    def is_here(self) -> bool:
        """Return whether only this process reads it: a model is not sent to workers."""
        return False

    @abstractmethod
    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows start..stop-1 in this machine's byte order."""

    def batches(self, start: int, stop: int, rows: int) -> Iterator[NDArray[Any]]:
        """Yield rows start..stop-1, `rows` at a time."""
        for first in range(start, stop, rows):
            yield self.read(first, min(first + rows, stop))

    def locate(self, row: int) -> str:
        """Return where a row is, for messages."""
        return f"row {row} of {self.what}"

    def column(self, name: str) -> Source:
        """Open another value of each row, such as its label."""
        raise InputError(
            f"{self.what} has no columns beside its features, so there is no {name!r}; give a file"
        )

    def verify(self) -> None:
        """Check the whole file, such as a checksum over all of it."""
        return

    def notes(self) -> list[str]:
        """Return what the user should know before this is read."""
        return []


@dataclass(frozen=True)
class MappedSource(Source):
    """Values that are computed from the rows of another source, piece by piece."""

    given: Source

    @property
    def columns(self) -> tuple[str, ...]:
        return self.given.columns

    def locate(self, row: int) -> str:
        return self.given.locate(row)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        return self._map(self.given.read(start, stop), start)

    def batches(self, start: int, stop: int, rows: int) -> Iterator[NDArray[Any]]:
        pieces = self.given.batches(start, stop, rows)
        for first, piece in zip(range(start, stop, rows), pieces, strict=True):
            yield self._map(piece, first)

    @abstractmethod
    def _map(self, values: NDArray[Any], first: int) -> NDArray[Any]:
        """Return what the given values become; `first` is the number of their first row."""


def source_file(path: str) -> SourceFile:
    return SourceFile(path, os.stat(path).st_size)  # noqa: PTH116 - a str comes and a str stays


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype if dtype.kind == "T" else dtype.newbyteorder("=")


def memory_of(values: NDArray[Any]) -> memoryview:
    """Return the array's memory as bytes, to read into."""
    return values.reshape(-1).view(np.uint8).data


def table_bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the bytes of a claimed shape as a Python integer: a header can claim anything."""
    return prod(int(n) for n in shape) * dtype.itemsize


def choices(name: str, names: Sequence[str]) -> str:
    """List the names that exist instead of a missing one, the most similar first."""
    folded = {other.casefold(): other for other in names}
    close = [folded[found] for found in get_close_matches(name.casefold(), folded, _CLOSE)]
    shown = [*close, *(other for other in names if other not in close)][:_MOST_NAMED]
    more = f", ... ({len(names)} in all)" if len(names) > len(shown) else ""
    return f"{', '.join(shown) or 'nothing'}{more}"


def only_table(what: str, tables: Sequence[str], names: Sequence[str]) -> str:
    """Return the only table among the arrays called `names`."""
    if len(tables) != 1:
        listed = ", ".join(sorted(tables or names)) or "nothing"
        raise InputError(f"{what} holds {len(tables)} tables ({listed}); say which with --dataset")
    return tables[0]


def check_column(
    name: str, names: Sequence[str], what: str, hint: str = " (labels and ids may also be a file)"
) -> None:
    if name not in names:
        raise InputError(
            f"{what} has no column {name!r} (it has {choices(name, names)}); name one of them{hint}"
        )


def refuse_others(what: str, found: Mapping[str, str]) -> None:
    """Reject columns that are not numbers, given by name and content: none is lost silently."""
    if not found:
        return
    name, holds = next(iter(found.items()))
    more = f" (and {len(found) - 1} more are no numbers)" if len(found) > 1 else ""
    words = [f"--exclude {shlex.quote(other)}" for other in list(found)[:_FEW_NAMED]]
    words += ["..."] if len(found) > _FEW_NAMED else []
    raise InputError(
        f"column {name!r} of {what} holds {holds}{more}; features are numbers: leave it out with "
        f"{' '.join(words)}, keep it as --ids or --labels, or name the features with --column"
    )


def as_texts(values: NDArray[Any]) -> NDArray[Any]:
    """Convert texts of any kind to NumPy's own; bytes are UTF-8."""
    if values.dtype.kind == "S":
        return np.char.decode(values, "utf-8").astype(TEXT)
    return values.astype(TEXT, copy=False)


def holds_texts(source: Source) -> bool:
    return source.dtype.kind in "USTO"


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Name the file and the way out, whatever a library raises about a broken file."""
    try:
        yield
    except (ScrlmError, MemoryError):
        raise
    except Exception as error:
        raise StoreError(
            f"{what} cannot be read ({first_line(error)}); restore the file"
        ) from error
