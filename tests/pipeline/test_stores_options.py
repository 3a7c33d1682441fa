"""Storage options of a `FeatureStore` are used by every function that reads the store."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import scrlm_dask
from scrlm_dask import SCRLM, FeatureStore, FitConfig, KMeans, KMeansConfig
from scrlm_dask.errors import StoreError

ROWS = np.random.default_rng(0).standard_normal((60, 4)).astype(np.float32)
OPTIONS = {"token": "s3cr3t"}
URL = "locked://bucket/x.zarr"


class Locked(MemoryFileSystem):  # type: ignore[misc]
    """A file system in memory that requires an option."""

    protocol = "locked"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    cachable = False

    def __init__(self, token: str | None = None, **options: Any) -> None:
        if token != OPTIONS["token"]:
            raise PermissionError("token")
        super().__init__(**options)


@pytest.fixture(autouse=True)
def locked() -> Iterator[None]:
    fsspec.register_implementation("locked", Locked, clobber=True)
    yield
    Locked.store.clear()


@pytest.fixture
def store() -> FeatureStore:
    return FeatureStore.write(ROWS, URL, chunk_bytes=20 * 16, storage_options=OPTIONS)


def test_the_options_are_required(store: FeatureStore) -> None:
    assert store.path == URL
    with pytest.raises(StoreError, match=re.escape(URL)):
        FeatureStore(URL)


@pytest.mark.parametrize(
    "use",
    [
        lambda store, out: scrlm_dask.fit(store, FitConfig(rho=1.0), out=out),
        lambda store, out: scrlm_dask.kmeans(store, KMeansConfig(2, "random"), out=out),
        lambda store, out: SCRLM(rho=1.0).fit(store).labels_.compute(),
        lambda store, out: KMeans(2, init="random", max_iter=1).fit_predict(store).compute(),
        lambda store, out: scrlm_dask.plan_fit(store, FitConfig(rho=1.0, n_clusters=2)),
        lambda store, out: store.statistics(),
        lambda store, out: store.verify(),
        lambda store, out: FeatureStore.write(store, out),
    ],
    ids=["fit", "kmeans", "SCRLM", "KMeans", "plan_fit", "statistics", "verify", "write"],
)
@pytest.mark.filterwarnings("ignore::scrlm_dask.ScrlmWarning")
def test_functions_use_the_options_of_the_store(
    store: FeatureStore, use: Callable[..., Any], tmp_path: Path
) -> None:
    use(store, tmp_path / "out")


@pytest.mark.filterwarnings("ignore::scrlm_dask.ScrlmWarning")
def test_a_run_reads_its_features_with_its_own_options(store: FeatureStore) -> None:
    out = "locked://bucket/run"
    scrlm_dask.fit(store, FitConfig(rho=1.0), out=out, storage_options=OPTIONS)
    run = scrlm_dask.Run(out, storage_options=OPTIONS)
    assert run.verify(blocks=1, losses=0).ok
    assert run.predict(store).n_rows == len(ROWS)
    assert run.labels.compute().shape == (len(ROWS),)
