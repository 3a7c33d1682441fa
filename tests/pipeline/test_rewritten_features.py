"""Runs verify features whose files were written after the digests of the manifest."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from backends import backend
from messages import expecting

import scrlm_dask
from scrlm_dask.errors import StoreError
from scrlm_dask.events import Event, Note, PhaseFinished
from scrlm_dask.pipeline.inspect import verify_store
from scrlm_dask.pipeline.predict import predict
from scrlm_dask.pipeline.stores import write_features

ROWS = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
FIT = scrlm_dask.FitConfig(rho=0.5, n_clusters=3, n_candidates=20)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with backend("one thread"):
        yield


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Write 200 rows in blocks of 50, with labels, which the digests also cover."""
    labels = np.zeros(200, int)
    write_features(ROWS, tmp_path / "x.zarr", labels=labels, chunk_bytes=50 * 16)
    return tmp_path / "x.zarr"


def fit(store: Path, **options: Any) -> Any:
    return scrlm_dask.fit(store, FIT, out=store.parent / "out", **options)


def kmeans(store: Path, **options: Any) -> Any:
    return scrlm_dask.kmeans(store, scrlm_dask.KMeansConfig(2), out=store.parent / "out", **options)


def label(store: Path, **options: Any) -> Any:
    model = scrlm_dask.kmeans(ROWS, scrlm_dask.KMeansConfig(2)).model
    return predict(model, store, out=store.parent / "out", **options)


def verified_rows(command: Callable[..., Any], store: Path, **options: Any) -> list[int]:
    """Run the command, remove its output, and return the rows of each phase `verify`."""
    events: list[Event] = []
    command(store, listener=events.append, **options)
    shutil.rmtree(store.parent / "out", ignore_errors=True)
    return [e.rows for e in events if isinstance(e, PhaseFinished) and e.name == "verify"]


@pytest.mark.parametrize("command", [fit, kmeans, label])
# with 20 rows per block, the blocks of the run are not those of the store
@pytest.mark.parametrize("block_rows", [None, 20])
def test_changed_rows_are_rejected(
    store: Path, command: Callable[..., Any], block_rows: int | None
) -> None:
    assert verified_rows(command, store, block_rows=block_rows) == []
    zarr.open_array(store / "features", mode="r+")[60:110] = 50
    facts = expecting("block 1", "rows 50 to 99", store, "restore", "2 blocks")
    for _ in range(2):
        with pytest.raises(StoreError, match=facts):
            command(store, block_rows=block_rows, listener=lambda event: None)
    assert not (store.parent / "out").exists()


@pytest.mark.parametrize("command", [fit, kmeans, label])
def test_copied_store_is_verified_until_the_copy_is_recorded(
    store: Path, command: Callable[..., Any]
) -> None:
    os.utime(store / "features/c/2/0")
    assert verified_rows(command, store) == verified_rows(command, store) == [200]
    assert verify_store(store, listener=lambda event: None) == ()
    assert verified_rows(command, store) == []
    shutil.move(store, store.parent / "moved.zarr")
    assert verified_rows(command, store.parent / "moved.zarr") == []


def test_store_that_is_not_recorded_as_verified(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[Event] = []
    zarr.open_array(store / "features", mode="r+")[3] = 50
    assert len(verify_store(store, listener=events.append)) == 1
    zarr.open_array(store / "features", mode="r+")[3] = ROWS[3]

    def reject(*_: object) -> None:
        raise PermissionError("read-only file system")

    with monkeypatch.context() as patch:
        patch.setattr("scrlm_dask.storage.arrays.set_attribute", reject)
        assert verify_store(store, listener=events.append) == ()
    assert [e.text for e in events if isinstance(e, Note) and "read-only" in e.text]
    assert verified_rows(kmeans, store) == [200]


def test_stores_without_digests_are_not_verified(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "x.zarr", data=ROWS, chunks=(50, 4))
    assert verified_rows(kmeans, tmp_path / "x.zarr") == []
    zarr.open_array(tmp_path / "x.zarr", mode="r+")[60:110] = 50
    assert verified_rows(kmeans, tmp_path / "x.zarr") == []


@pytest.mark.parametrize("write", ["ingest", "synth", "write"])
def test_new_stores_are_recorded(tmp_path: Path, write: str) -> None:
    store = tmp_path / "x.zarr"
    np.save(tmp_path / "x.npy", ROWS)
    for overwrite in (False, True):
        if write == "ingest":
            scrlm_dask.ingest(tmp_path / "x.npy", store, overwrite=overwrite)
        elif write == "synth":
            scrlm_dask.synth(store, 200, scrlm_dask.MixtureSpec(4, 2), overwrite=overwrite)
        else:
            write_features(ROWS, store, overwrite=overwrite)
        assert verified_rows(kmeans, store) == []
