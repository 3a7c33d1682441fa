"""What encoders are given: a text or an image a row, found in a file or a folder.

An item source holds texts, or the paths of images; loading makes items of them, a batch at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import DamagedItemError, InputError, StoreError
from scrlm_dask.sources.base import Source, source_file
from scrlm_dask.sources.delimited import TEXT_FORMS, open_texts
from scrlm_dask.sources.images import load_image, open_images
from scrlm_dask.sources.parquet import ParquetSource, open_parquet_column
from scrlm_dask.storage.locations import absolute, is_remote

Kind = Literal["texts", "images"]
_PARQUET = (".parquet", ".pq")
_PIECE_TEXTS = 1024  # of a row group that are decoded at a time: texts may be long


@dataclass(frozen=True)
class Items:
    """A value a row, and how an item is made of it."""

    kind: Kind
    source: Source
    load: Callable[[str], Any]  # raises DamagedItemError
    ids: Source  # what rows are called if nobody says otherwise
    identity: dict[str, Any]  # tells later whether the items are still the same


@dataclass(frozen=True)
class RowNumbers(Source):
    """The number of each row in its source."""

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        return np.arange(start, stop)


@dataclass(frozen=True)
class ParquetTexts(ParquetSource):
    """A column of texts, of which null is the empty one."""

    @property
    def _piece_rows(self) -> int:
        return _PIECE_TEXTS

    def _rows(self, batch: Any, first: int) -> NDArray[Any]:
        filled = batch.set_column(0, self.columns[0], batch.column(0).fill_null(""))
        return super()._rows(filled, first)


def open_items(path: str, column: str | None) -> Items:
    path = absolute(path)
    if is_remote(path):
        raise InputError(f"{path} is a URL; items are read from local files, copy it here")
    if not Path(path).exists():
        raise StoreError(f"the input {path} does not exist; check the path")
    is_folder = Path(path).is_dir()
    if column is not None and (is_folder or Path(path).suffix.lower() == ".txt"):
        raise InputError(f"--column says nothing about {path}, which has no columns; leave it out")
    if is_folder:
        images, listing = open_images(path)
        return Items("images", images, partial(load_image, path), images, {"listing": listing})
    texts = _texts(path, column)
    return Items("texts", texts, load_text, _row_numbers(texts), {})


def load_text(text: str) -> str:
    if not text.strip():
        raise DamagedItemError("is empty")
    return text


def _texts(path: str, column: str | None) -> Source:
    suffix = Path(path).suffix.lower()
    if suffix in TEXT_FORMS:
        return open_texts(path, column)
    if suffix in _PARQUET:
        return _parquet(path, column)
    known = ", ".join((*TEXT_FORMS, *_PARQUET))
    raise InputError(
        f"{path} ends with {suffix or 'nothing'}; texts are read from files that end with {known}, "
        "and images from a folder: rename the file, or give the folder"
    )


def _parquet(path: str, column: str | None) -> ParquetTexts:
    if column is None:
        raise InputError(f"{path} has several columns; say which holds the texts with --column")
    found = open_parquet_column(path, column)
    if found.dtype.kind != "T":
        raise InputError(f"column {column!r} of {path} holds {found.dtype}; name one of texts")
    return ParquetTexts(**vars(found))


def _row_numbers(source: Source) -> RowNumbers:
    return RowNumbers((source_file(source.what),), source.shape, np.dtype(np.int64))
