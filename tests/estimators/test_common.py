"""Behavior of both estimators: lazy and in-memory input, type of the labels, seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import sklearn
import zarr
from by_hand import LABELS, ROWS
from sklearn.exceptions import NotFittedError

from scrlm_dask import SCRLM, KMeans
from scrlm_dask.estimators.common import is_lazy, seed_of
from scrlm_dask.pipeline.stores import write_features


@pytest.fixture(scope="module")
def fitted() -> SCRLM:
    """Return a model with centers 1 and 10 and a radius of 1.58."""
    return SCRLM(rho=1.0, preprocess="none").fit(ROWS)


def test_attributes_are_those_of_the_model(fitted: SCRLM) -> None:
    assert fitted.cluster_centers_.tolist() == [[1.0], [10.0]]
    assert fitted.labels_.tolist() == LABELS
    assert fitted.inertia_ == pytest.approx(5.5)
    assert (fitted.n_features_in_, fitted.n_iter_) == (1, 0)
    assert fitted.record_["outliers"] == 1


def test_lazy_input_gives_lazy_labels_in_the_same_chunks(fitted: SCRLM, tmp_path: Path) -> None:
    url = write_features(ROWS, tmp_path / "x.zarr", chunk_bytes=8)
    lazy = [
        da.from_array(ROWS, chunks=(4, 1)),
        url,
        Path(url),
        zarr.open_array(f"{url}/features", mode="r"),
    ]
    predicted = [fitted.predict(x) for x in lazy]
    assert all(isinstance(labels, da.Array) for labels in predicted)
    assert predicted[0].chunks == ((4, 2),)
    assert all(labels.compute().tolist() == LABELS for labels in predicted)
    in_memory = fitted.predict(ROWS)
    assert isinstance(in_memory, np.ndarray)
    assert in_memory.tolist() == LABELS


def test_kinds_of_input() -> None:
    assert all(is_lazy(x) for x in ("x.zarr", Path("x.zarr"), da.zeros((2, 2))))
    assert not any(is_lazy(x) for x in (ROWS, ROWS.tolist()))


def test_seeds() -> None:
    assert seed_of(7) == seed_of(np.int64(7)) == 7
    state = np.random.RandomState(3)
    expected = np.random.RandomState(3).randint(2**31, size=2).tolist()
    assert [seed_of(state), seed_of(state)] == expected  # successive draws from the state
    with pytest.raises(ValueError, match="seed"):
        seed_of("seed")


@pytest.mark.parametrize("rows", [ROWS, da.from_array(ROWS)], ids=["array", "lazy"])
def test_predict_requires_a_fit(rows: Any) -> None:
    with pytest.raises(NotFittedError):
        KMeans(n_clusters=2).predict(rows)


def test_html_of_a_fitted_estimator_contains_its_results(fitted: SCRLM) -> None:
    inertia = ">5.5<"
    assert inertia not in SCRLM()._repr_html_()
    assert inertia in fitted._repr_mimebundle_()["text/html"]
    with sklearn.config_context(display="text"):
        assert set(fitted._repr_mimebundle_()) == {"text/plain"}
