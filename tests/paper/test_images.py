"""Experiments on images: identity of the rows, and images of clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from scrlm_dask.kernels.distances.preprocessing import fit_map
from scrlm_dask.paper.images import Labelled, define_images
from scrlm_dask.pipeline.stores import write_features


def test_replaced_rows_are_another_experiment(tmp_path: Path) -> None:
    """Otherwise cells of the replaced rows would be reused."""

    def settings(seed: int) -> dict[str, Any]:
        rows = np.random.default_rng(seed).random((40, 4), np.float32)
        labels = np.arange(40, dtype=np.int32) % 2
        write_features(rows, tmp_path / "x.zarr", labels=labels, overwrite=True)
        return define_images("smoke", {"x": tmp_path / "x.zarr"}).settings

    before = settings(0)
    assert settings(0) == before
    after = settings(1)
    assert {name for name in after if after[name] != before[name]} == {"data"}


def test_outliers_have_no_image() -> None:
    rows = np.array([[0, 0, 0, 0], [2, 2, 2, 2], [9, 9, 9, 9], [200, 200, 200, 200]], np.float32)
    whole = Labelled(rows, np.zeros(4, np.int64), fit_map("none", 4, None), pixels=True)
    found = whole.pictures(np.array([1, 1, 0, -1]))
    assert found is not None
    assert found.tolist() == [[[1, 1], [1, 1]], [[9, 9], [9, 9]]]
    assert whole.pictures(np.full(4, -1)) is None
