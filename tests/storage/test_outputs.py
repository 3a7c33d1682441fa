"""Outputs: only outputs of this package are replaced, and only with `overwrite`."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from fsspec.implementations.memory import MemoryFileSystem
from numpy.typing import NDArray
from trees import tree

from scrlm_dask.config import FitConfig
from scrlm_dask.errors import StoreError, UnreachableError
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.evaluate import evaluate
from scrlm_dask.pipeline.fit import fit, prepare_fit
from scrlm_dask.pipeline.predict import predict
from scrlm_dask.pipeline.synth import synth
from scrlm_dask.storage.feature_store import create_features_store
from scrlm_dask.storage.label_store import create_labels_store, open_labels
from scrlm_dask.storage.locations import Location, locate
from scrlm_dask.storage.manifest import Manifest
from scrlm_dask.storage.outputs import (
    FEATURES_KIND,
    LABELS_KIND,
    RUN_KIND,
    check_none_inside,
    check_not_inside,
    check_output_free,
    discard,
    find_complete_copy,
    finish_replacement,
    move_into_place,
    open_output,
)
from scrlm_dask.storage.run_directory import COMPLETE, INTERRUPTED, RunDirectory


def test_link_is_rejected(tmp_path: Path) -> None:
    real = RunDirectory(str(tmp_path / "real"))
    real.create({})
    (tmp_path / "link").symlink_to(tmp_path / "real")
    before = tree(tmp_path / "real")
    with pytest.raises(StoreError, match=f"{tmp_path}/link"):
        open_output(tmp_path / "link", True, RUN_KIND)
    assert tree(tmp_path / "real") == before


def test_broken_link_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=f"{tmp_path}/link"):
        open_output(tmp_path / "link", True, RUN_KIND)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("name", ["thesis.tex", ".hidden", "zarr.json", "model.zarr/zarr.json"])
def test_folder_with_a_users_file_is_not_removed(
    tmp_path: Path, name: str, overwrite: bool
) -> None:
    file = tmp_path / "folder" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(StoreError) as caught:
        open_output(tmp_path / "folder", overwrite, RUN_KIND)
    assert f"{tmp_path}/folder" in str(caught.value)
    assert overwrite or "--overwrite" not in str(caught.value)  # it would not help
    assert file.read_text() == "mine"
    assert len([p for p in (tmp_path / "folder").rglob("*") if p.is_file()]) == 1


@pytest.mark.parametrize("overwrite", [False, True])
def test_users_file_is_not_removed(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(StoreError, match=f"{tmp_path}/run"):
        open_output(tmp_path / "run", overwrite, RUN_KIND)
    assert (tmp_path / "run").read_text() == "mine"


def test_folder_called_run_json_does_not_mark_a_run(tmp_path: Path) -> None:
    (tmp_path / "run/run.json").mkdir(parents=True)
    with pytest.raises(StoreError, match=f"{tmp_path}/run"):
        open_output(tmp_path / "run", True, RUN_KIND)
    assert (tmp_path / "run/run.json").is_dir()


@pytest.mark.parametrize("content", ['{"name": "baseline", "lr": 0.1}', "[" * 100_000])
def test_foreign_run_json_does_not_mark_a_run(tmp_path: Path, content: str) -> None:
    # experiment trackers also write files called run.json
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "run.json").write_text(content)
    (folder / "weights.bin").write_bytes(b"a week of work")
    before = tree(folder)
    with pytest.raises(StoreError, match=f"{folder}"):
        open_output(folder, True, RUN_KIND)
    assert tree(folder) == before


def write_features(path: Path) -> None:
    create_features_store(path, Manifest(4, 2, "float32", 2, (), {}))


def write_labels(path: Path) -> None:
    create_labels_store(path, 4, 2, margins=True)


def write_run(path: Path) -> None:
    RunDirectory(str(path)).create({})


WRITERS = {FEATURES_KIND: write_features, LABELS_KIND: write_labels, RUN_KIND: write_run}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("written", WRITERS)
def test_output_is_replaced_only_by_its_own_kind(tmp_path: Path, kind: str, written: str) -> None:
    target = tmp_path / "out"
    open_output(str(target), False, kind)  # nothing to remove
    assert not target.exists()
    WRITERS[written](target)
    before = tree(target)
    with pytest.raises(StoreError, match=f"{target}") as caught:
        open_output(str(target), False, kind)
    assert ("--overwrite" in str(caught.value)) == (written == kind)
    assert tree(target) == before
    if written == kind:
        open_output(str(target), True, kind)
        assert not target.exists()
        return
    with pytest.raises(StoreError, match=rf"(?=.*{target})(?=.*\b{kind}\b)"):
        open_output(str(target), True, kind)
    assert tree(target) == before


def test_synth_and_predict_replace_their_outputs(tmp_path: Path) -> None:
    x, labels = tmp_path / "x.zarr", tmp_path / "labels.zarr"
    model = fit(two_clusters(), FitConfig(rho=0.5, seed=1)).model
    for n_rows in (30, 20):
        synth(x, n_rows, MixtureSpec(8, 2, 0.1), overwrite=True)
        predict(model, x, out=labels, overwrite=True)
        assert open_labels(labels, "the labels").shape[0] == n_rows


def two_clusters() -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    centers = np.repeat([[0.0] * 8, [5.0] * 8], 20, axis=0)
    return (centers + rng.normal(0, 0.1, (40, 8))).astype(np.float32)


def write_foreign_store(path: Path) -> None:
    """Write a store as another program would: `features` and an array of its own."""
    zarr.create_group(str(path))
    for name in ("features", "thumbnails"):
        array = zarr.create_array(
            f"{path}/{name}", shape=(40, 8), chunks=(20, 8), dtype="float32", fill_value=np.nan
        )
        array[...] = two_clusters()


def test_synth_does_not_overwrite_a_foreign_store(tmp_path: Path) -> None:
    write_foreign_store(tmp_path / "x.zarr")
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
        write_foreign_store(x)
    before = tree(x)
    model = fit(two_clusters(), FitConfig(rho=0.5, seed=1)).model
    with pytest.raises(StoreError, match=r"x\.zarr"):
        predict(model, x, out=x, overwrite=True)
    assert tree(x) == before


def test_fit_does_not_overwrite_the_features_it_reads(tmp_path: Path) -> None:
    # users may store features next to the results of the first fit
    fit(two_clusters(), FitConfig(rho=0.5, seed=1), out=tmp_path / "run")
    write_foreign_store(tmp_path / "run/x.zarr")
    before = tree(tmp_path / "run/x.zarr")
    with pytest.raises(StoreError, match=f"{tmp_path}/run"):
        fit(
            tmp_path / "run/x.zarr",
            FitConfig(rho=0.5, seed=2),
            out=tmp_path / "run",
            overwrite=True,
        )
    assert tree(tmp_path / "run/x.zarr") == before


def test_only_our_outputs_are_replaced(root: Location) -> None:
    run = RunDirectory(root / "run")
    run.create({})
    run.write_record({}, COMPLETE)
    (root / "run-2").write_text("mine")
    with pytest.raises(StoreError, match="--overwrite"):
        open_output(run.location, False, RUN_KIND)
    with pytest.raises(StoreError, match=rf"(?=.*{run.location})(?=.*\bfeatures\b)"):
        open_output(run.location, True, FEATURES_KIND)
    with pytest.raises(StoreError, match=rf"(?=.*{run.location}/inner\b)(?=.*{run.location}(?!/))"):
        check_output_free(run.location / "inner", True, RUN_KIND)
    assert run.check_complete()["status"] == "complete"
    run.write_record({}, INTERRUPTED)
    open_output(run.location, True, RUN_KIND)
    assert not run.location.is_occupied()
    assert (root / "run-2").read_text() == "mine"


class FailingFileSystem(MemoryFileSystem):
    """In-memory file system; while `fails` is set, removals stop after the first file."""

    protocol = "failing"
    fails = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("failing://", "memory://")))

    def rm(self, path: Any, *args: Any, **kwargs: Any) -> None:
        if FailingFileSystem.fails:
            self.rm_file(self.find(path)[0])
            raise ConnectionError("connection lost")
        super().rm(path, *args, **kwargs)


@pytest.mark.parametrize("kind", [RUN_KIND, FEATURES_KIND])
def test_interrupted_replacement_in_an_object_store_is_finished(memory: str, kind: str) -> None:
    fsspec.register_implementation("failing", FailingFileSystem, clobber=True)
    root = memory.replace("memory://", "failing://")
    x, run = f"{root}/x.zarr", f"{root}/run"
    synth(x, 40, MixtureSpec(8, 2, 0.1))
    fit(x, FitConfig(rho=0.5, n_clusters=2), out=run)
    target = locate(run if kind == RUN_KIND else x)
    place = open_output(target, True, kind)
    target.copy_to(place, last=())
    FailingFileSystem.fails = True
    try:
        with pytest.raises(StoreError, match="ConnectionError: connection lost") as caught:
            move_into_place(place, target)
    finally:
        FailingFileSystem.fails = False
    assert place.url in caught.value.__notes__[0]
    with pytest.raises(StoreError, match=f"{target}"):
        evaluate(run) if kind == RUN_KIND else fit(x, FitConfig(rho=0.5))
    assert find_complete_copy(target) == place
    finish_replacement(target)
    evaluate(run)
    assert not place.is_occupied()


def complete_run(place: Location, number: int = 0) -> RunDirectory:
    run = RunDirectory(place)
    run.create({})
    (place / "events.jsonl").write_text("events")
    run.write_record({"number": number}, COMPLETE)
    return run


@pytest.mark.parametrize("failing", range(12))
@pytest.mark.parametrize("suffix", ["", ".scrlm-new", ".scrlm-old"])
def test_failed_read_of_a_mark_removes_no_complete_output(
    root: Location, suffix: str, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if root.is_remote and suffix == ".scrlm-old":
        return  # object stores have no such output
    out = root / "out"
    complete_run(Location(out.url + suffix))
    read, reads = Location.read_bytes, iter(range(100))

    def read_or_fail(location: Location) -> bytes:
        if location.url.startswith(out.url) and next(reads) == failing:
            raise UnreachableError("timeout") if root.is_remote else OSError(5, "I/O error")
        return read(location)

    monkeypatch.setattr(Location, "read_bytes", read_or_fail)
    with suppress(OSError):
        open_output(out, True, RUN_KIND)
    monkeypatch.undo()
    finish_replacement(out)
    assert RunDirectory(out).check_complete()


@pytest.mark.parametrize("error", [UnreachableError("timeout"), OSError(5, "I/O error")])
def test_record_that_cannot_be_read_raises(
    root: Location, error: OSError, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = complete_run(root / "out")

    def fail(_location: Location) -> bytes:
        raise error

    monkeypatch.setattr(Location, "read_bytes", fail)
    with pytest.raises(UnreachableError):
        run.read_record()
    with pytest.raises(UnreachableError):
        run.record_of("an attempt")


@pytest.mark.parametrize("name", ["out/thesis.txt", "out/run.json", "out"])
@pytest.mark.parametrize("leftover", [False, True])
def test_users_files_are_not_replaced_by_a_new_output(
    root: Location, name: str, leftover: bool
) -> None:
    """A user moved the old run away and wrote other files, during or after a command."""
    out = root / "out"
    complete_run(out)
    place = open_output(out, True, RUN_KIND)
    complete_run(place)
    out.remove(["events.jsonl", "run.json"])
    if not root.is_remote and name != "out":
        Path(out.url).mkdir()
    (root / name).write_text("mine")
    with pytest.raises(StoreError, match=f"(?=.*{out}\\b)(?=.*{place})"):
        open_output(out, False, RUN_KIND) if leftover else move_into_place(place, out)
    assert (root / name).read_text() == "mine"
    assert RunDirectory(place).check_complete()


def test_interrupted_copy_of_objects_is_finished(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = locate(f"{memory}/out")
    complete_run(out)
    place = open_output(out, True, RUN_KIND)
    complete_run(place, number=2)

    def copy_one_file(_place: Location, target: Location, last: object) -> None:
        (target / "events.jsonl").write_text("events")
        raise UnreachableError("timeout")

    monkeypatch.setattr(Location, "copy_to", copy_one_file)
    with pytest.raises(UnreachableError):
        move_into_place(place, out)
    monkeypatch.undo()
    assert not RunDirectory(out).is_complete()
    finish_replacement(out)
    assert RunDirectory(out).check_complete()["number"] == 2


def test_users_files_in_a_prepared_folder_are_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir(mode=0o700)
    complete_run(locate(folder))
    place = open_output(folder, True, RUN_KIND)
    complete_run(place)
    for entry in folder.iterdir():
        if not place.url.endswith(entry.name):
            entry.unlink()
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(StoreError, match=f"(?=.*{folder}\\b)(?=.*{place})"):
        move_into_place(place, folder)
    assert (folder / "thesis.txt").read_text() == "mine"
    assert RunDirectory(place).check_complete()
    (folder / "thesis.txt").unlink()
    move_into_place(place, folder)
    assert RunDirectory(folder).check_complete()


def test_output_of_another_kind_is_not_replaced(tmp_path: Path) -> None:
    out = locate(tmp_path / "out")
    synth(out, 10, MixtureSpec(4, 2, 0.1))
    complete_run(Location(f"{out}.scrlm-new"))
    before = tree(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(StoreError, match=f"(?=.*{out}\\b)(?=.*{out}.scrlm-new)"):
            open_output(out, overwrite, FEATURES_KIND)
    assert tree(tmp_path) == before


def test_checks_before_a_command_move_no_files(root: Location) -> None:
    """The output of an earlier command was not yet moved into place when its process was killed."""
    out, x = root / "out", root / "x.zarr"
    synth(x, 40, MixtureSpec(8, 2, 0.1))
    fit(x, FitConfig(rho=0.5, n_clusters=2), out=out)
    new = locate(f"{out}.scrlm-new", root.options.reveal())
    complete_run(new, number=1)
    for overwrite in (False, True):
        prepare_fit(x, FitConfig(rho=0.5), out=out, overwrite=overwrite)
        check_output_free(out, overwrite, RUN_KIND)
        assert new.is_occupied()
        assert RunDirectory(out).check_complete()["method"] == "scrlm"
    with pytest.raises(StoreError, match=f"(?=.*{out}\\b)(?=.*--overwrite)"):
        fit(x, FitConfig(rho=0.5), out=out)
    assert RunDirectory(out).check_complete()["number"] == 1
    assert not new.is_occupied()


def test_new_output_is_written_at_its_path(root: Location) -> None:
    assert open_output(root / "out", False, RUN_KIND) == root / "out"


def test_staged_output_replaces_the_old_one(root: Location) -> None:
    run = RunDirectory(root / "run")
    run.create({})
    run.write_record({"number": 1}, COMPLETE)
    (run.location / "checkpoint").write_text("old")
    staged = open_output(run.location, True, RUN_KIND)
    assert staged.url == f"{run.location.url}.scrlm-new"
    RunDirectory(staged).create({})
    RunDirectory(staged).write_record({"number": 2}, COMPLETE)
    assert run.check_complete()["number"] == 1  # kept until the new one is finished
    move_into_place(staged, run.location)
    assert run.check_complete()["number"] == 2
    assert not (run.location / "checkpoint").exists()
    assert not staged.is_occupied()


def test_discarded_output_leaves_no_files(root: Location) -> None:
    RunDirectory(root / "run").create({})
    (root / "other").write_text("mine")
    discard(root / "run", RUN_KIND)
    discard(root / "run", RUN_KIND)  # nothing is left to remove
    assert not (root / "run").is_occupied()
    assert (root / "other").read_text() == "mine"


@pytest.mark.parametrize("source", ["out", "out/x.zarr", "out/a/b"])
def test_features_at_or_inside_the_output_are_rejected(tmp_path: Path, source: str) -> None:
    with pytest.raises(StoreError) as caught:
        check_not_inside(tmp_path / "out", tmp_path / source, "the features")
    assert str(tmp_path / source) in str(caught.value)
    assert re.search(rf"{tmp_path}/out(?!/)", str(caught.value))


@pytest.mark.parametrize("source", [None, "x.zarr", "output", "."])
def test_features_elsewhere_are_accepted(tmp_path: Path, source: str | None) -> None:
    check_not_inside(tmp_path / "out", None if source is None else tmp_path / source, "the items")


def test_folders_of_many_inputs_are_resolved_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resolving the folders of each of 5000 source files took longer than ingesting the files."""
    resolved, resolve = list[Path](), Path.resolve

    def counted(path: Path, strict: bool = False) -> Path:
        resolved.append(path)
        return resolve(path, strict)

    monkeypatch.setattr(Path, "resolve", counted)
    files = [tmp_path / "parts" / f"{i}.npy" for i in range(100)]
    check_none_inside(tmp_path / "out", files, "the source file")
    assert len(resolved) < 2 * len(files)
    with pytest.raises(StoreError, match=f"{tmp_path}/parts/0.npy"):
        check_none_inside(tmp_path / "parts", files, "the source file")


def test_whole_bucket_is_rejected() -> None:
    with pytest.raises(StoreError, match="s3://bucket"):
        check_output_free("s3://bucket", True, RUN_KIND)
