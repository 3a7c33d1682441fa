"""Embedding from Python: rejected settings and skipped items."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from messages import expecting
from PIL import Image

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.events import BlockDone, Note
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
    assert not any("NaN" in note.text for note in notes if isinstance(note, Note))


@pytest.mark.parametrize("kind", ["images", "texts"])
def test_items_that_change_between_attempts(tmp_path: Path, kind: str) -> None:
    source = tmp_path / ("photos" if kind == "images" else "x.txt")
    if kind == "images":
        source.mkdir()
        for number in range(4):
            Image.new("L", (4, 4), number + 1).save(source / f"{number}.png")
    else:
        source.write_text("a\nb\nc\nd\n")
    encoder = "pixels:4" if kind == "images" else "hashing:4"
    given = (source, tmp_path / "out", EmbedConfig(encoder, chunk_bytes=1))
    with pytest.raises(StoppedError):
        embed(*given, listener=stop)
    changed = source / "1.png" if kind == "images" else source
    before = changed.stat().st_mtime_ns
    os.utime(changed, ns=(1, 1))
    with pytest.raises(StoreError, match=expecting(source, "--overwrite")):
        embed(*given)
    os.utime(changed, ns=(before, before))
    assert embed(*given).kept_blocks == 1


def test_output_in_the_folder_of_images(tmp_path: Path) -> None:
    Image.new("L", (4, 4), 1).save(tmp_path / "1.png")
    assert embed(tmp_path, tmp_path / "out", EmbedConfig("pixels:4")).n_rows == 1


class StoppedError(Exception):
    """Raised by a listener."""


def stop(event: Any) -> None:
    if isinstance(event, BlockDone):
        raise StoppedError
