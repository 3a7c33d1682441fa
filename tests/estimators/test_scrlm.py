"""SCRLM follows the conventions of scikit-learn and Dask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas
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
from scrlm_dask import SCRLM
from scrlm_dask.errors import MissingError
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec, synth_block, true_mixture

EXPECTED_FAILURES: dict[str, str] = {}  # check: reason; all pass at present


@pytest.mark.filterwarnings("ignore::scrlm_dask.ScrlmWarning")
@parametrize_with_checks(
    [
        SCRLM(),
        SCRLM(rho=0.5),
        SCRLM(rho=0.5, n_clusters=3, preprocess="l2"),
        SCRLM(rho=1.0, preprocess="none"),
    ],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_scikit_learn_conventions(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def drawn() -> Any:
    spec = MixtureSpec(n_features=64, n_clusters=10, outliers=0.3, seed=8)
    return synth_block(spec, true_mixture(spec), 0, 2500)


@pytest.fixture(scope="module")
def x(drawn: Any) -> NDArray[np.float32]:
    return drawn.features


def test_numpy_in_numpy_out(x: NDArray[np.float32], drawn: Any) -> None:
    fitted = SCRLM(rho=0.5, n_clusters=20).fit(x)
    assert isinstance(fitted.labels_, np.ndarray)
    assert fitted.labels_.dtype == np.int32
    np.testing.assert_array_equal(fitted.predict(x), fitted.labels_)
    np.testing.assert_array_equal(SCRLM(rho=0.5, n_clusters=20).fit_predict(x), fitted.labels_)
    np.testing.assert_array_equal(fitted.labels_ == -1, drawn.labels == -1)
    assert fitted.n_clusters_ == 10
    assert fitted.n_features_in_ == 64
    assert fitted.rho_ == 0.5
    assert fitted.radius_ == pytest.approx(0.5 * np.sqrt(2.5 * 64))
    assert fitted.cluster_centers_.shape == fitted.means_.shape == (10, 64)
    assert fitted.weights_.sum() + fitted.outlier_weight_ == pytest.approx(1.0)


def test_centers_means_and_sigmas_are_in_the_units_of_the_input(drawn: Any) -> None:
    truth = true_mixture(MixtureSpec(n_features=64, n_clusters=10, outliers=0.3, seed=8))
    stretch = np.linspace(0.5, 20, 64).astype(np.float32)  # features of very different scales
    x = drawn.features * stretch + np.float32(3)
    fitted = SCRLM(rho=0.5, n_clusters=20).fit(x)
    assert all(any((center == row).all() for row in x) for center in fitted.cluster_centers_)
    for mean, sigma in zip(fitted.means_, fitted.sigmas_, strict=True):
        expected = truth.means * stretch + 3
        match = int(np.linalg.norm((expected - mean) / stretch, axis=1).argmin())
        np.testing.assert_allclose((mean - expected[match]) / stretch, 0, atol=0.15)
        rms = truth.sigmas[match] * np.sqrt(np.mean(stretch.astype(float) ** 2))
        assert sigma == pytest.approx(rms, rel=0.05)


def test_dask_in_lazy_dask_out(x: NDArray[np.float32]) -> None:
    lazy = da.from_array(x, chunks=((1000, 400, 1100), (32, 32)))
    fitted = SCRLM(rho=0.5, n_clusters=20).fit(lazy)
    assert isinstance(fitted.labels_, da.Array)
    assert fitted.labels_.chunks == ((1000, 400, 1100),)  # aligned with the input
    assert fitted.labels_.dtype == np.int32
    expected = SCRLM(rho=0.5, n_clusters=20).fit(x).labels_
    np.testing.assert_array_equal(fitted.labels_.compute(), expected)
    np.testing.assert_array_equal(fitted.predict(lazy[:700]).compute(), expected[:700])
    np.testing.assert_array_equal(fitted.predict(x[:700]), expected[:700])


def test_lazy_predict_computes_nothing(x: NDArray[np.float32]) -> None:
    def fail(block: Any) -> Any:
        raise AssertionError("computed")

    fitted = SCRLM(rho=0.5, n_clusters=20).fit(x)
    failing = da.from_array(x, chunks=(500, 64)).map_blocks(fail, dtype=x.dtype, meta=x[:0])
    labels = fitted.predict(failing)
    with pytest.raises(AssertionError, match="computed"):
        labels.compute()


def test_paths_and_zarr_arrays(x: NDArray[np.float32], tmp_path: Path) -> None:
    stored = zarr.create_array(
        str(tmp_path / "x.zarr"), shape=x.shape, chunks=(500, 64), dtype=x.dtype
    )
    stored[:] = x
    expected = SCRLM(rho=0.5, n_clusters=20, block_rows=500).fit(x)
    for source in (stored, tmp_path / "x.zarr", str(tmp_path / "x.zarr")):
        fitted = SCRLM(rho=0.5, n_clusters=20, block_rows=500).fit(source)
        assert isinstance(fitted.labels_, da.Array)
        np.testing.assert_array_equal(fitted.labels_.compute(), expected.labels_)
        assert fitted.means_.tobytes() == expected.means_.tobytes()
        np.testing.assert_array_equal(fitted.predict(source).compute(), expected.labels_)


def test_integers_and_frames_are_accepted_in_memory(x: NDArray[np.float32]) -> None:
    whole = np.round(x * 100).astype(np.int64)
    assert SCRLM(rho=0.5, n_clusters=20).fit(whole).n_clusters_ == 10
    assert SCRLM(rho=0.5, n_clusters=20).fit(x.tolist()).n_clusters_ == 10
    fitted = SCRLM(rho=0.5, n_clusters=20).fit(
        pandas.DataFrame(x, columns=[f"f{i}" for i in range(64)])
    )
    assert list(fitted.feature_names_in_[:2]) == ["f0", "f1"]


def test_lazy_integers_are_rejected(x: NDArray[np.float32]) -> None:
    with pytest.raises(scrlm_dask.errors.InputError, match=expecting("int64", "astype")):
        SCRLM(rho=0.5).fit(da.from_array(np.ones((10, 2), np.int64)))


def test_pipeline_and_clone(x: NDArray[np.float32]) -> None:
    piped = make_pipeline(StandardScaler(), SCRLM(rho=0.5, n_clusters=20, preprocess="none"))
    np.testing.assert_array_equal(
        piped.fit_predict(x) == -1, SCRLM(rho=0.5, n_clusters=20).fit_predict(x) == -1
    )
    original = SCRLM(n_clusters=7, rho=0.4, random_state=3)
    assert clone(original).get_params() == original.get_params()


def test_random_state(x: NDArray[np.float32]) -> None:
    def rows(state: Any) -> list[int]:
        return (
            SCRLM(rho=0.5, n_clusters=20, n_candidates=200, random_state=state)
            .fit(x)
            .model_.center_rows.tolist()
        )

    assert rows(1) == rows(1) == rows(np.int64(1))
    assert rows(1) != rows(2)
    assert rows(np.random.RandomState(1)) == rows(np.random.RandomState(1))
    assert rows(None) != rows(None)


def test_invalid_input(x: NDArray[np.float32]) -> None:
    with pytest.raises(NotFittedError):
        SCRLM(rho=0.5).predict(x)
    fitted = SCRLM(rho=0.5, n_clusters=20).fit(x)
    with pytest.raises(ValueError, match=expecting("63 features", "64 features")):
        fitted.predict(x[:, :63])
    with pytest.raises(scrlm_dask.errors.InputError, match=expecting(63, 64)):
        fitted.predict(da.from_array(x[:, :63]))
    with pytest.raises(scrlm_dask.errors.InputError, match=expecting("rho", -1)):
        SCRLM(rho=-1).fit(x)
    with pytest.raises(scrlm_dask.errors.InputError, match=expecting("block_rows", 0, 1)):
        SCRLM(rho=0.5, block_rows=0).fit(x)
    for shape in ((5,), (5, 4, 3)):
        with pytest.raises(scrlm_dask.errors.InputError, match=expecting(len(shape))):
            fitted.predict(da.ones(shape))
    with pytest.raises(scrlm_dask.errors.InputError, match="complex128"):
        fitted.predict(da.ones((5, 64), dtype=complex))
    unknown = da.from_array(x)[da.from_array(x[:, 0]) > 0]
    with pytest.raises(scrlm_dask.errors.InputError, match="compute_chunk_sizes"):
        SCRLM(rho=0.5).fit(unknown)
    with pytest.raises(MissingError, match=expecting("/no/such/place.zarr")):
        SCRLM(rho=0.5).fit("/no/such/place.zarr")
    bad = x.copy()
    bad[1234, 5] = np.nan
    with pytest.raises(scrlm_dask.errors.InputError, match="row 1234"):
        SCRLM(rho=0.5).fit(da.from_array(bad, chunks=(500, 64)))
