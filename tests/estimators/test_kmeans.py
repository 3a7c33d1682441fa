"""KMeans follows the conventions of scikit-learn and Dask."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from messages import expecting
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import scrlm_dask
from scrlm_dask import SCRLM, KMeans
from scrlm_dask.config import LloydConfig
from scrlm_dask.errors import MissingError
from scrlm_dask.pipeline.kmeans import kmeans
from scrlm_dask.storage.model_store import load_model, save_model

EXPECTED_FAILURES = {
    "check_sample_weight_equivalence_on_dense_data": "initial rows are drawn by row number, which "
    "repeated or dropped rows change; weights are exact if the initial centers are given",
}


@pytest.mark.filterwarnings("ignore::scrlm_dask.ScrlmWarning")
@parametrize_with_checks(
    [KMeans(3), KMeans(2, init="k-means||", spherical=True)],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_scikit_learn_conventions(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def x() -> NDArray[np.float32]:
    rng = np.random.default_rng(3)
    centers = rng.normal(scale=3.0, size=(6, 8))
    return (centers[rng.integers(6, size=1200)] + rng.normal(size=(1200, 8))).astype(np.float32)


def test_numpy_in_numpy_out(x: NDArray[np.float32]) -> None:
    fitted = KMeans(6).fit(x)
    assert isinstance(fitted.labels_, np.ndarray)
    assert fitted.labels_.dtype == np.int32
    np.testing.assert_array_equal(fitted.predict(x), fitted.labels_)
    np.testing.assert_array_equal(KMeans(6).fit_predict(x), fitted.labels_)
    assert fitted.cluster_centers_.shape == (6, 8)
    assert fitted.n_features_in_ == 8
    assert fitted.n_iter_ == len(fitted.record_["kmeans"]["iterations"]) >= 1
    sq = ((x.astype(float) - fitted.cluster_centers_[fitted.labels_]) ** 2).sum()
    assert fitted.inertia_ == pytest.approx(float(sq))


def test_dask_in_lazy_dask_out(x: NDArray[np.float32]) -> None:
    lazy = da.from_array(x, chunks=((500, 200, 500), 8))
    fitted = KMeans(6, block_rows=400).fit(lazy)
    assert isinstance(fitted.labels_, da.Array)
    assert fitted.labels_.chunks == ((500, 200, 500),)  # aligned with the input
    expected = KMeans(6, block_rows=400).fit(x)
    assert fitted.cluster_centers_.tobytes() == expected.cluster_centers_.tobytes()
    np.testing.assert_array_equal(fitted.labels_.compute(), expected.labels_)
    np.testing.assert_array_equal(fitted.predict(lazy[:70]).compute(), expected.labels_[:70])
    np.testing.assert_array_equal(fitted.fit_predict(lazy).compute(), expected.labels_)


def test_paths_and_zarr_arrays(x: NDArray[np.float32], tmp_path: Path) -> None:
    path = tmp_path / "x.zarr"
    stored = zarr.create_array(str(path), shape=x.shape, chunks=(400, 8), dtype=x.dtype)
    stored[:] = x
    weights = np.random.default_rng(0).random(len(x))
    np.save(tmp_path / "weights.npy", weights)
    expected = KMeans(6, block_rows=400).fit(x, sample_weight=weights)
    for source in (stored, path, str(path)):
        fitted = KMeans(6, block_rows=400).fit(source, sample_weight=tmp_path / "weights.npy")
        assert fitted.cluster_centers_.tobytes() == expected.cluster_centers_.tobytes()
        np.testing.assert_array_equal(fitted.labels_.compute(), expected.labels_)
        np.testing.assert_array_equal(fitted.predict(source).compute(), expected.labels_)


@pytest.mark.parametrize("init", ["scrlm", "k-means++", "k-means||", "random"])
def test_equal_weights_change_nothing(x: NDArray[np.float32], init: str) -> None:
    plain = KMeans(6, init=init).fit(x)
    for weight in (1.0, 3.0):
        weighted = KMeans(6, init=init).fit(x, sample_weight=np.full(len(x), weight))
        np.testing.assert_allclose(weighted.cluster_centers_, plain.cluster_centers_, rtol=1e-9)
        assert np.array_equal(weighted.labels_, plain.labels_)
        assert weighted.inertia_ == pytest.approx(weight * plain.inertia_)


def test_sample_weight(x: NDArray[np.float32]) -> None:
    weights = np.where(np.arange(len(x)) < 600, 1.0, 0.0)
    half, dropped = KMeans(6, init=x[:6]), KMeans(6, init=x[:6])
    half.fit(x, sample_weight=weights)
    dropped.fit(x[:600])
    np.testing.assert_allclose(half.cluster_centers_, dropped.cluster_centers_, rtol=1e-9)
    assert half.inertia_ == pytest.approx(dropped.inertia_)
    np.testing.assert_array_equal(half.labels_[:600], dropped.labels_)
    np.testing.assert_array_equal(
        KMeans(6, init=x[:6]).fit_predict(x, sample_weight=weights.tolist()), half.labels_
    )


def test_every_kind_of_init(x: NDArray[np.float32], tmp_path: Path) -> None:
    first = KMeans(6, init="random", max_iter=1).fit(x)
    result = kmeans(x, first.model_.config, out=tmp_path / "run")
    expected = KMeans(6, init=first.cluster_centers_).fit(x)
    for init in (first.model_, tmp_path / "run", first.cluster_centers_.tolist()):
        fitted = KMeans(6, init=init).fit(x)
        assert fitted.cluster_centers_.tobytes() == expected.cluster_centers_.tobytes()
    assert expected.inertia_ < result.model.inertia
    scrlm = SCRLM(rho=1.5, n_clusters=6, preprocess="none").fit(x)
    assert scrlm.n_clusters_ == 6
    assert KMeans(6, init=scrlm.model_).fit(x).inertia_ > 0
    for name in ("scrlm", "k-means++", "k-means||", "random"):
        assert KMeans(6, init=name).fit(x).cluster_centers_.shape == (6, 8)


def test_spherical(x: NDArray[np.float32]) -> None:
    fitted = KMeans(6, spherical=True).fit(x)
    np.testing.assert_allclose(np.linalg.norm(fitted.cluster_centers_, axis=1), 1.0)
    same = KMeans(6, preprocess="l2").fit(x)
    assert fitted.cluster_centers_.tobytes() == same.cluster_centers_.tobytes()
    lengths = np.random.default_rng(0).uniform(0.5, 2.0, size=(len(x), 1))
    np.testing.assert_array_equal(fitted.predict(x * lengths), fitted.labels_)
    cosines = x @ fitted.cluster_centers_.T
    np.testing.assert_array_equal(cosines.argmax(axis=1), fitted.labels_)


def test_pipeline_and_clone(x: NDArray[np.float32]) -> None:
    piped = make_pipeline(StandardScaler(), KMeans(6, init="random"))
    assert len(np.unique(piped.fit_predict(x))) == 6
    original = KMeans(4, init="k-means||", tol=0.01, sample=0.5, random_state=3, max_seconds=5.0)
    assert clone(original).get_params() == original.get_params()
    given = KMeans(6, init=x[:6])
    np.testing.assert_array_equal(clone(given).init, x[:6])


@pytest.mark.filterwarnings("ignore:.*empty:scrlm_dask.ScrlmWarning")  # with some random seeds
def test_random_state(x: NDArray[np.float32]) -> None:
    def centers(state: Any) -> bytes:
        fitted = KMeans(6, init="random", max_iter=1, random_state=state).fit(x)
        return fitted.cluster_centers_.tobytes()

    assert centers(1) == centers(1) == centers(np.int64(1))
    assert centers(1) != centers(2)
    assert centers(np.random.RandomState(1)) == centers(np.random.RandomState(1))
    assert centers(None) != centers(None)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"n_clusters": 5},
        {"init": "k-means++"},
        {"max_iter": 2},
        {"tol": 0.3},
        {"inertia_tol": 0.3},
        {"max_seconds": 1e-9},
        {"sample": 0.3},
        {"spherical": True},
        {"preprocess": "standardize"},
        {"persist": "no"},
        {"random_state": 1},
        {"block_rows": 200},
    ],
    ids=str,
)
def test_every_parameter_has_an_effect(base: Any, change: dict[str, Any]) -> None:
    assert outcome(change) != base


@pytest.fixture(scope="module")
def base() -> Any:
    return outcome({})


def outcome(change: dict[str, Any]) -> tuple[bytes, list[str], int]:
    """Return centers, names of phases and number of blocks of a fit with changed parameters."""
    noise = np.random.default_rng(0).normal(size=(800, 4)).astype(np.float32)
    params: dict[str, Any] = {"n_clusters": 9, "init": "random", "block_rows": 100, "max_iter": 8}
    fitted = KMeans(**{**params, **change}).fit(da.from_array(noise, chunks=(100, 4)))
    phases = [phase["name"] for phase in fitted.record_["phases"]]
    return fitted.cluster_centers_.tobytes(), phases, fitted.record_["features"]["blocks"]


def test_model_of_kmeans_is_saved_and_loaded(x: NDArray[np.float32], tmp_path: Path) -> None:
    model = KMeans(6, spherical=True, init="k-means||", max_seconds=60.0).fit(x).model_
    save_model(model, tmp_path / "model.zarr")
    loaded = load_model(tmp_path / "model.zarr")
    for name in ("center_rows", "losses", "neighbors"):
        assert getattr(loaded, name).shape == (0,)
        assert getattr(loaded, name).dtype == getattr(model, name).dtype
    for name in ("centers", "means", "counts", "weights", "sigmas"):
        assert getattr(loaded, name).tobytes() == getattr(model, name).tobytes()
    assert loaded.config == model.config
    assert loaded.inertia == model.inertia
    assert np.isinf(loaded.radius)
    assert repr(loaded) == repr(model)
    assert re.search(expecting("6 clusters", "8 features", 0, 1200), repr(loaded))


def test_refine_of_scrlm_is_a_number_or_a_config(x: NDArray[np.float32]) -> None:
    plain = SCRLM(6, rho=1.0, preprocess="none").fit(x)
    assert plain.n_iter_ == 0
    refined = SCRLM(6, rho=1.0, preprocess="none", refine=5).fit(x)
    same = SCRLM(6, rho=1.0, preprocess="none", refine=LloydConfig(max_iter=5)).fit(x)
    assert 1 <= refined.n_iter_ <= 5
    assert refined.cluster_centers_.tobytes() == same.cluster_centers_.tobytes()
    assert refined.inertia_ < plain.inertia_
    without_outliers = SCRLM(6, rho=1.0, preprocess="none", refine=5, robust=False).fit(x)
    assert (without_outliers.labels_ >= 0).all()
    assert (refined.labels_ == -1).any()
    assert np.isinf(without_outliers.radius_)


def test_invalid_input(x: NDArray[np.float32]) -> None:
    with pytest.raises(NotFittedError):
        KMeans().predict(x)
    fitted = KMeans(6).fit(x)
    with pytest.raises(ValueError, match=expecting("7 features", "8 features")):
        fitted.predict(x[:, :7])
    cases: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
        ({"n_clusters": 0}, ("n_clusters", 0, 1)),
        ({"n_clusters": 1201}, (1201, 1200)),
        ({"init": "kmeans"}, ("init", "'kmeans'", "k-means++", "random")),
        ({"init": "given"}, ("init", "'given'", "pathlib.Path")),
        ({"init": "runs/first"}, ("init", "'runs/first'", "pathlib.Path")),
        ({"init": x[:3]}, ("(3, 8)", "(6, 8)")),
        ({"spherical": True, "preprocess": "scale"}, ("spherical", "preprocess", "'scale'")),
        ({"block_rows": 0}, ("block_rows", 0, 1)),
        ({"max_iter": -1}, ("max_iter", -1, 0)),
        ({"persist": "maybe"}, ("persist", "'maybe'", "auto", "yes", "no")),
    ]
    for params, facts in cases:
        with pytest.raises(scrlm_dask.errors.InputError, match=expecting(*facts)):
            KMeans(**{"n_clusters": 6, **params}).fit(x)
    with pytest.raises(MissingError, match=expecting("/no/such/run")):
        KMeans(6, init=Path("/no/such/run")).fit(x)
    bad = x.copy()
    bad[777, 5] = np.nan
    for init in ("scrlm", "k-means++", "k-means||", "random"):
        with pytest.raises(scrlm_dask.errors.InputError, match="row 777"):
            KMeans(6, init=init).fit(da.from_array(bad, chunks=(400, 8)))
