"""Items of rows as text or thumbnails in a report."""

from __future__ import annotations

import base64
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from scrlm_dask.reporting.thumbnails import Item, show_item


@pytest.mark.parametrize("times", [1.5, 3])
def test_oversized_images_are_not_decoded(monkeypatch, times: float) -> None:
    """Pillow warns above its limit, and raises above twice the limit."""
    content = BytesIO()
    Image.new("1", (100, 100)).save(content, "PNG")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", int(100 * 100 / times))
    item = show_item(content.getvalue())
    assert item.picture is None
    assert "DecompressionBomb" in str(item.text)


def pixels(item: Item) -> np.ndarray:
    assert item.picture is not None
    kind, content = item.picture.split(",")
    assert kind == "data:image/png;base64"
    with Image.open(BytesIO(base64.b64decode(content))) as image:
        return np.asarray(image.convert("RGB"))


def test_numbers_are_scaled_to_grey_levels() -> None:
    shown = pixels(show_item(np.array([[-1.0, 0.0], [1.0, np.nan]])))
    assert shown[:, :, 0].tolist() == [[0, 127], [255, 0]]
    assert (shown == shown[:, :, :1]).all()
    assert pixels(show_item(np.full((2, 2), 5.0))).max() == 0  # all values are equal
    assert show_item(np.full((2, 2), np.nan)).picture is None


def test_uint8_values_are_pixels() -> None:
    colours = np.array([[[9, 99, 199], [0, 1, 2]]], np.uint8)
    assert pixels(show_item(colours)).tolist() == colours.tolist()
    one = np.array([[[7], [8]]], np.uint8)
    assert pixels(show_item(one))[0, :, 0].tolist() == [7, 8]


def test_large_images_are_scaled_down() -> None:
    content = BytesIO()
    Image.new("RGB", (288, 144), (9, 99, 199)).save(content, "PNG")
    shown = pixels(show_item(content.getvalue()))
    assert shown.shape == (36, 72, 3)
    assert (shown == [9, 99, 199]).all()


def test_invalid_image() -> None:
    found = show_item(b"no picture")
    assert found.picture is None
    assert "UnidentifiedImageError" in str(found.text)


def test_texts_are_shortened_to_one_line() -> None:
    assert show_item(" two\n lines\t") == Item(text="two lines")
    assert show_item("x" * 280).text == "x" * 280
    assert show_item("x" * 281).text == "x" * 279 + "…"
