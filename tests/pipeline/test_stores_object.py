"""`FeatureStore`: a features store as an object, and as the source of every verb."""

from __future__ import annotations

from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from numpy.typing import NDArray

import scrlm_dask
from scrlm_dask import SCRLM, FeatureStore, FitConfig, KMeans
from scrlm_dask.errors import InputError, StoreError

ROWS: NDArray[np.float32] = np.random.default_rng(0).standard_normal((90, 4)).astype(np.float32)
TRUTH = np.arange(90) % 4 - 1


@pytest.fixture
def store(tmp_path: Path) -> FeatureStore:
    return FeatureStore.write(ROWS, tmp_path / "x.zarr", labels=TRUTH, chunk_bytes=40 * 16)


def test_a_store_has_shape_type_and_rows(store: FeatureStore, tmp_path: Path) -> None:
    assert store.shape == (90, 4)
    assert store.dtype == np.float32
    assert store.path == str(tmp_path / "x.zarr")
    assert isinstance(store.array, da.Array)
    np.testing.assert_array_equal(store.array.compute(), ROWS)
    assert repr(store) == f"FeatureStore({store.path!r}, shape=(90, 4), dtype=float32)"


def test_info_describes_the_store(store: FeatureStore) -> None:
    info = store.info()
    assert info.is_complete
    assert info.features.shape == (90, 4)
    assert info.labels == "int32"


def test_statistics_are_those_of_all_rows(store: FeatureStore) -> None:
    report = store.statistics(preprocess="none")
    np.testing.assert_allclose(report.statistics.means, ROWS.mean(axis=0), rtol=1e-5)
    assert report.statistics.n_rows == 90
    assert report.classes is not None
    with pytest.raises(InputError, match="-1"):
        store.statistics(rho=-1)


def test_verify_finds_a_damaged_chunk(store: FeatureStore) -> None:
    assert store.verify() == ()
    chunk = next(p for p in Path(store.path, "features", "c").rglob("*") if p.is_file())
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(bytes(content))
    (damaged,) = store.verify()
    assert damaged.first_row % 40 == 0


def test_write_replaces_only_on_request(store: FeatureStore) -> None:
    with pytest.raises(StoreError, match="--overwrite"):
        FeatureStore.write(ROWS, store.path)
    assert FeatureStore.write(ROWS[:50], store.path, overwrite=True).shape == (50, 4)


@pytest.mark.parametrize("estimator", [SCRLM(n_clusters=2, rho=1.0), KMeans(2, max_iter=2)])
def test_estimators_accept_a_store(store: FeatureStore, estimator: SCRLM | KMeans) -> None:
    labels = estimator.fit(store).labels_
    assert isinstance(labels, da.Array)
    by_path = estimator.fit(store.path).labels_
    np.testing.assert_array_equal(labels.compute(), by_path.compute())
    np.testing.assert_array_equal(estimator.predict(store).compute(), by_path.compute())


def test_functions_accept_a_store(store: FeatureStore, tmp_path: Path) -> None:
    config = FitConfig(rho=1.0)
    result = scrlm_dask.fit(store, config, out=tmp_path / "run")
    assert result.record["features"]["path"] == store.path
    assert scrlm_dask.Run(tmp_path / "run").verify().ok  # the run knows where its rows are
    assert FeatureStore.write(store, tmp_path / "copy.zarr").shape == store.shape


def test_storage_options_are_hidden(store: FeatureStore) -> None:
    opened = FeatureStore(store.path, storage_options={"key": "s3cr3t"})
    assert "s3cr3t" not in repr(opened) + repr(vars(opened))


def test_a_path_without_a_store_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere"):
        FeatureStore(tmp_path / "nowhere")
    np.save(tmp_path / "rows.npy", ROWS)
    with pytest.raises(StoreError, match=r"scrlm ingest .*rows\.npy"):
        FeatureStore(tmp_path / "rows.npy")


def test_one_source_may_be_given_without_a_list(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    written = scrlm_dask.ingest(tmp_path / "rows.npy", tmp_path / "y.zarr")
    assert (written.n_rows, written.n_features) == ROWS.shape
