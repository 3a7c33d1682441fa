"""Runs that were stopped anywhere go on with the same bits, and repeat little."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
import pytest
import zarr

from scrlm_dask import load_model
from scrlm_dask.config import FitConfig, KMeansConfig, LloydConfig
from scrlm_dask.engine.workers import WorkerMemory
from scrlm_dask.errors import InputError, ScrlmWarning, StoreError
from scrlm_dask.events import BlockDone
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.kmeans import kmeans
from scrlm_dask.pipeline.synth import synth

N_BLOCKS, BLOCK_ROWS = 40, 50
ITERATE = LloydConfig(max_iter=3, tol=0.0, inertia_tol=0.0, persist="no")
FIT = FitConfig(rho=0.5, n_clusters=6, polish=True, refine=replace(ITERATE, sample=0.3))
KMEANS = KMeansConfig(n_clusters=4, init="k-means++", lloyd=ITERATE, preprocess="standardize")
WAYS: dict[str, tuple[Callable[..., Any], Any]] = {
    "fit": (fit, FIT),
    # few clusters: the sums of many are larger than these small blocks, which then grow
    "auto": (fit, FitConfig(min_neighbors=50)),
    "merge": (fit, FitConfig(n_clusters=7, extraction="merge", refine=ITERATE)),
    "kmeans": (kmeans, KMEANS),
}


class StoppedError(Exception):
    """What a run is stopped by here."""


class StopAt:
    """Counts blocks that were computed, and stops a run at one of them."""

    def __init__(self, block: int | None = None) -> None:
        self.blocks, self._last = 0, block

    def __call__(self, event: Any) -> None:
        if isinstance(event, BlockDone) and event.rows <= BLOCK_ROWS:  # else of an earlier attempt
            self.blocks += 1
            if self.blocks == self._last:
                raise StoppedError


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    settings = {"scheduler": "threads", "num_workers": 1, "scrlm.checkpoint-seconds": 0}
    with dask.config.set(settings):
        yield


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("features") / "features.zarr"
    rows = N_BLOCKS * BLOCK_ROWS
    synth(path, rows, MixtureSpec(8, 3), chunk_bytes=BLOCK_ROWS * 32)
    return path


def run(way: str, store: Path, out: Path, listener: Any = None, **config: Any) -> Any:
    command, asked = WAYS[way]
    listener = listener or StopAt()
    return command(
        store, replace(asked, **config), out=out, block_rows=BLOCK_ROWS, listener=listener
    )


def bits(out: Path) -> dict[str, bytes]:
    folders = (out / "labels.zarr", out / "model.zarr")
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    return {str(file.relative_to(out)): file.read_bytes() for file in files}


def status(out: Path) -> str:
    return json.loads((out / "run.json").read_text())["status"]


@pytest.fixture(scope="module")
def undisturbed(store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    found = {}
    for way in WAYS:
        out, counted = tmp_path_factory.mktemp("undisturbed") / way, StopAt()
        run(way, store, out, counted)
        found[way] = bits(out), counted.blocks
        assert not (out / "checkpoint").exists()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("share", [0.02, 0.2, 0.45, 0.7, 0.97])
def test_stopped_anywhere(
    way: str, share: float, store: Path, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    out, (expected, n_blocks) = tmp_path / "run", undisturbed[way]
    first = StopAt(int(share * n_blocks))
    with pytest.raises(StoppedError) as caught:
        run(way, store, out, first)
    command = "kmeans" if way == "kmeans" else "fit"
    assert f"scrlm {command} --resume {out}" in caught.value.__notes__[0]
    assert status(out) == "interrupted"
    with pytest.raises(StoreError, match="not complete"):
        load_model(out)
    second = StopAt()
    found = run(way, store, out, second)
    assert bits(out) == expected
    assert found.record["attempts"] == 2
    # 40 blocks are 5 groups of 8: no more than the one in hand is repeated
    assert second.blocks <= n_blocks - first.blocks + 8
    assert not (out / "checkpoint").exists()
    assert status(out) == "complete"


@pytest.mark.slow
def test_stopped_again_and_again(store: Path, tmp_path: Path, undisturbed: dict[str, Any]) -> None:
    out, attempts = tmp_path / "run", 0
    while not out.exists() or status(out) != "complete":
        attempts += 1
        assert attempts < 40, "a run that is stopped every 17 blocks still comes on by groups of 8"
        try:
            run("fit", store, out, StopAt(17))
        except StoppedError:
            assert status(out) == "interrupted"
    assert attempts > 10
    assert bits(out) == undisturbed["fit"][0]


@pytest.mark.slow
def test_a_broken_iteration_falls_back_to_the_one_before(
    store: Path, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    out, n_blocks = tmp_path / "run", undisturbed["kmeans"][1]
    with pytest.raises(StoppedError):
        run("kmeans", store, out, StopAt(n_blocks - 45))  # within the last iteration
    kept = sorted(out.glob("checkpoint/refined-steps/iteration.*"))
    assert [path.name for path in kept] == ["iteration.000001", "iteration.000002"]
    kept[-1].write_bytes(kept[-1].read_bytes()[:-3])
    with pytest.warns(ScrlmWarning, match=r"iteration\.000002.*damaged"):
        WAYS["kmeans"][0](store, KMEANS, out=out, block_rows=BLOCK_ROWS)
    assert bits(out) == undisturbed["kmeans"][0]


@pytest.mark.slow
def test_labels_that_were_lost_are_written_again(
    store: Path, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    out, (expected, n_blocks) = tmp_path / "run", undisturbed["fit"]
    with pytest.raises(StoppedError):
        run("fit", store, out, StopAt(n_blocks - 5))
    group = int(min(out.glob("checkpoint/assign-1-*/group.*")).suffix[1:])
    chunk = out / "labels.zarr" / "distances" / "c" / str(8 * group + 3)
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with pytest.warns(ScrlmWarning, match=f"group {group} of the pass assign"):
        fit(store, FIT, out=out, block_rows=BLOCK_ROWS)
    assert bits(out) == expected


@pytest.mark.parametrize(
    ("changed", "words"),
    [({"rho": 0.4}, "config rho was 0.5 and is 0.4"), ({"seed": 1}, "config seed was 0 and is 1")],
)
def test_something_else_is_refused_by_name(
    store: Path, tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    out = tmp_path / "run"
    with pytest.raises(StoppedError):
        run("fit", store, out, StopAt(50))
    before = sorted(out.rglob("*"))
    with pytest.raises(StoreError, match=words):
        run("fit", store, out, **changed)
    with pytest.raises(StoreError, match="features block_rows was 50 and is 25"):
        fit(store, FIT, out=out, block_rows=25)
    assert sorted(out.rglob("*")) == before


def test_features_that_changed_are_refused(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "features.zarr"
    array = zarr.create_array(other, shape=(200, 4), chunks=(50, 4), dtype="f4")
    array[:] = np.random.default_rng(0).normal(size=(200, 4))
    out = tmp_path / "run"
    with pytest.raises(StoppedError):
        fit(other, FitConfig(rho=0.5), out=out, block_rows=50, listener=StopAt(5))
    array[:50] = 1.0
    with pytest.raises(StoreError, match="features digest was"):
        fit(other, FitConfig(rho=0.5), out=out, block_rows=50)
    fit(other, FitConfig(rho=0.5), out=out, block_rows=50, overwrite=True, listener=StopAt())
    assert status(out) == "complete"


def test_features_that_change_during_the_run_have_no_result(tmp_path: Path) -> None:
    place, out = tmp_path / "features.zarr", tmp_path / "run"
    array = zarr.create_array(place, shape=(200, 4), chunks=(50, 4), dtype="f4")
    array[:] = np.random.default_rng(0).normal(size=(200, 4))

    def write(event: Any) -> None:
        if isinstance(event, BlockDone) and event.name == "assign":
            array[150:] = 2.0

    with pytest.raises(InputError, match="changed during the run"):
        fit(place, FitConfig(rho=0.5), out=out, block_rows=50, listener=write)
    assert not out.exists()


@pytest.mark.slow
def test_rows_written_behind_the_manifest_are_noticed(store: Path, tmp_path: Path) -> None:
    place, out = tmp_path / "features.zarr", tmp_path / "run"
    shutil.copytree(store, place)
    chunks = [file for file in (place / "features" / "c").rglob("*") if file.is_file()]
    kept = {chunk: chunk.read_bytes() for chunk in chunks}
    with pytest.raises(StoppedError):
        run("fit", place, out, StopAt(90))
    zarr.open_array(place / "features", mode="r+")[3 * BLOCK_ROWS] = 1.5
    for _ in range(2):  # whoever asks again is refused again
        with pytest.raises(StoreError, match=r"block \d+ .* not what it was when the run began"):
            run("fit", place, out)
        assert status(out) == "interrupted"
    # restored: another time of writing, and the rows that the manifest knows
    for chunk, content in kept.items():
        chunk.write_bytes(content)
    run("fit", place, out)
    assert status(out) == "complete"
    again, written = tmp_path / "again", []

    def write(event: Any) -> None:
        if isinstance(event, BlockDone) and event.name == "assign" and not written:
            written.append(event)
            zarr.open_array(place / "features", mode="r+")[0] = 1.5

    with pytest.raises(InputError, match="changed during the run"):
        run("fit", place, again, write)
    assert not again.exists()


def notes_of(way: str, store: Path, out: Path) -> tuple[list[str], Any]:
    """What a run says, and what it finds."""
    notes: list[str] = []
    found = run(way, store, out, lambda event: notes.append(getattr(event, "text", "")))
    return notes, found


@pytest.mark.slow
def test_rows_that_were_wrong_while_they_were_read_are_not_trusted(
    store: Path, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    """Also if they are right again when the run goes on."""
    place, out = tmp_path / "features.zarr", tmp_path / "run"
    shutil.copytree(store, place)
    chunk = next(file for file in (place / "features" / "c").rglob("*") if file.is_file())
    kept, stop = chunk.read_bytes(), StopAt(30)

    def write(event: Any) -> None:
        if isinstance(event, BlockDone):
            zarr.open_array(place / "features", mode="r+")[:BLOCK_ROWS] = 1.5
        stop(event)

    with pytest.raises(StoppedError) as caught:
        run("kmeans", place, out, write)
    assert "nothing that was computed can be trusted" in caught.value.__notes__[0]
    with pytest.raises(StoreError, match="not what it was when the run began"):
        run("kmeans", place, out)
    zarr.open_array(place / "features", mode="r+")[:] = zarr.open_array(
        store / "features", mode="r"
    )[:]
    chunk.write_bytes(kept)
    notes, found = notes_of("kmeans", place, out)
    assert any("everything is computed again" in note for note in notes)
    assert found.record["taken_over"] == {}
    assert bits(out) == undisturbed["kmeans"][0]


@pytest.mark.slow
@pytest.mark.parametrize("touched", [False, True])
def test_a_run_that_was_killed_cannot_tell_what_it_read(
    touched: bool, store: Path, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    place, out = tmp_path / "features.zarr", tmp_path / "run"
    shutil.copytree(store, place)
    with pytest.raises(StoppedError):
        run("kmeans", place, out, StopAt(90))
    record = json.loads((out / "run.json").read_text())
    del record["features_left"]
    (out / "run.json").write_text(json.dumps(record | {"status": "running"}))
    if touched:
        next(file for file in (place / "features" / "c").rglob("*") if file.is_file()).touch()
    notes, found = notes_of("kmeans", place, out)
    assert any("everything is computed again" in note for note in notes) == touched
    assert (found.record["taken_over"] == {}) == touched
    assert bits(out) == undisturbed["kmeans"][0]


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True])
def test_whoever_lost_its_place_leaves_it_alone(stopped: bool, store: Path, tmp_path: Path) -> None:
    """Another process, of a machine whose processes nobody sees here, began anew."""
    out = tmp_path / "run"
    stop = StopAt(60 if stopped else None)

    def replaced(event: Any) -> None:
        if isinstance(event, BlockDone) and stop.blocks == 20:
            record = json.loads((out / "run.json").read_text())
            (out / "run.json").write_text(json.dumps(record | {"attempt": "another"}))
        stop(event)

    expected = StoppedError if stopped else StoreError
    with pytest.raises(expected) as caught:
        run("kmeans", store, out, replaced)
    assert stopped or "begun anew by another process" in str(caught.value)
    left = json.loads((out / "run.json").read_text())
    assert (left["status"], left["attempt"]) == ("running", "another")
    assert not (out / "model.zarr").exists()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_labels_that_are_collected_are_all_of_them(
    way: str, store: Path, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    """Also those that an attempt wrote which collected none."""
    out, (command, asked) = tmp_path / "run", WAYS[way]
    with pytest.raises(StoppedError):
        run(way, store, out, StopAt(undisturbed[way][1] - 5))
    found = command(store, asked, out=out, block_rows=BLOCK_ROWS, collect_labels=True)
    np.testing.assert_array_equal(
        found.labels, zarr.open_array(out / "labels.zarr" / "labels", mode="r")[:]
    )
    assert len(found.labels) == N_BLOCKS * BLOCK_ROWS


@pytest.mark.slow
def test_labels_by_other_centers_are_not_taken_over(
    store: Path, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    """Centers that were lost, and come out otherwise because the clock stops them elsewhere."""
    out, n_blocks = tmp_path / "run", undisturbed["kmeans"][1]
    with pytest.raises(StoppedError):
        run("kmeans", store, out, StopAt(n_blocks - 5))
    for kept in (out / "checkpoint").glob("refined*"):
        kept.unlink() if kept.is_file() else shutil.rmtree(kept)
    record = json.loads((out / "run.json").read_text())
    record["asked"]["config"]["lloyd"]["max_iter"] = 1
    (out / "run.json").write_text(json.dumps(record))
    lloyd = replace(ITERATE, max_iter=1)
    found = run("kmeans", store, out, lloyd=lloyd)
    assert "assign" not in found.record["taken_over"]
    expected = run("kmeans", store, tmp_path / "alone", lloyd=lloyd)
    np.testing.assert_array_equal(found.model.counts, expected.model.counts)
    assert bits(out) == bits(tmp_path / "alone")


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_worker_or_a_setting_that_is_refused_costs_no_work(
    way: str, store: Path, tmp_path: Path, undisturbed: dict[str, Any], monkeypatch: Any
) -> None:
    out, (expected, n_blocks) = tmp_path / "run", undisturbed[way]
    with pytest.raises(StoppedError):
        run(way, store, out, StopAt(n_blocks - 60))
    if way != "auto":  # which has no iterations that ask for the setting
        with (
            dask.config.set({"scrlm.checkpoint-seconds": "5s"}),
            pytest.raises(InputError, match="checkpoint-seconds is '5s'"),
        ):
            run(way, store, out)
    assert status(out) == "interrupted"
    small = [WorkerMemory(50_000_000, 1)]
    for name in ("fit", "kmeans"):
        monkeypatch.setattr(f"scrlm_dask.pipeline.{name}.worker_memories", lambda: small)
    with pytest.raises(InputError, match="give more memory"):
        run(way, store, out)
    monkeypatch.undo()
    run(way, store, out)
    assert bits(out) == expected


@pytest.mark.slow
def test_a_process_number_that_is_used_again_is_another_process(
    store: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(StoppedError):
        run("kmeans", store, out, StopAt(60))
    record = json.loads((out / "run.json").read_text())
    parent = psutil.Process(os.getppid())
    alive = {"host": socket.gethostname(), "pid": parent.pid}
    began = round(parent.create_time())
    for process in (alive | {"began": began}, alive | {"began": began - 100}):
        (out / "run.json").write_text(
            json.dumps(record | {"status": "running", "process": process})
        )
        if process["began"] == began:
            with pytest.raises(StoreError, match=f"written by the process {parent.pid}"):
                run("kmeans", store, out)
            with pytest.raises(StoreError, match=f"written by the process {parent.pid}"):
                kmeans(store, KMEANS, out=out, block_rows=BLOCK_ROWS, overwrite=True)
            rows = np.zeros((10, 2))  # of which nothing could be kept
            with pytest.raises(StoreError, match=f"written by the process {parent.pid}"):
                kmeans(rows, KMEANS, out=out, overwrite=True)
            assert status(out) == "running"
    run("kmeans", store, out)
    assert status(out) == "complete"


def test_input_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    place, out = tmp_path / "features.zarr", tmp_path / "run"
    rows = np.ones((200, 4), "f4")
    rows[170, 2] = np.nan
    zarr.create_array(place, data=rows, chunks=(50, 4))
    with pytest.raises(InputError, match=r"row 170 \(block 3\)"):
        fit(place, FitConfig(rho=0.5), out=out, block_rows=50)
    assert not out.exists()


def test_arrays_in_memory_cannot_be_found_again(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(200, 4)).astype("f4")
    with pytest.raises(StoppedError):
        fit(rows, FitConfig(rho=0.5), out=tmp_path / "run", block_rows=50, listener=StopAt(6))
    assert not (tmp_path / "run").exists()
