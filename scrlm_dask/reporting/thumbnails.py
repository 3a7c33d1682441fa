"""Items of rows in a report: shortened texts, or pictures as data URIs."""

from __future__ import annotations

import base64
import warnings
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.sources.items import ItemValue

_SIDE = 72  # pixels
_MAX_CHARACTERS = 280


@dataclass(frozen=True)
class Item:
    """Item of a row in a report: a text or a picture."""

    text: str | None = None
    picture: str | None = None  # a data URI


def show_item(value: ItemValue) -> Item:
    """Convert a text, an encoded picture or an array of pixels to an item of a report."""
    if isinstance(value, str):
        return Item(text=_shorten(value))
    if isinstance(value, bytes):
        return _show_picture(value)
    return Item(picture=encode_pixels(value))


def encode_pixels(values: NDArray[Any]) -> str | None:
    """Return pixels (height, width[, channels]) as a data URI; values not in uint8 are rescaled."""
    if values.dtype != np.uint8:
        numbers = values.astype(np.float64)
        finite = numbers[np.isfinite(numbers)]
        if not len(finite):
            return None
        low, high = float(finite.min()), float(finite.max())
        scaled = (np.nan_to_num(numbers, nan=low) - low) / (high - low if high > low else 1.0)
        values = (255 * np.clip(scaled, 0.0, 1.0)).astype(np.uint8)
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[:, :, 0]
    return _encode_thumbnail(_pillow().fromarray(values))


def data_uri(png: bytes) -> str:
    """Return a PNG file as a data URI."""
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _show_picture(encoded: bytes) -> Item:
    """Return a thumbnail, or a short text if the picture is damaged or too large."""
    pillow = _pillow()
    bombs = pillow.DecompressionBombError, pillow.DecompressionBombWarning
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            with pillow.open(BytesIO(encoded)) as image:
                return Item(picture=_encode_thumbnail(image))
    except (OSError, ValueError, SyntaxError, ArithmeticError, *bombs) as error:
        return Item(text=f"unreadable picture ({type(error).__name__})")


def _encode_thumbnail(image: Any) -> str:
    thumbnail = image.convert("RGBA" if "A" in image.getbands() else "RGB")
    thumbnail.thumbnail((_SIDE, _SIDE))
    png = BytesIO()
    thumbnail.save(png, "PNG")
    return data_uri(png.getvalue())


def _pillow() -> Any:
    return import_module("PIL.Image")  # a dependency of Matplotlib, which a report requires


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_CHARACTERS else f"{line[: _MAX_CHARACTERS - 1]}…"
