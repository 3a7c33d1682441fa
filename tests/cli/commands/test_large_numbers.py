"""Large numbers of label names, of rows and of clusters: results and memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from scrlm_dask.storage.model_store import load_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

THREADS = ("--nworkers", 0, "--nthreads", 2, "--json")
MOST_BYTES = 700 * 10**6  # a process that has imported everything has 200 MB


def array_of(path: Path) -> Any:
    return zarr.open_array(path, mode="r")


def wrong_labels(rows: np.ndarray, labels: np.ndarray, centers: np.ndarray) -> int:
    """Return the number of rows whose label is not that of a nearest center."""
    distances = np.square(rows[:, None, :].astype(float) - centers).sum(axis=2)
    mine = distances[np.arange(len(rows)), labels]
    return int((mine > distances.min(axis=1) + 1e-6).sum())


def test_label_names(measured: Callable[..., Any], tmp_path: Path) -> None:
    n_names = 100_000
    names = np.array([f"name {(7 * row) % n_names}" for row in range(n_names + 50)])
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(len(names), 2)))
    np.save(tmp_path / "y.npy", names)
    ingest = ("ingest", tmp_path / "x.npy", tmp_path / "x.zarr", "--shuffle", *THREADS)
    outcome = measured(*ingest, "--labels", tmp_path / "y.npy", timeout=600)
    assert outcome.json()["rows"] == len(names)
    assert outcome.peak_bytes < MOST_BYTES
    group = zarr.open_group(tmp_path / "x.zarr", mode="r")
    found = np.array(group.attrs["label_names"])[group["labels"][:]]
    np.testing.assert_array_equal(found, names[group["source_row"][:]])
    measured("kmeans", tmp_path / "x.zarr", "--clusters", 2, "--out", tmp_path / "run", *THREADS)
    scores = measured("evaluate", tmp_path / "run", *THREADS, timeout=600)
    assert scores.peak_bytes < MOST_BYTES
    assert 0.0 <= scores.json()["nmi"] <= 1.0


def test_rows(measured: Callable[..., Any], tmp_path: Path) -> None:
    n_rows, store, run = 10**7, tmp_path / "x.zarr", tmp_path / "run"
    size = ("--rows", n_rows, "--features", 3, "--clusters", 4, "--chunk-size", "6MB")
    measured("synth", store, *size, *THREADS, timeout=600).ok()
    options = ("--clusters", 4, "--max-iter", 2, "--init", "k-means++", "--persist", "no")
    outcome = measured("kmeans", store, "--out", run, *options, *THREADS, timeout=600)
    assert outcome.json()["rows"] == n_rows
    assert outcome.peak_bytes < MOST_BYTES
    labels, features = array_of(run / "labels.zarr/labels"), array_of(store / "features")
    model, counts = load_model(run), np.zeros(4, int)
    for start in range(0, n_rows, 10**6):
        block, mine = features[start : start + 10**6], labels[start : start + 10**6]
        assert wrong_labels(block, mine, model.centers) == 0
        counts += np.bincount(mine, minlength=4)
    np.testing.assert_array_equal(counts, model.counts)
    assert counts.sum() == n_rows


def test_clusters(measured: Callable[..., Any], tmp_path: Path) -> None:
    n_clusters, rng = 50_000, np.random.default_rng(0)
    rows = rng.normal(size=(n_clusters + 500, 2)).astype(np.float32)
    np.save(tmp_path / "x.npy", rows)
    measured("ingest", tmp_path / "x.npy", tmp_path / "x.zarr", *THREADS).ok()
    run = tmp_path / "run"
    options = ("--clusters", n_clusters, "--init", "random", "--max-iter", 1, "--out", run)
    outcome = measured("kmeans", tmp_path / "x.zarr", *options, *THREADS, timeout=1000)
    assert outcome.json()["clusters"] == n_clusters
    assert outcome.peak_bytes < MOST_BYTES
    labels, centers = array_of(run / "labels.zarr/labels")[:], load_model(run).centers
    some = rng.choice(len(rows), 200, replace=False)
    assert wrong_labels(rows[some], labels[some], centers) == 0
    exported = measured("export", run, "--out", tmp_path / "out", "--json")
    assert exported.json()["clusters"] == n_clusters
