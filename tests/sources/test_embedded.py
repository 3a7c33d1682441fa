"""Items as features: batches, items that cannot be loaded, and encoders that change their mind."""

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
    """The length of each text, and the number of texts in its batch."""
    return [[len(text), len(texts)] for text in texts]


def test_empty_items_are_rows_of_nan(tmp_path: Path) -> None:
    items = write_lines(tmp_path, "", "a", "bb", "", "ccc")
    source = open_embedded(items, Encoder("mine", "me", lengths), 5, None, 2, skip=True)
    assert (source.shape, source.dtype) == ((5, 2), np.float32)
    nan = [np.nan, np.nan]
    # batches of two items begin with row 0, also those of which one cannot be loaded
    np.testing.assert_array_equal(source.read(0, 5), [nan, [1, 1], [2, 1], nan, [3, 1]])
    np.testing.assert_array_equal(next(source.batches(1, 5, 2)), [[1, 2], [2, 2]])
    assert np.isnan(open_item_check(items).read(0, 5)[:, 0]).tolist() == [1, 0, 0, 1, 0]


def test_an_empty_item_is_an_error_unless_skipped(tmp_path: Path) -> None:
    items = write_lines(tmp_path, "a", "", "b")
    source = open_embedded(items, Encoder("mine", "me", lengths), 3, "float16", 2, skip=False)
    assert source.dtype == np.float16
    with pytest.raises(StoreError, match=r"line 2 of .*x\.txt is empty; .*--on-error skip"):
        source.read(0, 3)
    with pytest.raises(InputError, match=r"none of the 1 item\(s\)"):
        open_embedded(
            write_lines(tmp_path, "", "a"), Encoder("mine", "me", lengths), 1, None, 2, skip=True
        )


def test_features_must_stay_finite_and_equally_many(tmp_path: Path) -> None:
    items = write_lines(tmp_path, "a", "bb")
    for encode, words in (
        (lambda texts: [[1.0] * len(texts[-1])] * len(texts), "gave 2 features for line 2"),
        (lambda texts: [[np.inf if text == "bb" else 1.0] for text in texts], "for line 2 of"),
    ):
        source = open_embedded(items, Encoder("mine", "me", encode), 2, None, 1, skip=False)
        with pytest.raises(InputError, match=words):
            source.read(0, 2)
