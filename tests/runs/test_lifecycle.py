"""Lifecycle of a run, from its preparation to its result."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import zarr
from backends import backend
from messages import expecting
from trees import tree

from scrlm_dask.config import FitConfig
from scrlm_dask.engine.features import as_features
from scrlm_dask.errors import InputError, StoreError, UnusableRowsError
from scrlm_dask.events import BlockDone, RunEnded, RunStarted
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.stores import write_features
from scrlm_dask.runs.lifecycle import RunTarget, load_fit, open_run, prepare_target
from scrlm_dask.runs.record import start_record

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
CONFIG = FitConfig(rho=0.5, n_candidates=10)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with backend("one thread"):
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("features") / "x.zarr"
    write_features(X, path)
    return path


def target_of(source: Any, out: Path | None, overwrite: bool = False) -> RunTarget:
    features = as_features(source, 15)
    record = start_record(features, CONFIG, numbers={}, inputs={}, block_rows=15)
    return prepare_target(features, record, out, overwrite, True, None)


def status(out: Path) -> str:
    return str(json.loads((out / "run.json").read_text())["status"])


def test_preparation_writes_nothing(store: Path, tmp_path: Path) -> None:
    target = target_of(store, tmp_path / "run")
    assert target.out is not None
    assert target.out.url == str(tmp_path / "run")
    assert target.features.location is not None
    assert target.features.location.url == str(store)
    assert tree(tmp_path) == {}
    assert target_of(X, None).features.location is None


def test_existing_output_is_rejected_before_the_run(store: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(StoreError, match=expecting(tmp_path / "run")):
            target_of(store, tmp_path / "run", overwrite)
    with pytest.raises(StoreError, match=expecting(store)):
        target_of(store, store.parent)


def test_run_without_output(tmp_path: Path) -> None:
    events: list[Any] = []
    with open_run(target_of(X, None), "scrlm", events.append) as run:
        assert run.open_labels_output(3, margins=True) is None
        assert run.collects_labels
        assert not run.is_resumed
    assert [type(event) for event in events] == [RunStarted, RunEnded]
    started = events[0]
    assert (started.method, started.rows, started.n_features) == ("scrlm", 40, 3)
    assert started.out is None


def test_failed_run_can_be_resumed(store: Path, tmp_path: Path) -> None:
    out, resumed = tmp_path / "run", list[bool]()
    events: list[Any] = []
    target = target_of(store, out)

    def attempt(error: Exception) -> None:
        with open_run(target, "scrlm", events.append) as run:
            resumed.append(run.is_resumed)
            assert run.open_labels_output(3, margins=False) is not None
            assert status(out) == "running"
            assert not run.collects_labels  # the store contains them
            run.execution.checkpoints.save("value", 1)
            raise error

    for _ in range(2):
        with pytest.raises(RuntimeError, match="stopped"):
            attempt(RuntimeError("stopped"))
        assert status(out) == "interrupted"
        assert isinstance(events[-1], RunEnded)
        assert events[-1].error == "RuntimeError"
    assert json.loads((out / "run.json").read_text())["attempts"] == 2
    assert resumed == [False, True]


def test_rejected_input_leaves_no_directory(store: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(InputError, match="rho=3"),
        open_run(target_of(store, tmp_path / "run"), "scrlm", lambda event: None),
    ):
        raise InputError("rho=3")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("watch", [True, False])
def test_complete_run_is_loaded(store: Path, tmp_path: Path, watch: bool) -> None:
    with dask.config.set({"scrlm.watch": watch}):
        found = fit(
            store,
            CONFIG,
            out=tmp_path / "run",
            collect_labels=True,
            block_rows=15,
            listener=lambda event: None,
        )
    assert status(tmp_path / "run") == "complete"
    assert (tmp_path / "run" / "events.jsonl").exists() == watch
    assert found.labels is not None
    assert len(found.labels) == 40
    loaded = load_fit(tmp_path / "run")
    assert loaded.labels is None
    assert loaded.record["counts"] == found.record["counts"]
    np.testing.assert_array_equal(loaded.model.centers, found.model.centers)
    assert "<" in loaded._repr_html_()


def write_versions(folder: Path) -> Path:
    """Write two stores whose files have the same sizes and times; link to the folder of one."""
    for name, rows in (("v1", X), ("v2", X + 30)):
        path = folder / name / "x.zarr"
        array = zarr.create_array(path, shape=X.shape, chunks=(10, 3), dtype="f4", compressors=None)
        array[:] = rows
        for file in path.rglob("*"):
            os.utime(file, ns=(10**18, 10**18))
    link = folder / "current"
    link.symlink_to("v1")
    return link


def switch(link: Path) -> None:
    link.unlink()
    link.symlink_to("v2")


def test_link_to_another_store_is_detected(tmp_path: Path) -> None:
    link = write_versions(tmp_path)

    def listener(event: object) -> None:
        if isinstance(event, BlockDone) and link.resolve() == tmp_path / "v1":
            switch(link)

    with pytest.raises(UnusableRowsError, match=f"{link}/x.zarr"):
        fit(link / "x.zarr", CONFIG, out=tmp_path / "run", block_rows=10, listener=listener)
    assert not (tmp_path / "run").exists()


def test_links_above_a_store_are_not_recorded(tmp_path: Path) -> None:
    """The store may later be mounted elsewhere."""
    link = write_versions(tmp_path)
    records = []
    for out in ("one", "two"):
        record = fit(link / "x.zarr", CONFIG, out=tmp_path / out, listener=lambda _: None).record
        records.append((record["features"], record["features_written"]))
        switch(link)
    assert records[0] == records[1]
