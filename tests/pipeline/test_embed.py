"""Embedding from Python: rejected settings and skipped items."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from messages import expecting

from scrlm_dask.errors import InputError
from scrlm_dask.pipeline.embed import EmbedConfig, embed


@pytest.mark.parametrize(
    ("config", "pattern"),
    [
        ({"batch_size": 0}, r"(?=.*batch)(?=.*\b0\b)"),
        ({"on_error": "stop"}, expecting("on_error", "'stop'", "refuse", "skip")),
        ({"limit": 0}, expecting("limit", 0, 1)),
        ({"dtype": "int8"}, expecting("int8", "float16", "float32")),
    ],
)
def test_rejected_settings(config: Any, pattern: str) -> None:
    with pytest.raises(InputError, match=pattern):
        EmbedConfig("hashing", **config)


def test_skipped_items_are_listed(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("a\n\nb\n")
    notes: list[Any] = []
    config = EmbedConfig("hashing:4", on_error="skip")
    found = embed(str(tmp_path / "x.txt"), tmp_path / "out", config, listener=notes.append)
    assert (found.n_rows, found.n_features, found.n_dropped) == (2, 4, 1)
    group = zarr.open_group(tmp_path / "out", mode="r")
    assert group["ids"][:].tolist() == [0, 2]
    np.testing.assert_allclose(np.linalg.norm(group["features"][:], axis=1), 1.0)
    assert re.search(expecting(1, "line 2", tmp_path / "x.txt"), notes[-1].text)
