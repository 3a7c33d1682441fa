"""Items, one text or image per row: `open_items` for encoders, `open_shown_items` for reports.

Encoders read all items in order, as texts or as paths of images that are loaded batch by batch.
A report reads a few items by row number, and supports more kinds of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.encoders.encoder import Kind
from scrlm_dask.errors import DamagedItemError, InputError, MissingError, StoreError
from scrlm_dask.optional import import_optional
from scrlm_dask.sources.base import Source, choices
from scrlm_dask.sources.delimited import TEXT_FORMS, open_texts
from scrlm_dask.sources.image_folder import load_image, open_image_folder
from scrlm_dask.sources.parquet import ParquetSource, open_parquet_column
from scrlm_dask.sources.sharded import numeric_order
from scrlm_dask.storage.locations import locate
from scrlm_dask.storage.npy_files import read_header

ItemValue = str | bytes | NDArray[Any]  # a text, a compressed image, or the pixels of an image
_PARQUET = (".parquet", ".pq")
_PIECE_TEXTS = 1024  # texts that are decoded at a time; not a row group, because texts may be long
_SHOWN_PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_SHOWN_TEXTS = (".txt", ".md")


@dataclass(frozen=True)
class Items:
    """Items to encode: one value per row (a text, or the path of an image), and how to load it."""

    kind: Kind
    source: Source
    load: Callable[[str], Any]  # returns the item of a value; raises DamagedItemError
    ids: Source  # ids of the rows unless the user gives other ids


@dataclass(frozen=True)
class RowNumbers(Source):
    """A source of ids: the number of each row."""

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the numbers start..stop-1."""
        return np.arange(start, stop)


@dataclass(frozen=True)
class ParquetTexts(ParquetSource):
    """A column of texts; nulls are read as empty texts."""

    @property
    def _piece_rows(self) -> int:
        return _PIECE_TEXTS

    def _rows(self, batch: Any, first: int) -> NDArray[Any]:
        filled = batch.set_column(0, self.columns[0], batch.column(0).fill_null(""))
        return super()._rows(filled, first)


def open_items(path: str, column: str | None) -> Items:
    """Open the items to encode: a folder of images, or a file of texts."""
    path = _resolve_local(path)
    if not Path(path).exists():
        raise StoreError(f"the input {path} does not exist; check the path")
    is_folder = Path(path).is_dir()
    if column is not None and (is_folder or Path(path).suffix.lower() == ".txt"):
        raise InputError(f"--column cannot be used with {path}, which has no columns; omit it")
    if is_folder:
        images = open_image_folder(path)
        return Items("images", images, partial(load_image, path), images)
    texts = _open_text_file(path, column)
    ids = RowNumbers(texts.files, texts.shape, np.dtype(np.int64))
    return Items("texts", texts, load_text, ids)


def load_text(text: str) -> str:
    """Return the text; raise DamagedItemError if it is empty."""
    if not text.strip():
        raise DamagedItemError("is empty")
    return text


def _resolve_local(path: str | Path) -> str:
    location = locate(path)
    if location.is_remote:
        raise InputError(
            f"{location} is a URL, but items must be local files; copy it to a local path"
        )
    location.check_regular()
    return location.url


def _open_text_file(path: str, column: str | None) -> Source:
    suffix = Path(path).suffix.lower()
    if suffix in TEXT_FORMS:
        return open_texts(path, column)
    if suffix in _PARQUET:
        return _open_parquet_texts(path, column)
    known = ", ".join((*TEXT_FORMS, *_PARQUET))
    actual = f"suffix {suffix}" if suffix else "no suffix"
    raise InputError(
        f"{path} has {actual}, expected {known} for texts, or a folder of images; rename the file, "
        "or give the folder"
    )


def _open_parquet_texts(path: str, column: str | None) -> ParquetTexts:
    if column is None:
        raise InputError(
            f"{path} has several columns; use --column NAME to select the column of texts"
        )
    texts = open_parquet_column(path, column)
    if texts.dtype.kind != "T":
        raise InputError(
            f"column {column!r} of {path} must contain texts, got {texts.dtype}; give another "
            "--column"
        )
    return ParquetTexts(**vars(texts))


class ShownItems(Protocol):
    """Items that a report can show: one item per row, in the order of the rows."""

    def __len__(self) -> int: ...

    def read(self, rows: Iterable[int]) -> Iterator[tuple[int, ItemValue]]:
        """Yield the number and the item of each given row; the order may differ from `rows`."""


@dataclass(frozen=True)
class NpyItems:
    """An array of texts (N,), or of images (N, height, width) or (N, height, width, channels)."""

    values: NDArray[Any]

    def __len__(self) -> int:
        return len(self.values)

    def read(self, rows: Iterable[int]) -> Iterator[tuple[int, ItemValue]]:
        """Yield the number and the item of each given row, in the given order."""
        for row in rows:
            value = self.values[row]
            yield row, _to_text(value) if self.values.ndim == 1 else np.asarray(value)


@dataclass(frozen=True)
class ParquetItems:
    """Items in a column of a Parquet file: texts, or compressed images."""

    path: Path
    file: Any
    column: str

    def __len__(self) -> int:
        return int(self.file.metadata.num_rows)

    def read(self, rows: Iterable[int]) -> Iterator[tuple[int, ItemValue]]:
        """Yield the number and the item of each given row, in ascending order.

        Only row groups that contain given rows are read.
        """
        ordered, start = sorted(rows), 0
        for group in range(self.file.num_row_groups):
            stop = start + self.file.metadata.row_group(group).num_rows
            inside = [row for row in ordered if start <= row < stop]
            if inside:
                values = self._read_group(group, [row - start for row in inside])
                yield from zip(inside, map(_to_value, values), strict=True)
            start = stop

    def _read_group(self, group: int, positions: list[int]) -> list[Any]:
        pa = import_optional("pyarrow", "Parquet")
        try:
            values = self.file.read_row_group(group, columns=[self.column]).column(0)
            return [values[position].as_py() for position in positions]
        except (OSError, ValueError, pa.ArrowException) as error:
            raise StoreError(
                f"the items {self.path} cannot be read as Parquet ({error}); restore the file"
            ) from error


@dataclass(frozen=True)
class FolderItems:
    """Items in a folder: one file per row, sorted by the numbers in their names."""

    files: tuple[Path, ...]

    def __len__(self) -> int:
        return len(self.files)

    def read(self, rows: Iterable[int]) -> Iterator[tuple[int, ItemValue]]:
        """Yield the number and the content of each given row, in the given order."""
        for row in rows:
            path = self.files[row]
            try:
                data = path.read_bytes()
            except OSError as error:
                raise StoreError(f"the item {path} cannot be read ({error})") from error
            yield row, _to_text(data) if path.suffix.lower() in _SHOWN_TEXTS else data


def open_shown_items(path: str | Path, column: str | None, n_rows: int) -> ShownItems:
    """Open the items of `n_rows` rows: a .npy or Parquet file, or a folder of images or texts."""
    local = Path(_resolve_local(path))
    if not local.exists():
        raise MissingError(f"the items {local} do not exist; check the path")
    if column is not None and local.suffix != ".parquet":
        raise InputError(
            f"--items-column {column} cannot be used: the items {local} are not a Parquet file"
        )
    items: ShownItems
    if local.is_dir():
        items = _open_folder_items(local)
    elif local.suffix == ".npy":
        items = _open_npy_items(local)
    elif local.suffix == ".parquet":
        items = _open_parquet_items(local, column)
    else:
        raise InputError(f"the items {local} must be a .npy file, a .parquet file or a folder")
    if len(items) != n_rows:
        raise InputError(
            f"{local} contains {len(items):,} items, but the run has {n_rows:,} rows; give one "
            "item per row, in the order of the rows, without rows that were dropped during ingest"
        )
    return items


def _open_npy_items(path: Path) -> NpyItems:
    with path.open("rb") as file:
        read_header(file, f"the items {path}")  # rejects damaged files and pickles
    values = np.load(path, mmap_mode="r", allow_pickle=False)
    texts = values.ndim == 1 and values.dtype.kind in "US"
    channels = values.ndim == 4 and values.shape[3] in (1, 3, 4)
    if not texts and not ((values.ndim == 3 or channels) and values.dtype.kind in "uif"):
        raise InputError(
            f"the items {path} must be texts, or images of shape rows x height x width "
            f"(x 3 channels), got shape {values.shape} and dtype {values.dtype}"
        )
    return NpyItems(values)


def _open_parquet_items(path: Path, column: str | None) -> ParquetItems:
    pa = import_optional("pyarrow", "Parquet")
    try:
        file = import_optional("pyarrow.parquet", "Parquet").ParquetFile(
            path, page_checksum_verification=True
        )
    except (OSError, pa.ArrowInvalid) as error:
        raise StoreError(
            f"the items {path} cannot be read as Parquet ({error}); restore the file"
        ) from error
    schema = file.schema_arrow
    if column is None:
        shown = [field.name for field in schema if _can_be_shown(pa, field.type)]
        if not shown:
            raise InputError(
                f"the items {path} have no column of texts or images (columns: "
                f"{', '.join(schema.names)}); select one with --items-column"
            )
        column = shown[0]
    elif column not in schema.names:
        raise InputError(
            f"the items {path} have no column {column!r} (columns: "
            f"{choices(column, schema.names)}); give one of these"
        )
    return ParquetItems(path, file, column)


def _can_be_shown(pa: Any, kind: Any) -> bool:
    plain = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind)
    # Hugging Face stores images as a struct
    return bool(plain or (pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0))


def _open_folder_items(path: Path) -> FolderItems:
    suffixes = (*_SHOWN_PICTURES, *_SHOWN_TEXTS)
    names = [str(file) for file in path.iterdir() if file.suffix.lower() in suffixes]
    if not names:
        raise InputError(
            f"the folder {path} contains no items; supported suffixes are {', '.join(suffixes)}"
        )
    return FolderItems(tuple(Path(name) for name in numeric_order(names)))


def _to_value(value: Any) -> ItemValue:
    if isinstance(value, dict):
        value = value.get("bytes")
    return value if isinstance(value, bytes) else _to_text(value)


def _to_text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
