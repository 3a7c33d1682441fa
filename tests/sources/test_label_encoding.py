"""Labels that are texts, piece by piece."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.label_encoding import encode_labels, merge_names, names_among
from scrlm_dask.sources.vector_files import open_npy

TEXTS = ["b", "a", "-1", "c", "a"]


@pytest.mark.parametrize("dtype", ["U3", "S3"])
def test_every_piece_has_the_same_numbers(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "y.npy", np.array(TEXTS, dtype))
    texts = open_npy(str(tmp_path / "y.npy"))
    assert names_among(texts.read(0, 5), 0, texts) == {"a", "b", "c"}
    labels = encode_labels(texts, ("a", "b", "c"))
    assert (labels.shape, labels.dtype, labels.what) == ((5,), np.int32, texts.what)
    assert labels.read(0, 5).tolist() == [1, 0, -1, 2, 0]
    assert [piece.tolist() for piece in labels.batches(1, 5, 2)] == [[0, -1], [2, 0]]
    assert labels.read(2, 2).tolist() == []


def test_a_text_that_was_not_there_before(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.array(TEXTS))
    labels = encode_labels(open_npy(str(tmp_path / "y.npy")), ("a", "b"))
    with pytest.raises(StoreError, match=r"y\.npy hold 'c' now, and did not"):
        labels.read(0, 5)


def test_the_row_of_a_doubtful_text_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.array(["a", "", "a"]))
    texts = open_npy(str(tmp_path / "y.npy"))
    with pytest.raises(InputError, match=r"row 101 of .*y\.npy has the label ''"):
        names_among(texts.read(0, 3), 100, texts)


def test_too_many_names() -> None:
    many = frozenset(str(i) for i in range(60_000))
    assert len(merge_names(many, many, "y.npy")) == 60_000
    with pytest.raises(InputError, match=r"the labels y\.npy are more than 100000 .* --ids"):
        merge_names(many, frozenset(f"x{name}" for name in many), "y.npy")
