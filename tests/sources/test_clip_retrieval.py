"""Folders of clip-retrieval: which embeddings are read, and tables that are missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from formats import write_clip

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.clip_retrieval import looks_like_clip, open_clip

X = np.arange(12, dtype=np.float32).reshape(6, 2)


def test_texts_are_read_when_asked_for(tmp_path: Path) -> None:
    folder = write_clip(tmp_path, X)[0][0]
    (tmp_path / "clip/text_emb").mkdir()
    np.save(tmp_path / "clip/text_emb/text_emb_0.npy", X[:2] + 100)
    assert looks_like_clip(folder)
    np.testing.assert_array_equal(open_clip(folder, ()).read(1, 5), X[1:5])
    np.testing.assert_array_equal(open_clip(folder, ("text_emb",)).read(0, 2), X[:2] + 100)
    with pytest.raises(InputError, match=r"no folder 'emb' \(it holds img_emb, text_emb\)"):
        open_clip(folder, ("emb",))


def test_a_missing_table_is_named_and_none_at_all_is_allowed(tmp_path: Path) -> None:
    folder = write_clip(tmp_path, X)[0][0]
    (tmp_path / "clip/metadata/metadata_1.parquet").unlink()
    with pytest.raises(StoreError, match=r"metadata_1\.parquet is missing"):
        open_clip(folder, ())
    for table in (tmp_path / "clip/metadata").iterdir():
        table.unlink()
    (tmp_path / "clip/metadata").rmdir()
    with pytest.raises(InputError, match="has no metadata, so there is no column 'label'"):
        open_clip(folder, ()).column("label")
