"""Embedding from Python: settings that are rejected, and a store of hand-made features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from scrlm_dask.errors import InputError
from scrlm_dask.pipeline.embed import EmbedConfig, embed


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"batch_size": 0}, "a batch of 0 items"),
        ({"on_error": "stop"}, "on_error is 'stop'; it is refuse or skip"),
        ({"limit": 0}, "limit is 0"),
        ({"dtype": "int8"}, "cannot be stored as int8"),
    ],
)
def test_settings_that_are_rejected(config: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        EmbedConfig("hashing", **config)


def test_items_that_are_left_out_are_listed(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("a\n\nb\n")
    notes: list[Any] = []
    config = EmbedConfig("hashing:4", on_error="skip")
    found = embed(str(tmp_path / "x.txt"), tmp_path / "out", config, listener=notes.append)
    assert (found.n_rows, found.n_features, found.n_dropped) == (2, 4, 1)
    group = zarr.open_group(tmp_path / "out", mode="r")
    assert group["ids"][:].tolist() == [0, 2]
    np.testing.assert_allclose(np.linalg.norm(group["features"][:], axis=1), 1.0)
    assert notes[-1].text.endswith(f"left out: line 2 of {tmp_path}/x.txt")
