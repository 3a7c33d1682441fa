"""Inputs and outputs that change between the preparation and the start of a job."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scrlm_dask
from scrlm_dask import FitConfig, KMeansConfig, MixtureSpec
from scrlm_dask.errors import StoreError
from scrlm_dask.events import BlockDone
from scrlm_dask.pipeline.fit import prepare_fit
from scrlm_dask.pipeline.ingest import prepare_ingest
from scrlm_dask.pipeline.kmeans import prepare_kmeans
from scrlm_dask.pipeline.predict import predict, prepare_predict

ROWS, FEATURES = 600, 8
CONFIG = FitConfig(rho=0.5, n_clusters=5, n_candidates=100)


def ignore(event: Any) -> None:
    """Ignore an event."""


def draw(path: Path, seed: int, overwrite: bool = False) -> Path:
    scrlm_dask.synth(
        path, ROWS, MixtureSpec(FEATURES, 3, 0.2, seed=seed), overwrite=overwrite, listener=ignore
    )
    return path


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_features_replaced_before_a_fit_starts(tmp_path: Path) -> None:
    store = draw(tmp_path / "x.zarr", seed=1)
    job = prepare_fit(store, CONFIG, out=tmp_path / "run")
    draw(store, seed=2, overwrite=True)
    with pytest.raises(StoreError, match=r"x\.zarr"):
        job.run(ignore)
    assert not (tmp_path / "run").exists()


def test_complete_run_is_kept_if_its_replacement_cannot_start(tmp_path: Path) -> None:
    store, out = draw(tmp_path / "x.zarr", seed=1), tmp_path / "run"
    scrlm_dask.fit(store, CONFIG, out=out, listener=ignore)
    before = files_below(out)
    job = prepare_fit(store, CONFIG, out=out, overwrite=True)
    draw(store, seed=2, overwrite=True)
    with pytest.raises(StoreError, match=r"x\.zarr"):
        job.run(ignore)
    assert files_below(out) == before


def test_weights_rewritten_before_kmeans_starts(tmp_path: Path) -> None:
    store, weights = draw(tmp_path / "x.zarr", seed=1), tmp_path / "weights.npy"
    np.save(weights, np.ones(ROWS))
    config = KMeansConfig(3, "random")
    job = prepare_kmeans(store, config, sample_weight=weights, out=tmp_path / "run")
    np.save(weights, np.arange(1.0, ROWS + 1))
    with pytest.raises(StoreError, match=r"weights\.npy"):
        job.run(ignore)
    assert not (tmp_path / "run").exists()


def test_run_replaced_before_predict_starts(tmp_path: Path) -> None:
    store, out = draw(tmp_path / "x.zarr", seed=1), tmp_path / "run"
    scrlm_dask.fit(store, CONFIG, out=out, listener=ignore)
    job = prepare_predict(out, store, collect_labels=True)
    other = FitConfig(rho=0.1, n_clusters=4, n_candidates=100)
    scrlm_dask.fit(store, other, out=out, overwrite=True, listener=ignore)
    expected = predict(out, store, collect_labels=True, listener=ignore)
    np.testing.assert_array_equal(job.run(ignore).labels, expected.labels)


def test_source_rewritten_before_an_ingest_starts(tmp_path: Path) -> None:
    source, out = tmp_path / "x.npy", tmp_path / "x.zarr"
    np.save(source, np.zeros((ROWS, FEATURES), np.float32))
    job = prepare_ingest([str(source)], out)
    np.save(source, np.ones((ROWS, FEATURES), np.float32))  # of the same size
    with pytest.raises(StoreError, match=r"x\.npy"):
        job.run(ignore)
    assert not out.exists()


def test_output_of_another_process_is_not_overwritten(tmp_path: Path) -> None:
    source, out = tmp_path / "x.npy", tmp_path / "x.zarr"
    np.save(source, np.ones((ROWS, FEATURES), np.float32))
    job = prepare_ingest([str(source)], out)
    scrlm_dask.ingest([str(source)], out, listener=ignore)
    before = files_below(out)
    with pytest.raises((StoreError, scrlm_dask.errors.InputError), match=r"x\.zarr"):
        job.run(ignore)
    assert files_below(out) == before
    shutil.rmtree(out)
    assert job.run(ignore).n_rows == ROWS


def test_output_that_another_process_completed_is_not_overwritten(tmp_path: Path) -> None:
    source, out = tmp_path / "x.npy", tmp_path / "x.zarr"
    np.save(source, np.ones((ROWS, FEATURES), np.float32))
    config = scrlm_dask.IngestConfig(chunk_bytes=4096)

    def stop(event: Any) -> None:
        if isinstance(event, BlockDone):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scrlm_dask.ingest([str(source)], out, config, listener=stop)
    job = prepare_ingest([str(source)], out, config)
    assert scrlm_dask.ingest([str(source)], out, config, listener=ignore).n_rows == ROWS
    before = files_below(out)
    with pytest.raises((StoreError, scrlm_dask.errors.InputError), match=r"x\.zarr"):
        job.run(ignore)
    assert files_below(out) == before
