"""A run directory: begun, finished or taken back, and nothing of others ever removed."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from numpy.typing import NDArray

from scrlm_dask.config import FitConfig
from scrlm_dask.errors import StoreError
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.predict import predict
from scrlm_dask.pipeline.synth import synth
from scrlm_dask.storage.feature_store import create_features_store
from scrlm_dask.storage.label_store import create_labels_store, open_labels
from scrlm_dask.storage.manifest import Manifest
from scrlm_dask.storage.outputs import FEATURES_KIND, LABELS_KIND, RUN_KIND, clear_output, discard
from scrlm_dask.storage.run_directory import COMPLETE, RunDirectory, write_json


def strict(path: Path) -> Any:
    """JSON as others read it: NaN and Infinity are not part of it."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def tree(path: Path) -> dict[str, bytes | None]:
    """Everything below `path`: contents of files, None for folders."""
    return {
        str(p.relative_to(path)): p.read_bytes() if p.is_file() else None for p in path.rglob("*")
    }


# --- begin, finish, discard --------------------------------------------------------------------


def test_a_run_from_begin_to_finish(tmp_path: Path) -> None:
    run = RunDirectory(f"{tmp_path}/some/where/run")
    assert not run.record.is_file()
    run.begin(False, {"seed": 3})
    assert run.record.is_file()
    assert strict(run.record).items() >= {"seed": 3, "status": "running"}.items()
    with pytest.raises(StoreError, match=r"run is not complete \(status: running\); run the fit"):
        run.check_complete()
    run.write_record({"seed": 3, "seconds": 0.5}, COMPLETE)
    expected = {"seed": 3, "seconds": 0.5, "status": "complete"}
    assert run.check_complete().items() >= expected.items()
    assert list(tree(tmp_path / "some/where/run")) == ["run.json"]


def test_where_things_are() -> None:
    run = RunDirectory("/data/run")
    assert run.model.url == "/data/run/model.zarr"
    assert run.labels.url == "/data/run/labels.zarr"
    assert run.record.url == "/data/run/run.json"


def test_the_status_is_ours_to_set(tmp_path: Path) -> None:
    run = RunDirectory(str(tmp_path / "run"))
    run.begin(False, {"status": "complete"})
    assert run.read_record()["status"] == "running"


def test_a_discarded_run_leaves_nothing(tmp_path: Path) -> None:
    run = RunDirectory(str(tmp_path / "run"))
    run.begin(False, {})
    zarr.create_group(run.labels.url)
    discard(run.path)
    assert tree(tmp_path) == {}
    discard(run.path)  # twice does no harm


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    RunDirectory(str(tmp_path / "run")).begin(False, {})
    assert strict(tmp_path / "run/run.json")["status"] == "running"


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=rf"{tmp_path} is not a run directory: it holds no run\."):
        RunDirectory(str(tmp_path)).check_complete()


@pytest.mark.parametrize("content", ['{"status": "comp', "", "\x00", '["complete"]', "null"])
def test_a_record_that_cannot_be_read(tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(
        StoreError, match=rf"{tmp_path}/run.json .*(run the fit again|is not the record of a run)"
    ):
        RunDirectory(str(tmp_path)).check_complete()


def test_a_run_at_a_url_does_not_end_in_a_local_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with suppress(StoreError):  # to refuse it is as good as to write there
        RunDirectory("memory://bucket/run").begin(False, {})
    assert tree(tmp_path) == {}


# --- overwrite ---------------------------------------------------------------------------------


def test_a_run_is_replaced_only_when_asked(tmp_path: Path) -> None:
    run = RunDirectory(str(tmp_path / "run"))
    run.begin(False, {"number": 1})
    zarr.create_group(run.model.url)
    run.write_record({"number": 1}, COMPLETE)
    before = tree(tmp_path / "run")
    with pytest.raises(StoreError, match=rf"{tmp_path}/run exists already; .*--overwrite"):
        run.begin(False, {"number": 2})
    assert tree(tmp_path / "run") == before
    run.begin(True, {"number": 2})
    # nothing of the old run is left that could be taken for the new one's
    assert list(tree(tmp_path / "run")) == ["run.json"]
    assert run.read_record().items() >= {"number": 2, "status": "running"}.items()


def test_an_interrupted_run_is_replaced_too(tmp_path: Path) -> None:
    run = RunDirectory(str(tmp_path / "run"))
    run.begin(False, {})
    run.begin(True, {"number": 2})
    assert run.read_record()["number"] == 2


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["thesis.tex", ".hidden", "zarr.json", "model.zarr/zarr.json"])
def test_a_folder_with_a_users_file_is_never_removed(
    tmp_path: Path, name: str, overwrite: bool
) -> None:
    file = tmp_path / "folder" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(StoreError) as caught:
        RunDirectory(str(tmp_path / "folder")).begin(overwrite, {})
    assert f"the output {tmp_path}/folder exists" in str(caught.value)
    assert "choose another" in str(caught.value)
    assert file.read_text() == "mine"
    assert len([p for p in (tmp_path / "folder").rglob("*") if p.is_file()]) == 1


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_in_the_way_is_never_removed(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(StoreError, match=f"the output {tmp_path}/run exists"):
        RunDirectory(str(tmp_path / "run")).begin(overwrite, {})
    assert (tmp_path / "run").read_text() == "mine"


def test_a_folder_called_like_the_record_is_no_marker(tmp_path: Path) -> None:
    (tmp_path / "run/run.json").mkdir(parents=True)
    with pytest.raises(StoreError, match="left alone"):
        RunDirectory(str(tmp_path / "run")).begin(True, {})
    assert (tmp_path / "run/run.json").is_dir()


def test_somebody_elses_run_json_is_no_marker(tmp_path: Path) -> None:
    # the name is not rare: experiment trackers write one too
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "run.json").write_text('{"name": "baseline", "lr": 0.1}')
    (folder / "weights.bin").write_bytes(b"a week of work")
    before = tree(folder)
    with pytest.raises(StoreError, match="left alone"):
        RunDirectory(str(folder)).begin(True, {})
    assert tree(folder) == before


def test_a_link_in_the_way_is_refused_in_words(tmp_path: Path) -> None:
    real = RunDirectory(str(tmp_path / "real"))
    real.begin(False, {})
    (tmp_path / "link").symlink_to(tmp_path / "real")
    before = tree(tmp_path / "real")
    with pytest.raises(StoreError, match=f"{tmp_path}/link"):
        RunDirectory(str(tmp_path / "link")).begin(True, {})
    assert tree(tmp_path / "real") == before


def test_a_broken_link_in_the_way_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=f"{tmp_path}/link"):
        RunDirectory(str(tmp_path / "link")).begin(True, {})


def write_features(path: Path) -> None:
    create_features_store(path, Manifest(4, 2, "float32", 2, (), {}))


def write_labels(path: Path) -> None:
    create_labels_store(path, 4, 2, margins=True)


def write_run(path: Path) -> None:
    RunDirectory(str(path)).begin(False, {})


WRITERS = {FEATURES_KIND: write_features, LABELS_KIND: write_labels, RUN_KIND: write_run}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("written", WRITERS)
def test_each_kind_makes_way_for_its_own_only(tmp_path: Path, kind: str, written: str) -> None:
    target = tmp_path / "out"
    clear_output(str(target), False, kind)  # nothing there: nothing to do
    assert not target.exists()
    WRITERS[written](target)
    before = tree(target)
    way_out = "--overwrite to replace it" if written == kind else "choose another$"
    with pytest.raises(StoreError, match=rf"the output {target} exists already; .*{way_out}"):
        clear_output(str(target), False, kind)
    assert tree(target) == before
    if written == kind:
        clear_output(str(target), True, kind)
        assert not target.exists()
        return
    with pytest.raises(StoreError, match=rf"{target} exists .*left alone: choose another path"):
        clear_output(str(target), True, kind)
    assert tree(target) == before


def test_what_synth_and_predict_wrote_is_replaced_when_asked(tmp_path: Path) -> None:
    x, labels = tmp_path / "x.zarr", tmp_path / "labels.zarr"
    model = fit(two_clusters(), FitConfig(rho=0.5, seed=1)).model
    for n_rows in (30, 20):
        synth(x, n_rows, MixtureSpec(8, 2, 0.1), overwrite=True)
        predict(model, x, out=labels, overwrite=True)
        assert open_labels(labels, "the labels").shape[0] == n_rows


# --- what `overwrite` must never cost: features ------------------------------------------------


def two_clusters() -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    centers = np.repeat([[0.0] * 8, [5.0] * 8], 20, axis=0)
    return (centers + rng.normal(0, 0.1, (40, 8))).astype(np.float32)


def features_of_a_user(path: Path) -> None:
    """A store that somebody else wrote: `features`, and an array that only they know of."""
    zarr.create_group(str(path))
    for name in ("features", "thumbnails"):
        array = zarr.create_array(
            f"{path}/{name}", shape=(40, 8), chunks=(20, 8), dtype="float32", fill_value=np.nan
        )
        array[...] = two_clusters()


def test_synth_does_not_overwrite_somebody_elses_store(tmp_path: Path) -> None:
    features_of_a_user(tmp_path / "x.zarr")
    before = tree(tmp_path / "x.zarr")
    with pytest.raises(StoreError, match=r"x\.zarr"):
        synth(tmp_path / "x.zarr", 10, MixtureSpec(4, 2, 0.1), overwrite=True)
    assert tree(tmp_path / "x.zarr") == before


@pytest.mark.parametrize("origin", ["a user", "synth"])
def test_predict_does_not_overwrite_the_features_it_reads(tmp_path: Path, origin: str) -> None:
    x = tmp_path / "x.zarr"
    if origin == "synth":
        synth(x, 20, MixtureSpec(8, 2, 0.1))
    else:
        features_of_a_user(x)
    before = tree(x)
    model = fit(two_clusters(), FitConfig(rho=0.5, seed=1)).model
    with pytest.raises(StoreError, match=r"x\.zarr"):
        predict(model, x, out=x, overwrite=True)
    assert tree(x) == before


def test_fit_does_not_overwrite_the_features_it_reads(tmp_path: Path) -> None:
    # kept beside the results of the first fit, as people do
    fit(two_clusters(), FitConfig(rho=0.5, seed=1), out=tmp_path / "run")
    features_of_a_user(tmp_path / "run/x.zarr")
    before = tree(tmp_path / "run/x.zarr")
    with pytest.raises(StoreError, match="run"):
        fit(
            tmp_path / "run/x.zarr",
            FitConfig(rho=0.5, seed=2),
            out=tmp_path / "run",
            overwrite=True,
        )
    assert tree(tmp_path / "run/x.zarr") == before


# --- the record --------------------------------------------------------------------------------


def test_writing_leaves_one_file_that_ends_in_a_newline(tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", {"a": [1, 2.5, None, "ü"]})
    assert list(tree(tmp_path)) == ["run.json"]
    assert (tmp_path / "run.json").read_text().endswith("}\n")
    assert strict(tmp_path / "run.json") == {"a": [1, 2.5, None, "ü"]}


@pytest.mark.parametrize("value", [np.nan, np.inf, object(), np.int64(3)])
def test_what_is_not_json_leaves_the_old_record(tmp_path: Path, value: Any) -> None:
    write_json(tmp_path / "run.json", {"status": "running"})
    with pytest.raises((ValueError, TypeError)):
        write_json(tmp_path / "run.json", {"status": "complete", "value": value})
    assert tree(tmp_path) == {"run.json": b'{\n  "status": "running"\n}\n'}


def test_the_remains_of_a_killed_writer_are_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "run.partial").write_text('{"status": "comp')
    write_json(tmp_path / "run.json", {"status": "complete"})
    assert list(tree(tmp_path)) == ["run.json"]
    assert strict(tmp_path / "run.json") == {"status": "complete"}


def test_a_reader_sees_the_old_record_or_the_new_one_never_a_half(tmp_path: Path) -> None:
    # 200 kB, so that writing in place would be caught halfway
    path = tmp_path / "run.json"
    contents = [{"number": n, "filler": [n] * 20_000} for n in range(2)]
    write_json(path, contents[0])
    stop = threading.Event()
    seen: list[Any] = []

    def read() -> None:
        while not stop.is_set():
            try:
                seen.append(json.loads(path.read_text()))
            except Exception as error:  # a thread has nobody to raise to
                seen.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(40):
        write_json(path, contents[n % 2])
    stop.set()
    reader.join()
    assert seen
    assert all(record in contents for record in seen)
