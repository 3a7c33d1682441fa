"""Text labels are encoded as integers, in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources import label_encoding
from scrlm_dask.sources.label_encoding import encode_labels, merge_names, names_among
from scrlm_dask.sources.vector_files import open_npy

TEXTS = ["b", "a", "-1", "c", "a"]


@pytest.mark.parametrize("dtype", ["U3", "S3"])
def test_all_pieces_use_the_same_codes(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "y.npy", np.array(TEXTS, dtype))
    texts = open_npy(str(tmp_path / "y.npy"))
    assert names_among(texts.read(0, 5), 0, texts) == {"a", "b", "c"}
    labels = encode_labels(texts, ("a", "b", "c"))
    assert (labels.shape, labels.dtype, labels.what) == ((5,), np.int32, texts.what)
    assert labels.read(0, 5).tolist() == [1, 0, -1, 2, 0]
    assert [piece.tolist() for piece in labels.batches(1, 5, 2)] == [[0, -1], [2, 0]]
    assert labels.read(2, 2).tolist() == []


def test_new_label_is_rejected(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.array(TEXTS))
    labels = encode_labels(open_npy(str(tmp_path / "y.npy")), ("a", "b"))
    with pytest.raises(StoreError, match=r"(?=.*y\.npy)(?=.*'c')"):
        labels.read(0, 5)


def test_row_of_an_empty_label_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "y.npy", np.array(["a", "", "a"]))
    texts = open_npy(str(tmp_path / "y.npy"))
    with pytest.raises(InputError, match=r"(?=.*\brow 101\b)(?=.*y\.npy)(?=.*'')(?=.*-1\b)"):
        names_among(texts.read(0, 3), 100, texts)


def test_too_many_labels() -> None:
    many = frozenset(str(i) for i in range(60_000))
    assert len(merge_names(many, many, "y.npy")) == 60_000
    with pytest.raises(InputError, match=r"(?=.*y\.npy)(?=.*100,?000)(?=.*--ids)"):
        merge_names(many, frozenset(f"x{name}" for name in many), "y.npy")


def test_names_are_numbered_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 100 000 names, numbering them for each block took longer than writing the block."""
    np.save(tmp_path / "y.npy", np.array(TEXTS))
    calls = []

    def counted(values: Any) -> Iterator[tuple[int, str]]:
        calls.append(values)
        return enumerate(values)

    monkeypatch.setattr(label_encoding, "enumerate", counted, raising=False)
    labels = encode_labels(open_npy(str(tmp_path / "y.npy")), ("a", "b", "c"))
    assert [piece.tolist() for piece in labels.batches(0, 5, 1)] == [[1], [0], [-1], [2], [0]]
    assert calls == [("a", "b", "c")]
