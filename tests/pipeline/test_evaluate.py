"""Scores of labels against the truth, computed by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from by_hand import TRUTH
from messages import expecting

import scrlm_dask
from scrlm_dask.errors import InputError, MissingError, ScrlmWarning, StoreError, UnusableRowsError
from scrlm_dask.events import PhaseFinished
from scrlm_dask.pipeline.evaluate import evaluate
from scrlm_dask.pipeline.predict import predict
from scrlm_dask.pipeline.stores import write_features


@pytest.fixture
def run(run_by_hand: Path) -> Path:
    return run_by_hand


def test_truth_from_the_store(run: Path) -> None:
    # Labels 0 0 0 1 1 -1, truth 0 0 1 1 1 -1: one of six rows is wrong. Of 15 pairs, 2 are in one
    # cluster in both and 4 in each: ARI = (2 - 16/15) / (4 - 16/15) = 7/22.
    found = evaluate(run)
    assert found.scores.accuracy == pytest.approx(5 / 6)
    assert found.scores.purity == pytest.approx(5 / 6)
    assert found.scores.ari == pytest.approx(7 / 22)
    assert (found.scores.outlier_precision, found.scores.outlier_recall) == (1.0, 1.0)
    assert (found.scores.n_rows, found.scores.n_clusters, found.scores.n_classes) == (6, 2, 2)
    assert found.scores.matching == {0: 0, 1: 1}
    assert found.recovery is None  # the store has no mixture


@pytest.mark.parametrize("form", ["array", "npy", "zarr"])
def test_given_truth(run: Path, tmp_path: Path, form: str) -> None:
    # The numbers of the classes do not matter; this truth has no outlier.
    truth = np.array([7, 7, 7, 5, 5, 5])
    given: object = truth
    if form == "npy":
        np.save(tmp_path / "truth.npy", truth)
        given = tmp_path / "truth.npy"
    if form == "zarr":
        zarr.create_array(tmp_path / "truth.zarr", data=truth)
        given = tmp_path / "truth.zarr"
    found = evaluate(run, given).scores
    assert found.accuracy == pytest.approx(5 / 6)
    assert found.matching == {0: 7, 1: 5}
    assert found.outlier_precision == 0.0
    assert np.isnan(found.outlier_recall)


def test_labels_written_by_predict(run: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.zarr"
    predict(run, run.parent / "x.zarr", out=labels)
    assert evaluate(labels) == evaluate(run)


def test_errors_relative_to_the_mixture_in_the_store(tmp_path: Path) -> None:
    # One cluster without outliers: the weight is exact, and sigma is estimated from 2000 rows.
    spec = scrlm_dask.MixtureSpec(8, 1, 0.0, sigma_min=0.25, sigma_max=0.25)
    scrlm_dask.synth(tmp_path / "x.zarr", 2000, spec)
    config = scrlm_dask.KMeansConfig(1, "random")
    scrlm_dask.kmeans(tmp_path / "x.zarr", config, out=tmp_path / "run")
    found = evaluate(tmp_path / "run")
    assert found.scores.accuracy == 1.0
    assert found.recovery is not None
    assert found.recovery.weights == pytest.approx(0.0, abs=1e-12)
    assert 0.0 < found.recovery.sigmas < 0.02
    assert evaluate(tmp_path / "run", np.zeros(2000, int)).recovery is None


def test_invalid_truth(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=expecting(5, 6)):
        evaluate(run, TRUTH[:5])
    with pytest.raises(InputError, match="float64"):
        evaluate(run, TRUTH.astype(float))
    with pytest.raises(MissingError, match=expecting(tmp_path / "none.npy")):
        evaluate(run, tmp_path / "none.npy")
    labels = shutil.copytree(run / "labels.zarr", tmp_path / "labels.zarr")
    with pytest.raises(InputError, match="--truth"):
        evaluate(labels)  # without the path of their features
    write_features(np.eye(3), tmp_path / "x.zarr")
    scrlm_dask.kmeans(tmp_path / "x.zarr", scrlm_dask.KMeansConfig(1), out=tmp_path / "run")
    with pytest.raises(InputError, match=expecting(tmp_path / "x.zarr", "--truth")):
        evaluate(tmp_path / "run")  # its features have no labels
    shutil.rmtree(tmp_path / "x.zarr")
    with pytest.raises(StoreError, match=expecting(tmp_path / "x.zarr", "--truth")):
        evaluate(tmp_path / "run")


@pytest.mark.parametrize("kind", ["run", "predict", "cut"])
def test_truth_of_a_store_that_was_ingested_again(tmp_path: Path, kind: str) -> None:
    kinds = np.arange(120) % 3
    rows = np.random.default_rng(0).normal(size=(120, 4)) + 50 * kinds[:, None]
    np.save(tmp_path / "x.npy", rows)
    np.save(tmp_path / "y.npy", kinds)
    store, run = tmp_path / "x.zarr", tmp_path / "run"

    def ingest(seed: int) -> None:
        config = scrlm_dask.IngestConfig(shuffle=True, seed=seed, labels=str(tmp_path / "y.npy"))
        scrlm_dask.ingest(tmp_path / "x.npy", store, config, overwrite=True)

    ingest(0)
    truth = zarr.open_array(store / "labels", mode="r")[:]
    scrlm_dask.kmeans(store, scrlm_dask.KMeansConfig(3), out=run)
    predict(run, store, out=tmp_path / "predict")
    scrlm_dask.Run(run).cut(3, out=tmp_path / "cut")
    assert evaluate(tmp_path / kind).scores.accuracy == 1.0
    ingest(1)
    with pytest.raises(StoreError, match=expecting(store, "--truth")):
        evaluate(tmp_path / kind)
    with pytest.warns(ScrlmWarning, match=expecting(store, "source_row")):
        assert evaluate(tmp_path / kind, truth).scores.accuracy == 1.0
    ingest(0)
    assert evaluate(tmp_path / kind).scores.accuracy == 1.0


def test_truth_of_the_source_of_a_shuffled_store(tmp_path: Path) -> None:
    kinds = np.arange(120) % 3
    np.save(tmp_path / "x.npy", np.arange(8.0) + 50 * kinds[:, None])
    for name, shuffle in (("shuffled", True), ("same", False)):
        config = scrlm_dask.IngestConfig(shuffle=shuffle)
        scrlm_dask.ingest(tmp_path / "x.npy", tmp_path / name, config)
        scrlm_dask.kmeans(tmp_path / name, scrlm_dask.KMeansConfig(3), out=tmp_path / f"run-{name}")
    assert evaluate(tmp_path / "run-same", kinds).scores.accuracy == 1.0
    with pytest.warns(ScrlmWarning, match=expecting(tmp_path / "shuffled", "source_row")):
        assert evaluate(tmp_path / "run-shuffled", kinds).scores.accuracy < 0.7
    source_row = zarr.open_array(tmp_path / "shuffled/source_row", mode="r")[:]
    with pytest.warns(ScrlmWarning, match="source_row"):
        assert evaluate(tmp_path / "run-shuffled", kinds[source_row]).scores.accuracy == 1.0


def _write_shuffled_labels(folder: Path, **options: Any) -> None:
    """Write a run, a prediction and a cut of 120 shuffled rows in three clusters."""
    np.save(folder / "x.npy", np.arange(8.0) + 50 * KINDS[:, None])
    store, run = folder / "x.zarr", folder / "run"
    scrlm_dask.ingest(folder / "x.npy", store, scrlm_dask.IngestConfig(shuffle=True, **options))
    scrlm_dask.kmeans(store, scrlm_dask.KMeansConfig(3), out=run)
    predict(run, store, out=folder / "predict")
    scrlm_dask.Run(run).cut(3, out=folder / "cut")


KINDS = np.arange(120) % 3


@pytest.mark.parametrize("change", ["removed", "ingested again"])
def test_labels_record_that_their_rows_were_shuffled(tmp_path: Path, change: str) -> None:
    _write_shuffled_labels(tmp_path)
    store = tmp_path / "x.zarr"
    shutil.rmtree(store)
    if change == "ingested again":
        scrlm_dask.ingest(tmp_path / "x.npy", store)
    for name in ("run", "predict", "cut"):
        with pytest.warns(ScrlmWarning, match=expecting(store, "source_row")):
            assert evaluate(tmp_path / name, KINDS).scores.accuracy < 0.7


def test_rows_that_were_not_shuffled_are_recorded_as_such(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(8.0) + 50 * KINDS[:, None])
    store, run = tmp_path / "x.zarr", tmp_path / "run"
    scrlm_dask.ingest(tmp_path / "x.npy", store)
    scrlm_dask.kmeans(store, scrlm_dask.KMeansConfig(3), out=run)
    scrlm_dask.ingest(
        tmp_path / "x.npy", store, scrlm_dask.IngestConfig(shuffle=True), overwrite=True
    )
    assert evaluate(run, KINDS).scores.accuracy == 1.0  # without a warning


def _forget_order(folder: Path) -> None:
    """Remove what labels record about the order of their rows, as in earlier versions."""
    for name in ("run/run.json", "predict/zarr.json", "cut/zarr.json"):
        content = json.loads((folder / name).read_text())
        attributes = content if name == "run/run.json" else content["attributes"]
        assert attributes.pop("features_shuffled") is True
        (folder / name).write_text(json.dumps(content))


def test_order_of_labels_of_earlier_versions(tmp_path: Path) -> None:
    _write_shuffled_labels(tmp_path)
    _forget_order(tmp_path)
    store = tmp_path / "x.zarr"
    for name in ("run", "predict", "cut"):
        with pytest.warns(ScrlmWarning, match=expecting(store, "source_row")):
            evaluate(tmp_path / name, KINDS)
    config = scrlm_dask.IngestConfig(shuffle=True, seed=1)
    scrlm_dask.ingest(tmp_path / "x.npy", store, config, overwrite=True)
    for name in ("run", "predict", "cut"):
        evaluate(tmp_path / name, KINDS)  # the store is not the labelled one: not known


def test_run_on_the_array_of_a_shuffled_store(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(8.0) + 50 * KINDS[:, None])
    scrlm_dask.ingest(
        tmp_path / "x.npy", tmp_path / "x.zarr", scrlm_dask.IngestConfig(shuffle=True)
    )
    run, array = tmp_path / "run", tmp_path / "x.zarr/features"
    scrlm_dask.kmeans(array, scrlm_dask.KMeansConfig(3), out=run)
    with pytest.warns(ScrlmWarning, match=expecting(array, "source_row")):
        evaluate(run, KINDS)


def test_labels_store_inside_a_run(run: Path, tmp_path: Path) -> None:
    assert evaluate(run / "labels.zarr") == evaluate(run)
    _write_shuffled_labels(tmp_path)
    with pytest.warns(ScrlmWarning, match=expecting(tmp_path / "x.zarr", "source_row")):
        evaluate(tmp_path / "run/labels.zarr", KINDS)


@pytest.mark.parametrize("truth", ["x.zarr", "x.zarr/labels", "predict", "run/labels.zarr"])
def test_truth_in_the_order_of_another_store(tmp_path: Path, truth: str) -> None:
    np.save(tmp_path / "y.npy", KINDS)
    _write_shuffled_labels(tmp_path, labels=str(tmp_path / "y.npy"))
    assert evaluate(tmp_path / "run", tmp_path / truth).scores.accuracy == 1.0  # no warning
    scrlm_dask.ingest(tmp_path / "x.npy", tmp_path / "same.zarr")
    scrlm_dask.kmeans(tmp_path / "same.zarr", scrlm_dask.KMeansConfig(3), out=tmp_path / "same-run")
    with pytest.warns(ScrlmWarning, match=expecting(tmp_path / "x.zarr", "source_row")):
        assert evaluate(tmp_path / "same-run", tmp_path / truth).scores.accuracy < 0.7


@pytest.mark.parametrize("dtype", ["<u8", ">u8"])
def test_unsigned_labels_are_not_read_as_outliers(run: Path, tmp_path: Path, dtype: str) -> None:
    truth = np.array([0, 0, 0, 1, 1, 2**64 - 1], dtype)
    np.save(tmp_path / "truth.npy", truth)
    for given in (truth, tmp_path / "truth.npy"):
        with pytest.raises(InputError, match=expecting(2**64 - 1)):
            evaluate(run, given)
    assert evaluate(run, truth.astype("u1")).scores.accuracy == pytest.approx(5 / 6)


@pytest.mark.parametrize("name", ["labels", "truth"])
def test_input_that_changes_during_the_evaluation(run: Path, tmp_path: Path, name: str) -> None:
    run, truth = shutil.copytree(run, tmp_path / "run"), tmp_path / "truth.npy"
    np.save(truth, np.array([7, 7, 7, 5, 5, 5]))

    def write(event: object) -> None:
        if isinstance(event, PhaseFinished):
            if name == "truth":
                np.save(truth, np.array([7, 7, 7, 7, 5, 5]))
            else:
                zarr.open_array(run / "labels.zarr/labels", mode="r+")[0] = 1

    with pytest.raises(UnusableRowsError, match=f"the {name} "):
        evaluate(run, truth, listener=write)
