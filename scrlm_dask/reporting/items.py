"""What rows stand for: a text or a picture each, of which a report shows a few."""

from __future__ import annotations

import base64
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.errors import InputError, MissingError, StoreError
from scrlm_dask.optional import import_optional
from scrlm_dask.sources.base import choices
from scrlm_dask.sources.sharded import numeric_order
from scrlm_dask.storage.locations import absolute, is_remote
from scrlm_dask.storage.npy_files import read_header

_THUMBNAIL = 72  # pixels
_MOST_TEXT = 280
_PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_TEXTS = (".txt", ".md")


@dataclass(frozen=True)
class Item:
    """One of the two."""

    text: str | None = None
    picture: str | None = None  # a data URI


class Items(Protocol):
    """An item a row, in the order of the rows."""

    def __len__(self) -> int: ...

    def get(self, rows: Iterable[int]) -> Mapping[int, Item]: ...


@dataclass(frozen=True)
class NpyItems:
    """Texts (N,), or pictures (N, height, width) or (N, height, width, colours)."""

    values: NDArray[Any]

    def __len__(self) -> int:
        return len(self.values)

    def get(self, rows: Iterable[int]) -> Mapping[int, Item]:
        if self.values.ndim == 1:
            return {row: Item(text=_short(self.values[row])) for row in rows}
        return {row: Item(picture=picture_of(np.asarray(self.values[row]))) for row in rows}


@dataclass(frozen=True)
class ParquetItems:
    """A column of texts, or of encoded pictures."""

    path: Path
    file: Any
    column: str

    def __len__(self) -> int:
        return int(self.file.metadata.num_rows)

    def get(self, rows: Iterable[int]) -> Mapping[int, Item]:
        """Only row groups that hold one of the rows are read."""
        found: dict[int, Item] = {}
        wanted, start = sorted(rows), 0
        for group in range(self.file.num_row_groups):
            stop = start + self.file.metadata.row_group(group).num_rows
            here = [row for row in wanted if start <= row < stop]
            if here:
                values = self._read(group, [row - start for row in here])
                found |= {row: _item(value) for row, value in zip(here, values, strict=True)}
            start = stop
        return found

    def _read(self, group: int, places: list[int]) -> list[Any]:
        pa = import_optional("pyarrow", "Parquet")
        try:
            values = self.file.read_row_group(group, columns=[self.column]).column(0)
            return [values[place].as_py() for place in places]
        except (OSError, ValueError, pa.ArrowException) as error:
            raise StoreError(f"the items {self.path} are damaged ({error})") from error


@dataclass(frozen=True)
class FolderItems:
    """A file a row, in numeric order."""

    files: tuple[Path, ...]

    def __len__(self) -> int:
        return len(self.files)

    def get(self, rows: Iterable[int]) -> Mapping[int, Item]:
        return {row: self._read(self.files[row]) for row in rows}

    def _read(self, path: Path) -> Item:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise StoreError(f"the item {path} cannot be read ({error})") from error
        is_text = path.suffix.lower() in _TEXTS
        return Item(text=_short(content)) if is_text else _picture_item(content)


def open_items(path: str | Path, column: str | None, n_rows: int) -> Items:
    """The items of so many rows: a .npy or Parquet file, or a folder of pictures or texts."""
    path = absolute(path)
    if is_remote(path):
        raise InputError(f"{path} is a URL; items are read from local files, copy it here")
    place = Path(path)
    if not place.exists():
        raise MissingError(f"the items {path} do not exist; check the path")
    if column is not None and place.suffix != ".parquet":
        raise InputError(f"a column is named, but the items {path} are no Parquet file")
    items: Items
    if place.is_dir():
        items = _folder(place)
    elif place.suffix == ".npy":
        items = _npy(place)
    elif place.suffix == ".parquet":
        items = _parquet(place, column)
    else:
        raise InputError(f"the items {path} are neither .npy, .parquet nor a folder; give one")
    if len(items) != n_rows:
        raise InputError(
            f"the items {path} are {len(items):,} and the run has {n_rows:,} rows; give one item a "
            "row, in the order of the rows"
        )
    return items


def picture_of(values: NDArray[Any]) -> str | None:
    """A picture (height, width[, colours]) as a data URI; floats are spread over the greys."""
    if values.dtype != np.uint8:
        numbers = values.astype(np.float64)
        finite = numbers[np.isfinite(numbers)]
        if not len(finite):
            return None
        low, high = float(finite.min()), float(finite.max())
        spread = (np.nan_to_num(numbers, nan=low) - low) / (high - low if high > low else 1.0)
        values = (255 * np.clip(spread, 0.0, 1.0)).astype(np.uint8)
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[:, :, 0]
    return _thumbnail(_pillow().fromarray(values))


def _npy(path: Path) -> NpyItems:
    with path.open("rb") as file:
        read_header(file, f"the items {path}")  # says what is wrong with it, pickles among it
    values = np.load(path, mmap_mode="r", allow_pickle=False)
    texts = values.ndim == 1 and values.dtype.kind in "US"
    colours = values.ndim == 4 and values.shape[3] in (1, 3, 4)
    if not texts and not ((values.ndim == 3 or colours) and values.dtype.kind in "uif"):
        raise InputError(
            f"the items {path} have the shape {values.shape} and hold {values.dtype}; give texts, "
            "or pictures as rows x height x width (x 3 colours)"
        )
    return NpyItems(values)


def _parquet(path: Path, column: str | None) -> ParquetItems:
    pa = import_optional("pyarrow", "Parquet")
    try:
        file = import_optional("pyarrow.parquet", "Parquet").ParquetFile(
            path, page_checksum_verification=True
        )
    except (OSError, pa.ArrowInvalid) as error:
        raise StoreError(f"the items {path} cannot be read as Parquet ({error})") from error
    schema = file.schema_arrow
    if column is None:
        shown = [field.name for field in schema if _can_be_shown(pa, field.type)]
        if not shown:
            raise InputError(
                f"no column of the items {path} holds texts or pictures (it has "
                f"{', '.join(schema.names)}); name one with --items-column"
            )
        column = shown[0]
    elif column not in schema.names:
        raise InputError(
            f"the items {path} have no column {column!r}; take one of "
            f"{choices(column, schema.names)}"
        )
    return ParquetItems(path, file, column)


def _can_be_shown(pa: Any, kind: Any) -> bool:
    plain = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind)
    # pictures as Hugging Face keeps them
    return bool(plain or (pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0))


def _folder(path: Path) -> FolderItems:
    names = [str(f) for f in path.iterdir() if f.suffix.lower() in (*_PICTURES, *_TEXTS)]
    if not names:
        raise InputError(
            f"the folder {path} holds no items; they end in {', '.join((*_PICTURES, *_TEXTS))}"
        )
    return FolderItems(tuple(Path(name) for name in numeric_order(names)))


def _item(value: Any) -> Item:
    if isinstance(value, dict):
        value = value.get("bytes")
    return _picture_item(value) if isinstance(value, bytes) else Item(text=_short(value))


def _picture_item(content: bytes) -> Item:
    """One picture that cannot be read, or fills the memory, is no reason to have no report."""
    pillow = _pillow()
    bombs = pillow.DecompressionBombError, pillow.DecompressionBombWarning
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            with pillow.open(BytesIO(content)) as image:
                return Item(picture=_thumbnail(image))
    except (OSError, ValueError, SyntaxError, ArithmeticError, *bombs) as error:
        return Item(text=f"not a picture ({type(error).__name__})")


def _thumbnail(image: Any) -> str:
    shown = image.convert("RGBA" if "A" in image.getbands() else "RGB")
    shown.thumbnail((_THUMBNAIL, _THUMBNAIL))
    content = BytesIO()
    shown.save(content, "PNG")
    return data_uri(content.getvalue())


def data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _pillow() -> Any:
    return import_module("PIL.Image")  # Matplotlib, which a report needs, brings it


def _short(value: Any) -> str:
    text = " ".join(
        (value.decode(errors="replace") if isinstance(value, bytes) else str(value)).split()
    )
    return text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT - 1]}…"
