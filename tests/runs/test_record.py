"""The record of a run: its identity and the content of `run.json`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends import backend
from messages import expecting

from scrlm_dask.config import FitConfig, KMeansConfig
from scrlm_dask.engine.features import as_features
from scrlm_dask.errors import StoreError
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.kmeans import kmeans
from scrlm_dask.pipeline.stores import write_features
from scrlm_dask.runs.record import IN_MEMORY, RunRecord, start_record

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)


def record_of(source: Any, config: Any = None, **inputs: Any) -> RunRecord:
    return start_record(
        as_features(source, 15),
        config or FitConfig(rho=0.5),
        numbers={"n_candidates": 7},
        inputs=inputs,
        block_rows=15,
    )


def test_run_of_an_array_cannot_be_identified() -> None:
    record = record_of(X)
    assert (record.method, record_of(X, KMeansConfig(2)).method) == ("scrlm", "k-means")
    features = record.features
    assert (features.rows, features.features, features.dtype) == (40, 3, "float32")
    assert (features.blocks, features.block_rows) == (3, 15)
    assert (features.path, features.digest) == (None, None)
    assert not record.is_resumable
    # The record contains the settings as given and as resolved.
    assert record.asked.config["n_candidates"] == "auto"
    assert record.config["n_candidates"] == 7
    assert record.versions["numpy"] == np.__version__


def test_store_is_identified_by_its_digest(tmp_path: Path) -> None:
    write_features(X, tmp_path / "a.zarr")
    write_features(X + 1, tmp_path / "b.zarr")
    first, again = record_of(tmp_path / "a.zarr"), record_of(tmp_path / "a.zarr")
    assert first.features == again.features
    assert first.features.path == str(tmp_path / "a.zarr")
    assert first.features.digest != record_of(tmp_path / "b.zarr").features.digest
    assert first.is_resumable
    assert record_of(tmp_path / "a.zarr", centers="c.npy").is_resumable
    assert not record_of(tmp_path / "a.zarr", centers=IN_MEMORY).is_resumable


def test_json_round_trip() -> None:
    record = record_of(X, weights="w.npy")
    for written in (record, replace(record, attempts=2, attempt="abc", features_written="d")):
        content = json.loads(json.dumps(written.to_json()))
        assert RunRecord.from_json(content) == written
        assert ("attempts" in content) == (written.attempts is not None)


@pytest.mark.parametrize("name", ["method", "started", "config", "versions", "features", "asked"])
def test_record_with_a_missing_field(name: str) -> None:
    content = record_of(X).to_json()
    del content[name]
    with pytest.raises(StoreError, match=expecting("some/run.json", repr(name), "--overwrite")):
        RunRecord.from_json(content, "some/run.json")
    with pytest.raises(StoreError, match=expecting("some/run.json")):
        RunRecord.from_json({**content, "features": {"other": 1}}, "some/run.json")


def test_result_of_a_fit() -> None:
    with backend("one thread"):
        found = fit(
            X, FitConfig(rho=0.5, n_candidates=10), block_rows=15, listener=lambda event: None
        )
    record, model = json.loads(json.dumps(found.record)), found.model
    assert RunRecord.from_json(record).method == "scrlm"
    assert record["counts"] == model.counts.tolist()
    assert (record["clusters"], record["outliers"]) == (model.n_clusters, model.n_outliers)
    assert record["outlier_share"] == model.n_outliers / 40
    assert record["radius"] == model.radius
    assert [phase["name"] for phase in record["phases"]] == ["survey", "loss", "extract", "assign"]
    assert record["taken_over"] == {}
    assert list(record["workers"]) == ["threads"]


def test_infinite_radius_is_null() -> None:
    with backend("one thread"):
        found = kmeans(X, KMeansConfig(2, "random"))
    assert json.loads(json.dumps(found.record))["radius"] is None
