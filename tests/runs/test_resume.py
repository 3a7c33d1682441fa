"""A run that stops at any block can be resumed, gives the same bits and repeats little work."""

from __future__ import annotations

import json
import os
import re
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
from messages import expecting

from scrlm_dask.config import FitConfig, KMeansConfig, LloydConfig
from scrlm_dask.engine.workers import WorkerMemory
from scrlm_dask.errors import InputError, ScrlmWarning, StoreError, UnusableRowsError
from scrlm_dask.events import BlockDone, Note
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.kmeans import kmeans
from scrlm_dask.pipeline.synth import synth
from scrlm_dask.runs.resume import list_differences
from scrlm_dask.storage.model_store import load_model
from scrlm_dask.storage.outputs import describe_process

N_BLOCKS, BLOCK_ROWS = 40, 50
ITERATE = LloydConfig(max_iter=3, tol=0.0, inertia_tol=0.0, persist="no")
FIT = FitConfig(rho=0.5, n_clusters=6, polish=True, refine=replace(ITERATE, sample=0.3))
KMEANS = KMeansConfig(n_clusters=4, init="k-means++", lloyd=ITERATE, preprocess="standardize")
CASES: dict[str, tuple[Callable[..., Any], Any]] = {
    "fit": (fit, FIT),
    # Few clusters: sums of many clusters would be larger than these blocks and enlarge them.
    "auto": (fit, FitConfig(min_neighbors=50)),
    "merge": (fit, FitConfig(n_clusters=7, extraction="merge", refine=ITERATE)),
    "kmeans": (kmeans, KMEANS),
}


class StoppedError(Exception):
    """The error that stops a run in these tests."""


class StopAt:
    """A listener that counts computed blocks and stops the run at the given one."""

    def __init__(self, block: int | None = None) -> None:
        self.blocks, self._last = 0, block

    def __call__(self, event: Any) -> None:
        # An event with more rows reports blocks of an earlier attempt.
        if isinstance(event, BlockDone) and event.rows <= BLOCK_ROWS:
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


def run(case: str, store: Path, out: Path, listener: Any = None, **config: Any) -> Any:
    command, settings = CASES[case]
    listener = listener or StopAt()
    return command(
        store, replace(settings, **config), out=out, block_rows=BLOCK_ROWS, listener=listener
    )


def bits(out: Path) -> dict[str, bytes]:
    folders = (out / "labels.zarr", out / "model.zarr")
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    return {str(file.relative_to(out)): file.read_bytes() for file in files}


def status(out: Path) -> str:
    return json.loads((out / "run.json").read_text())["status"]


@pytest.fixture(scope="module")
def uninterrupted(store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the bits and the number of blocks of each run without a stop."""
    results = {}
    for case in CASES:
        out, counter = tmp_path_factory.mktemp("uninterrupted") / case, StopAt()
        run(case, store, out, counter)
        results[case] = bits(out), counter.blocks
        assert not (out / "checkpoint").exists()
    return results


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("share", [0.02, 0.2, 0.45, 0.7, 0.97])
def test_run_stopped_at_any_block(
    case: str, share: float, store: Path, tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    out, (expected, n_blocks) = tmp_path / "run", uninterrupted[case]
    first = StopAt(int(share * n_blocks))
    with pytest.raises(StoppedError) as caught:
        run(case, store, out, first)
    command = "kmeans" if case == "kmeans" else "fit"
    assert f"scrlm {command} --resume {out}" in caught.value.__notes__[0]
    assert status(out) == "interrupted"
    with pytest.raises(StoreError, match=expecting(out, "interrupted", "--overwrite")):
        load_model(out)
    second = StopAt()
    found = run(case, store, out, second)
    assert bits(out) == expected
    assert found.record["attempts"] == 2
    # 40 blocks are 5 groups of 8; only the unfinished group is repeated.
    assert second.blocks <= n_blocks - first.blocks + 8
    assert not (out / "checkpoint").exists()
    assert status(out) == "complete"


@pytest.mark.slow
def test_run_stopped_many_times(store: Path, tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    out, attempts = tmp_path / "run", 0
    while not out.exists() or status(out) != "complete":
        attempts += 1
        assert attempts < 40, "a run that stops after 17 blocks must save its groups of 8 blocks"
        try:
            run("fit", store, out, StopAt(17))
        except StoppedError:
            assert status(out) == "interrupted"
    assert attempts > 10
    assert bits(out) == uninterrupted["fit"][0]


@pytest.mark.slow
def test_damaged_iteration_falls_back_to_the_previous_one(
    store: Path, tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    out, n_blocks = tmp_path / "run", uninterrupted["kmeans"][1]
    with pytest.raises(StoppedError):
        run("kmeans", store, out, StopAt(n_blocks - 45))  # within the last iteration
    saved = sorted(out.glob("checkpoint/refined-steps/iteration.*"))
    assert [path.name for path in saved] == ["iteration.000001", "iteration.000002"]
    saved[-1].write_bytes(saved[-1].read_bytes()[:-3])
    with pytest.warns(ScrlmWarning, match=r"iteration\.000002"):
        CASES["kmeans"][0](store, KMEANS, out=out, block_rows=BLOCK_ROWS)
    assert bits(out) == uninterrupted["kmeans"][0]


@pytest.mark.slow
def test_lost_labels_are_written_again(
    store: Path, tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    out, (expected, n_blocks) = tmp_path / "run", uninterrupted["fit"]
    with pytest.raises(StoppedError):
        run("fit", store, out, StopAt(n_blocks - 5))
    group = int(min(out.glob("checkpoint/assign-1-*/group.*")).suffix[1:])
    chunk = out / "labels.zarr" / "distances" / "c" / str(8 * group + 3)
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with pytest.warns(ScrlmWarning, match=expecting(f"group {group}", "assign")):
        fit(store, FIT, out=out, block_rows=BLOCK_ROWS)
    assert bits(out) == expected


@pytest.mark.parametrize(
    ("changed", "facts"), [({"rho": 0.4}, ("rho", 0.5, 0.4)), ({"seed": 123}, ("seed", 0, 123))]
)
def test_changed_settings_are_rejected_by_name(
    store: Path, tmp_path: Path, changed: dict[str, Any], facts: tuple[Any, ...]
) -> None:
    out = tmp_path / "run"
    with pytest.raises(StoppedError):
        run("fit", store, out, StopAt(50))
    before = sorted(out.rglob("*"))
    with pytest.raises(StoreError, match=expecting(out, *facts, "--overwrite")):
        run("fit", store, out, **changed)
    with pytest.raises(StoreError, match=expecting(out, "block_rows", 50, 25)):
        fit(store, FIT, out=out, block_rows=25)
    assert sorted(out.rglob("*")) == before


def test_changed_features_are_rejected(store: Path, tmp_path: Path) -> None:
    other = tmp_path / "features.zarr"
    array = zarr.create_array(other, shape=(200, 4), chunks=(50, 4), dtype="f4")
    array[:] = np.random.default_rng(0).normal(size=(200, 4))
    out = tmp_path / "run"
    with pytest.raises(StoppedError):
        fit(other, FitConfig(rho=0.5), out=out, block_rows=50, listener=StopAt(5))
    array[:50] = 1.0
    with pytest.raises(StoreError, match=expecting(out, "digest", "--overwrite")):
        fit(other, FitConfig(rho=0.5), out=out, block_rows=50)
    fit(other, FitConfig(rho=0.5), out=out, block_rows=50, overwrite=True, listener=StopAt())
    assert status(out) == "complete"


def test_features_that_change_during_the_run_give_no_result(tmp_path: Path) -> None:
    path, out = tmp_path / "features.zarr", tmp_path / "run"
    array = zarr.create_array(path, shape=(200, 4), chunks=(50, 4), dtype="f4")
    array[:] = np.random.default_rng(0).normal(size=(200, 4))

    def write(event: Any) -> None:
        if isinstance(event, BlockDone) and event.name == "assign":
            array[150:] = 2.0

    with pytest.raises(UnusableRowsError, match=expecting(path)):
        fit(path, FitConfig(rho=0.5), out=out, block_rows=50, listener=write)
    assert not out.exists()


@pytest.mark.parametrize("out", [True, False])
def test_features_behind_a_link_that_change_during_the_run(tmp_path: Path, out: bool) -> None:
    path, run_at = tmp_path / "features.zarr", tmp_path / "run" if out else None
    array = zarr.create_array(path, shape=(200, 4), chunks=(50, 4), dtype="f4")
    array[:] = np.random.default_rng(0).normal(size=(200, 4))
    (path / "c").rename(tmp_path / "elsewhere")
    (path / "c").symlink_to(tmp_path / "elsewhere")

    def write(event: Any) -> None:
        if isinstance(event, BlockDone) and event.name == "assign":
            array[150:] = 2.0

    with pytest.raises(UnusableRowsError, match=expecting(path)):
        fit(path, FitConfig(rho=0.5), out=run_at, block_rows=50, listener=write)
    assert not (tmp_path / "run").exists()


def test_features_behind_a_link_that_change_between_attempts(store: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "features.zarr", tmp_path / "run"
    shutil.copytree(store, path)
    (path / "features/c").rename(tmp_path / "elsewhere")
    (path / "features/c").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoppedError):
        run("kmeans", path, out, StopAt(60))
    zarr.open_array(path / "features", mode="r+")[3] = 1.5
    with pytest.raises(StoreError, match=expecting("block 0", path, "--overwrite")):
        run("kmeans", path, out)


@pytest.mark.parametrize("form", ["npy", "zarr"])
def test_weights_that_change_during_the_run_give_no_result(
    store: Path, tmp_path: Path, form: str
) -> None:
    weights, out = tmp_path / f"weights.{form}", tmp_path / "run"
    values = np.ones(N_BLOCKS * BLOCK_ROWS)

    def write_weights() -> None:
        if form == "npy":
            np.save(weights, values)
        else:
            zarr.create_array(weights, data=values, overwrite=True)

    def write(event: Any) -> None:
        if isinstance(event, BlockDone) and event.name == "assign" and values[0] == 1.0:
            values[:7] = 3.0
            write_weights()

    write_weights()
    with pytest.raises(UnusableRowsError, match=expecting(weights)):
        kmeans(store, KMEANS, sample_weight=weights, out=out, listener=write)
    assert not out.exists()


@pytest.mark.parametrize("name", ["fit", "kmeans", "weights"])
def test_memory_mapped_array_whose_file_changes_during_the_run(tmp_path: Path, name: str) -> None:
    path, out, x = tmp_path / "x.npy", tmp_path / "run", np.random.default_rng(0).random((200, 4))
    np.save(path, np.ones(200) if name == "weights" else x)
    mapped = np.load(path, mmap_mode="r")

    def write(event: Any) -> None:
        if isinstance(event, BlockDone) and event.name == "assign":
            with path.open("r+b") as file:
                file.seek(-8, os.SEEK_END)
                file.write(np.float64(3.0).tobytes())

    def use(listener: Callable[[Any], None], out: Path) -> None:
        if name == "fit":
            fit(mapped[::2], FitConfig(rho=0.5), out=out, block_rows=50, listener=listener)
        else:
            rows, weights = (x, mapped) if name == "weights" else (mapped, None)
            kmeans(rows, KMEANS, sample_weight=weights, out=out, block_rows=50, listener=listener)

    use(lambda _: None, tmp_path / "unchanged")
    with pytest.raises(UnusableRowsError, match=expecting(path)):
        use(write, out)
    assert not out.exists()


@pytest.mark.slow
def test_rows_that_differ_from_the_manifest_are_detected(store: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "features.zarr", tmp_path / "run"
    shutil.copytree(store, path)
    chunks = [file for file in (path / "features" / "c").rglob("*") if file.is_file()]
    original = {chunk: chunk.read_bytes() for chunk in chunks}
    with pytest.raises(StoppedError):
        run("fit", path, out, StopAt(90))
    zarr.open_array(path / "features", mode="r+")[3 * BLOCK_ROWS] = 1.5
    for _ in range(2):  # the second attempt is also rejected
        with pytest.raises(StoreError, match=expecting("block 0", path, "--overwrite")):
            run("fit", path, out)
        assert status(out) == "interrupted"
    # Restored chunks have new modification times, but the rows of the manifest.
    for chunk, content in original.items():
        chunk.write_bytes(content)
    run("fit", path, out)
    assert status(out) == "complete"
    again, written = tmp_path / "again", []

    def write(event: Any) -> None:
        if isinstance(event, BlockDone) and event.name == "assign" and not written:
            written.append(event)
            zarr.open_array(path / "features", mode="r+")[0] = 1.5

    with pytest.raises(UnusableRowsError, match=expecting(path)):
        run("fit", path, again, write)
    assert not again.exists()


def run_with_warnings(case: str, store: Path, out: Path) -> tuple[list[Note], Any]:
    """Return the warnings and the result of a run."""
    events: list[Any] = []
    result = run(case, store, out, events.append)
    return [event for event in events if isinstance(event, Note) and event.warning], result


def note_of(error: BaseException, out: Path) -> str:
    """Return the note that a stopped run adds to its error, without the path of the run."""
    return error.__notes__[0].replace(str(out), "RUN")


@pytest.mark.slow
def test_checkpoint_of_changed_rows_is_not_used(
    store: Path, tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    """The rows were wrong during the first attempt, but are correct on resume."""
    path, out, other = tmp_path / "features.zarr", tmp_path / "run", tmp_path / "other"
    shutil.copytree(store, path)
    chunk = next(file for file in (path / "features" / "c").rglob("*") if file.is_file())
    original, stop = chunk.read_bytes(), StopAt(30)

    def write(event: Any) -> None:
        if isinstance(event, BlockDone):
            zarr.open_array(path / "features", mode="r+")[:BLOCK_ROWS] = 1.5
        stop(event)

    with pytest.raises(StoppedError) as trusted:
        run("kmeans", store, other, StopAt(30))
    with pytest.raises(StoppedError) as caught:
        run("kmeans", path, out, write)
    assert note_of(caught.value, out) != note_of(trusted.value, other)
    assert "scrlm kmeans --resume RUN" in note_of(caught.value, out)
    with pytest.raises(StoreError, match=expecting("block 0", path, "--overwrite")):
        run("kmeans", path, out)
    zarr.open_array(path / "features", mode="r+")[:] = zarr.open_array(
        store / "features", mode="r"
    )[:]
    chunk.write_bytes(original)
    warnings, result = run_with_warnings("kmeans", path, out)
    assert len(warnings) == 1
    assert result.record["taken_over"] == {}
    assert bits(out) == uninterrupted["kmeans"][0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("process", value) for value in ("x", [1], 1, True)),
        *(("attempts", value) for value in (None, "x", True)),
        *(("asked", value) for value in (None, {}, {"config": 1})),
        *(("versions", []), ("features", None), ("features_left", [])),
    ],
)
def test_damaged_record_of_a_killed_run_is_rejected(
    store: Path, tmp_path: Path, name: str, value: Any
) -> None:
    out = tmp_path / "run"
    with pytest.raises(StoppedError):
        run("fit", store, out, StopAt(3))
    record = json.loads((out / "run.json").read_text())
    process = {"host": socket.gethostname(), "pid": 2**22 + 1, "began": "x 1"}
    killed = record | {"status": "running", "process": process}
    (out / "run.json").write_text(json.dumps(killed | {name: value}))
    with pytest.raises(StoreError, match=expecting(out / "run.json", "--overwrite")):
        run("fit", store, out)
    assert json.loads((out / "run.json").read_text())[name] == value
    command, config = CASES["fit"]
    command(store, config, out=out, overwrite=True, block_rows=BLOCK_ROWS, listener=StopAt())
    assert status(out) == "complete"


@pytest.mark.slow
@pytest.mark.parametrize("touched", [False, True])
def test_killed_run_did_not_record_the_state_of_its_features(
    touched: bool, store: Path, tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    path, out = tmp_path / "features.zarr", tmp_path / "run"
    shutil.copytree(store, path)
    with pytest.raises(StoppedError):
        run("kmeans", path, out, StopAt(90))
    record = json.loads((out / "run.json").read_text())
    del record["features_left"]
    (out / "run.json").write_text(json.dumps(record | {"status": "running"}))
    if touched:
        next(file for file in (path / "features" / "c").rglob("*") if file.is_file()).touch()
    warnings, result = run_with_warnings("kmeans", path, out)
    assert len(warnings) == touched
    assert (result.record["taken_over"] == {}) == touched
    assert bits(out) == uninterrupted["kmeans"][0]


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True])
def test_replaced_run_does_not_touch_the_directory(
    stopped: bool, store: Path, tmp_path: Path
) -> None:
    """A process on another machine has started a new run in the same directory."""
    out = tmp_path / "run"
    stop = StopAt(60 if stopped else None)

    def replace_run(event: Any) -> None:
        if isinstance(event, BlockDone) and stop.blocks == 20:
            record = json.loads((out / "run.json").read_text())
            (out / "run.json").write_text(json.dumps(record | {"attempt": "another"}))
        stop(event)

    expected = StoppedError if stopped else StoreError
    with pytest.raises(expected) as caught:
        run("kmeans", store, out, replace_run)
    assert stopped or str(out) in str(caught.value)
    record = json.loads((out / "run.json").read_text())
    assert (record["status"], record["attempt"]) == ("running", "another")
    assert not (out / "model.zarr").exists()


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_resumed_run_collects_all_labels(
    case: str, store: Path, tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    """Labels that the stopped attempt wrote, but did not collect, are included."""
    out, (command, config) = tmp_path / "run", CASES[case]
    with pytest.raises(StoppedError):
        run(case, store, out, StopAt(uninterrupted[case][1] - 5))
    found = command(store, config, out=out, block_rows=BLOCK_ROWS, collect_labels=True)
    np.testing.assert_array_equal(
        found.labels, zarr.open_array(out / "labels.zarr" / "labels", mode="r")[:]
    )
    assert len(found.labels) == N_BLOCKS * BLOCK_ROWS


@pytest.mark.slow
def test_labels_of_other_centers_are_not_taken_over(
    store: Path, tmp_path: Path, uninterrupted: dict[str, Any]
) -> None:
    """The centers are lost; with fewer iterations the new centers differ."""
    out, n_blocks = tmp_path / "run", uninterrupted["kmeans"][1]
    with pytest.raises(StoppedError):
        run("kmeans", store, out, StopAt(n_blocks - 5))
    for saved in (out / "checkpoint").glob("refined*"):
        saved.unlink() if saved.is_file() else shutil.rmtree(saved)
    record = json.loads((out / "run.json").read_text())
    record["asked"]["config"]["lloyd"]["max_iter"] = 1
    (out / "run.json").write_text(json.dumps(record))
    lloyd = replace(ITERATE, max_iter=1)
    found = run("kmeans", store, out, lloyd=lloyd)
    assert "assign" not in found.record["taken_over"]
    expected = run("kmeans", store, tmp_path / "new", lloyd=lloyd)
    np.testing.assert_array_equal(found.model.counts, expected.model.counts)
    assert bits(out) == bits(tmp_path / "new")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_rejected_worker_or_setting_keeps_the_checkpoint(
    case: str, store: Path, tmp_path: Path, uninterrupted: dict[str, Any], monkeypatch: Any
) -> None:
    out, (expected, n_blocks) = tmp_path / "run", uninterrupted[case]
    with pytest.raises(StoppedError):
        run(case, store, out, StopAt(n_blocks - 60))
    if case != "auto":  # has no iterations and does not read the setting
        with (
            dask.config.set({"scrlm.checkpoint-seconds": "5s"}),
            pytest.raises(InputError, match=expecting("scrlm.checkpoint-seconds", "'5s'")),
        ):
            run(case, store, out)
    assert status(out) == "interrupted"
    small = [WorkerMemory(50_000_000, 1)]
    for name in ("fit", "kmeans"):
        monkeypatch.setattr(f"scrlm_dask.pipeline.{name}.worker_memories", lambda: small)
    with pytest.raises(InputError, match=expecting("--memory-limit")):
        run(case, store, out)
    monkeypatch.undo()
    run(case, store, out)
    assert bits(out) == expected


@pytest.mark.slow
def test_reused_process_id_is_another_process(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(StoppedError):
        run("kmeans", store, out, StopAt(60))
    record = json.loads((out / "run.json").read_text())
    parent = psutil.Process(os.getppid())
    alive = describe_process(parent.pid)
    assert alive["host"] == socket.gethostname()
    for process in (alive, alive | {"began": "another start"}):
        (out / "run.json").write_text(
            json.dumps(record | {"status": "running", "process": process})
        )
        if process == alive:
            with pytest.raises(StoreError, match=expecting(out, parent.pid)):
                run("kmeans", store, out)
            with pytest.raises(StoreError, match=expecting(out, parent.pid)):
                kmeans(store, KMEANS, out=out, block_rows=BLOCK_ROWS, overwrite=True)
            rows = np.zeros((10, 2))  # an array has no checkpoint
            with pytest.raises(StoreError, match=expecting(out, parent.pid)):
                kmeans(rows, KMEANS, out=out, overwrite=True)
            assert status(out) == "running"
    run("kmeans", store, out)
    assert status(out) == "complete"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
def test_process_is_identified_after_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux then reports another time of its start, from which psutil computes those of processes.

    The lock of a run would expire while its process writes.
    """
    pid = os.getpid()
    before = describe_process(pid)
    for name in (str(pid), "uptime"):
        (tmp_path / name).symlink_to(f"/proc/{name}")
    stat, hour = Path("/proc/stat").read_text(), 3600
    set_back = re.sub(r"(?<=\bbtime )\d+", lambda found: str(int(found[0]) - hour), stat)
    (tmp_path / "stat").write_text(set_back)
    began = psutil.Process(pid).create_time()
    monkeypatch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
    assert psutil.Process(pid).create_time() == began - hour
    assert describe_process(pid) == before


def test_rejected_input_leaves_nothing(tmp_path: Path) -> None:
    path, out = tmp_path / "features.zarr", tmp_path / "run"
    rows = np.ones((200, 4), "f4")
    rows[170, 2] = np.nan
    zarr.create_array(path, data=rows, chunks=(50, 4))
    with pytest.raises(InputError, match=expecting("row 170", "block 3", path)):
        fit(path, FitConfig(rho=0.5), out=out, block_rows=50)
    assert not out.exists()


def test_run_of_an_array_cannot_be_resumed(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(200, 4)).astype("f4")
    with pytest.raises(StoppedError):
        fit(rows, FitConfig(rho=0.5), out=tmp_path / "run", block_rows=50, listener=StopAt(6))
    assert not (tmp_path / "run").exists()


def test_changed_features_are_named_without_their_digests() -> None:
    before, now = ({"features": {"rows": 9, "digest": digest}} for digest in ("a1", "b2"))
    (difference,) = list_differences(before, now)
    assert "features" in difference
    assert not {"a1", "b2"} & {*difference.replace("'", " ").split()}
