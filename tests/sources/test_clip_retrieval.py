"""Folders of clip-retrieval: choice of the embeddings, and missing metadata."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from formats import write_clip

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.sources.clip_retrieval import looks_like_clip, open_clip

X = np.arange(12, dtype=np.float32).reshape(6, 2)


def test_text_embeddings_are_read_on_request(tmp_path: Path) -> None:
    folder = write_clip(tmp_path, X)[0][0]
    (tmp_path / "clip/text_emb").mkdir()
    np.save(tmp_path / "clip/text_emb/text_emb_0.npy", X[:2] + 100)
    assert looks_like_clip(folder)
    np.testing.assert_array_equal(open_clip(folder, ()).read(1, 5), X[1:5])
    np.testing.assert_array_equal(open_clip(folder, ("text_emb",)).read(0, 2), X[:2] + 100)
    with pytest.raises(InputError, match=f"(?=.*{folder})(?=.*'emb')(?=.*img_emb, text_emb)"):
        open_clip(folder, ("emb",))


def test_missing_metadata_file_is_named(tmp_path: Path) -> None:
    folder = write_clip(tmp_path, X)[0][0]
    (tmp_path / "clip/metadata/metadata_1.parquet").unlink()
    with pytest.raises(StoreError, match=r"metadata_1\.parquet"):
        open_clip(folder, ())
    for table in (tmp_path / "clip/metadata").iterdir():
        table.unlink()
    (tmp_path / "clip/metadata").rmdir()
    # metadata is optional
    with pytest.raises(InputError, match=r"(?=.*metadata)(?=.*'label')"):
        open_clip(folder, ()).column("label")
