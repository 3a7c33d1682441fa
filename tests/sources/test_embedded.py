"""Encoded items as features: batches, damaged items, and inconsistent output of encoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scrlm_dask.encoders.encoder import Encoder
from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.embedded import open_embedded, open_item_check
from scrlm_dask.sources.items import Items, open_items


def write_lines(folder: Path, *lines: str) -> Items:
    (folder / "x.txt").write_text("".join(f"{line}\n" for line in lines))
    return open_items(str(folder / "x.txt"), None)


def lengths(texts: list[Any]) -> list[list[float]]:
    """Encode each text as its length and the size of its batch."""
    return [[len(text), len(texts)] for text in texts]


def test_empty_items_are_rows_of_nan(tmp_path: Path) -> None:
    items = write_lines(tmp_path, "", "a", "bb", "", "ccc")
    source = open_embedded(items, Encoder("mine", "me", lengths), 5, None, 2, skip=True)
    assert (source.shape, source.dtype) == ((5, 2), np.float32)
    nan = [np.nan, np.nan]
    # batches of two items start at row 0, even if one of the two cannot be loaded
    np.testing.assert_array_equal(source.read(0, 5), [nan, [1, 1], [2, 1], nan, [3, 1]])
    np.testing.assert_array_equal(next(source.batches(1, 5, 2)), [[1, 2], [2, 2]])
    assert np.isnan(open_item_check(items).read(0, 5)[:, 0]).tolist() == [1, 0, 0, 1, 0]


def test_empty_item_is_an_error_unless_skipped(tmp_path: Path) -> None:
    items = write_lines(tmp_path, "a", "", "b")
    source = open_embedded(items, Encoder("mine", "me", lengths), 3, "float16", 2, skip=False)
    assert source.dtype == np.float16
    with pytest.raises(StoreError, match=r"(?=.*\bline 2\b)(?=.*x\.txt)(?=.*--on-error skip)"):
        source.read(0, 3)
    with pytest.raises(InputError, match=r"(?=.*\b1\b)(?=.*x\.txt)"):
        open_embedded(
            write_lines(tmp_path, "", "a"), Encoder("mine", "me", lengths), 1, None, 2, skip=True
        )


def test_features_must_be_finite_and_of_constant_number(tmp_path: Path) -> None:
    items = write_lines(tmp_path, "a", "bb")
    for encode, fact in (
        (lambda texts: [[1.0] * len(texts[-1])] * len(texts), r"\b2 features\b"),
        (lambda texts: [[np.inf if text == "bb" else 1.0] for text in texts], r"\bfloat32\b"),
    ):
        source = open_embedded(items, Encoder("mine", "me", encode), 2, None, 1, skip=False)
        with pytest.raises(InputError, match=rf"(?=.*\bmine\b)(?=.*\bline 2\b)(?=.*{fact})"):
            source.read(0, 2)
