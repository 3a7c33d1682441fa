"""The interface of sources, and checks that all formats share."""

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
from scrlm_dask.storage.feature_store import StoredOrigins
from scrlm_dask.storage.locations import locate
from scrlm_dask.storage.manifest import SourceFile
from scrlm_dask.storage.traces import Input, files_digest
from scrlm_dask.text import first_line, quoted, shorten

TEXT: Any = np.dtypes.StringDType()
INPUT = "the source"  # name in messages
_CLOSE, _FEW_NAMED, _MOST_NAMED = 3, 5, 10


@dataclass(frozen=True)
class Source(ABC):
    """Rows in files: a table of shape (rows, features), or one value per row, shape (rows,)."""

    files: tuple[SourceFile, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.shape[0]

    @property
    def n_features(self) -> int:
        """Number of features of a table."""
        return self.shape[1]

    @property
    def what(self) -> str:
        """Name of the source in messages."""
        return self.files[0].path

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that are read; empty if they have no names."""
        return ()

    @property
    def unit_rows(self) -> int:
        """Number of rows that can only be decoded together, such as a row group or a chunk."""
        return 1

    @property
    def streams(self) -> bool:
        """Return whether `batches` decodes each unit of `unit_rows` rows only once."""
        return False

    @property
    def is_here(self) -> bool:
        """Return whether only this process can read the source; workers have no encoder models."""
        return False

    @abstractmethod
    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return rows start..stop-1 in native byte order."""

    def batches(self, start: int, stop: int, rows: int) -> Iterator[NDArray[Any]]:
        """Yield rows start..stop-1, `rows` at a time."""
        for first in range(start, stop, rows):
            yield self.read(first, min(first + rows, stop))

    def locate(self, row: int) -> str:
        """Return a description of a row's position, for messages."""
        return f"row {row} of {self.what}"

    def segments(self) -> list[tuple[SourceFile, int]]:
        """Return the files that contain the rows, in order, and the number of rows of each."""
        return [(self.files[0], self.n_rows)]

    def stored_origins(self) -> list[StoredOrigins | None]:
        """Return, per segment, the source files of its rows if it is a copy that records them."""
        return [None] * len(self.segments())

    @property
    def is_shuffled(self) -> bool:
        """Return whether the rows are copies of rows that an earlier ingest has shuffled."""
        return False

    @property
    def value_names(self) -> tuple[str, ...]:
        """Names of the labels and ids of a features store, which are not copied with its rows."""
        return ()

    def inputs(self) -> tuple[Input, ...]:
        """Return the files with their digests, which show later whether a file has changed."""
        return tuple(Input(INPUT, locate(f.path), f.digest, files_digest) for f in self.files)

    def column(self, name: str) -> Source:
        """Open another column of the same rows, such as labels or ids."""
        raise InputError(
            f"column {name!r} not found: {self.what} contains only features; give a file instead"
        )

    def verify(self) -> None:
        """Check the integrity of the whole file, if it has a checksum."""
        return

    def notes(self) -> list[str]:
        """Return notes for the user, to be shown before the source is read."""
        return []


@dataclass(frozen=True)
class MappedSource(Source):
    """Values that are computed from the rows of another source, batch by batch."""

    given: Source

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the underlying source."""
        return self.given.columns

    def segments(self) -> list[tuple[SourceFile, int]]:
        """Return the files of the underlying source and the number of rows of each."""
        return self.given.segments()

    def locate(self, row: int) -> str:
        """Return the position of a row in the underlying source."""
        return self.given.locate(row)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Return the values computed from rows start..stop-1."""
        return self._map(self.given.read(start, stop), start)

    def batches(self, start: int, stop: int, rows: int) -> Iterator[NDArray[Any]]:
        """Yield the values computed from rows start..stop-1, `rows` at a time."""
        pieces = self.given.batches(start, stop, rows)
        for first, piece in zip(range(start, stop, rows), pieces, strict=True):
            yield self._map(piece, first)

    @abstractmethod
    def _map(self, values: NDArray[Any], first: int) -> NDArray[Any]:
        """Compute values from rows of the underlying source; `first` is the number of the first."""


def source_file(path: str) -> SourceFile:
    """Return the path, the size and the digest of a file; call this before the file is read."""
    locate(path).check_regular()
    n_bytes = os.stat(path).st_size  # noqa: PTH116 - the path must stay a str
    return SourceFile(path, n_bytes, files_digest(path))


def native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype in native byte order; strings have no byte order."""
    return dtype if dtype.kind == "T" else dtype.newbyteorder("=")


def memory_of(values: NDArray[Any]) -> memoryview:
    """Return a writable view of the array's memory as bytes."""
    return values.reshape(-1).view(np.uint8).data


def table_bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the size of an array in bytes, without overflow even for a damaged header's shape."""
    return prod(int(n) for n in shape) * dtype.itemsize


def choices(name: str, names: Sequence[str]) -> str:
    """Return a list of the available names for a message that `name` is missing.

    The names that are most similar to `name` come first.
    """
    folded = {other.casefold(): other for other in names}
    close = [folded[match] for match in get_close_matches(name.casefold(), folded, _CLOSE)]
    shown = [*close, *(other for other in names if other not in close)][:_MOST_NAMED]
    more = f", ... ({len(names)} in all)" if len(names) > len(shown) else ""
    return f"{', '.join(map(shorten, shown)) or 'nothing'}{more}"


def only_table(what: str, tables: Sequence[str], names: Sequence[str]) -> str:
    """Return the only name in `tables`; raise if there are none or several.

    `names` are the names of all arrays in the file, for the message.
    """
    if len(tables) != 1:
        listed = ", ".join(sorted(tables or names)) or "nothing"
        raise InputError(
            f"{what} contains {len(tables)} tables ({listed}); use --dataset NAME to select one"
        )
    return tables[0]


def check_column(
    name: str, names: Sequence[str], what: str, hint: str = " (labels and ids may also be a file)"
) -> None:
    """Raise unless `names` contains the column `name`."""
    if name not in names:
        raise InputError(
            f"{what} has no column {name!r} (it has {choices(name, names)}); give one of these"
            f"{hint}"
        )


def reject_non_numeric(what: str, columns: Mapping[str, str]) -> None:
    """Raise unless `columns` is empty: it maps the names of non-numeric columns to their content.

    The user must exclude such columns explicitly, so that no column is dropped silently.
    """
    if not columns:
        return
    name, content = next(iter(columns.items()))
    more = f" (and {len(columns) - 1} more are not numeric)" if len(columns) > 1 else ""
    options = [f"--exclude {shorten(shlex.quote(other))}" for other in list(columns)[:_FEW_NAMED]]
    options += ["..."] if len(columns) > _FEW_NAMED else []
    raise InputError(
        f"column {quoted(name)} of {what} contains {content}{more}, but features must be numbers; "
        f"exclude it with {' '.join(options)}, use it as --ids or --labels, or select the features "
        "with --column"
    )


def as_texts(values: NDArray[Any]) -> NDArray[Any]:
    """Convert strings of any dtype to NumPy's StringDType; bytes are decoded as UTF-8."""
    if values.dtype.kind == "S":
        return np.char.decode(values, "utf-8").astype(TEXT)
    return values.astype(TEXT, copy=False)


def holds_texts(source: Source) -> bool:
    """Return whether the values of a source are strings."""
    return source.dtype.kind in "USTO"


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Convert errors of libraries about damaged files to StoreError; `what` names the file."""
    try:
        yield
    except (ScrlmError, MemoryError):
        raise
    except Exception as error:
        raise StoreError(
            f"{what} cannot be read ({first_line(error)}); restore the file"
        ) from error
