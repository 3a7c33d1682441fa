"""Labels of new rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from messages import expecting
from numpy.typing import NDArray

import scrlm_dask
from scrlm_dask.config import FitConfig
from scrlm_dask.errors import InputError, StoreError, UnusableRowsError
from scrlm_dask.events import PhaseFinished
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.predict import predict
from scrlm_dask.pipeline.stores import open_features
from scrlm_dask.storage.model_store import load_model

CONFIG = FitConfig(rho=0.5, n_clusters=40, seed=5)


def test_predict_agrees_with_fit(mixture: NDArray[np.float32], tmp_path: Any) -> None:
    found = fit(mixture, CONFIG, out=tmp_path / "run", collect_labels=True)
    again = predict(tmp_path / "run", mixture, collect_labels=True, block_rows=333)
    np.testing.assert_array_equal(again.labels, found.labels)
    np.testing.assert_array_equal(again.counts, found.model.counts)
    # Distances of new rows to the centers, after the map of the model.
    new = np.random.default_rng(0).normal(size=(50, 64)).astype(np.float32)
    new[:20] = mixture[:20] + 0.01
    y, centers = (
        (a.astype(float) - found.model.affine.shift) * found.model.affine.scale
        for a in (new, found.model.centers)
    )
    distances = np.linalg.norm(y[:, None] - centers, axis=2)
    expected = np.where(distances.min(1) < found.model.radius, distances.argmin(1), -1)
    labels = predict(found.model, new, collect_labels=True).labels
    np.testing.assert_array_equal(labels, expected)
    assert (expected >= 0).any()
    with pytest.raises(scrlm_dask.errors.InputError, match=expecting(63, 64)):
        predict(found.model, new[:, :63])


# The centers are 1 and 10; the radius is 1.58.
NEW = np.array([[2.5], [2.6], [8.5], [8.4], [5.5]], np.float32)


def test_by_hand(run_by_hand: Path) -> None:
    for model in (run_by_hand, load_model(run_by_hand)):
        found = predict(model, NEW, collect_labels=True, block_rows=2)
        assert found.labels.tolist() == [0, -1, 1, -1, -1]
        assert (found.n_rows, found.n_outliers, found.counts.tolist()) == (5, 3, [1, 1])
    assert predict(run_by_hand, NEW, collect_labels=False).labels is None
    assert predict(run_by_hand, NEW).labels.tolist() == [0, -1, 1, -1, -1]  # without an output


def test_labels_store(run_by_hand: Path, tmp_path: Path) -> None:
    out = tmp_path / "labels.zarr"
    predict(run_by_hand, NEW, out=out, block_rows=2)
    stored = zarr.open_group(out, mode="r")
    assert stored.attrs["complete"] is True
    assert stored["labels"].chunks == (2,)
    assert stored["labels"][:].tolist() == [0, -1, 1, -1, -1]
    np.testing.assert_allclose(stored["distances"][:], [1.5, 1.6, 1.5, 1.6, 4.5], rtol=1e-6)
    np.testing.assert_allclose(stored["margins"][:], [6.0, 5.8, 6.0, 5.8, 0.0], atol=1e-5)
    predict(run_by_hand, NEW, out=out, overwrite=True, margins=False)
    stored = zarr.open_group(out, mode="r")
    assert "margins" not in stored
    np.testing.assert_allclose(stored["distances"][:], [1.5, np.nan, 1.5, np.nan, np.nan])


def test_rejected_input_does_not_change_outputs(run_by_hand: Path, tmp_path: Path) -> None:
    features, out = run_by_hand.parent / "x.zarr", tmp_path / "labels.zarr"
    with pytest.raises(InputError, match=expecting(2, 1)):
        predict(run_by_hand, np.eye(2), out=out)
    with pytest.raises(InputError, match=expecting("row 1", "NaN")):
        predict(run_by_hand, np.array([[0.0], [np.nan]]), out=out)
    assert not out.exists()
    predict(run_by_hand, features, out=out)
    with pytest.raises(StoreError, match=expecting(out)):
        predict(run_by_hand, features, out=out)
    with pytest.raises(StoreError, match=expecting(features)):
        predict(run_by_hand, features, out=features, overwrite=True)
    assert open_features(features).shape == (6, 1)


@pytest.mark.parametrize("name", ["run", "x"])
def test_input_that_changes_during_the_prediction(
    mixture: NDArray[np.float32], tmp_path: Path, name: str
) -> None:
    features = zarr.create_array(tmp_path / "x", data=mixture)
    fit(mixture, CONFIG, out=tmp_path / "run")

    def write(event: Any) -> None:
        if isinstance(event, PhaseFinished):
            if name == "run":
                zarr.open_array(tmp_path / "run/model.zarr/centers", mode="r+")[0] = 0.0
            else:
                features[0] = 0.0

    with pytest.raises(UnusableRowsError, match=f"{tmp_path}/{name}"):
        predict(tmp_path / "run", tmp_path / "x", out=tmp_path / "out", listener=write)
    assert not (tmp_path / "out").exists()
