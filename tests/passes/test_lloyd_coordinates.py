"""k-means with persisted features also persists their coordinates along axes if that helps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import dask
import numpy as np
import pytest

from scrlm_dask.config import KMeansConfig, LloydConfig
from scrlm_dask.kernels.distances.pruning import Pruned, along_axes
from scrlm_dask.pipeline.kmeans import kmeans
from scrlm_dask.pipeline.stores import open_features, write_features

ROWS, FEATURES, CLUSTERS = 4096, 256, 96
CONFIG = KMeansConfig(
    n_clusters=CLUSTERS,
    init="given",
    lloyd=LloydConfig(max_iter=4, tol=0.0, inertia_tol=0.0, persist="yes"),
)


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    with dask.config.set(scheduler="threads", num_workers=2):
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    spread = np.arange(1, FEATURES + 1) ** -1.5
    # Without a rotation the first features would be as good as principal axes.
    rotation = np.linalg.qr(rng.normal(size=(FEATURES, FEATURES)))[0]
    path = tmp_path_factory.mktemp("persisted") / "steep.zarr"
    rows = (rng.normal(size=(ROWS, FEATURES)) * spread @ rotation).astype(np.float32)
    write_features(rows, path)
    return path


def test_rows_are_projected_once_and_results_are_identical(store: Path) -> None:
    first = open_features(store)[:CLUSTERS].compute()
    persisted = kmeans(store, CONFIG, centers=first, block_rows=2048, collect_labels=True)
    lloyd = replace(CONFIG.lloyd, persist="no")
    streamed = kmeans(
        store, replace(CONFIG, lloyd=lloyd), centers=first, block_rows=2048, collect_labels=True
    )
    names = [phase["name"] for phase in persisted.record["phases"]]
    assert names.count("project") == 1
    assert names.index("project") == names.index("kmeans-step") + 1
    assert "project" not in [phase["name"] for phase in streamed.record["phases"]]
    np.testing.assert_array_equal(persisted.model.centers, streamed.model.centers)
    np.testing.assert_array_equal(np.asarray(persisted.labels), np.asarray(streamed.labels))


def test_axes_are_detected_in_the_names_of_subspaces() -> None:
    assert along_axes(Pruned({"dense": 3, "15 features, then 47 principal axes": 1}))
    assert not along_axes(Pruned({"dense": 3, "31 features": 1}))
