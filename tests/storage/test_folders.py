"""Local folders of outputs: swapped by renames, kept if they are mount points or prepared."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Literal

import pytest
import zarr
from trees import tree

from scrlm_dask.storage import folders
from scrlm_dask.storage.outputs import (
    RUN_KIND,
    discard,
    finish_replacement,
    move_into_place,
    open_output,
)
from scrlm_dask.storage.run_directory import COMPLETE, RunDirectory


class Killed(BaseException):
    """Stands for a process that ends at once."""


def write_run(run: RunDirectory, number: int) -> None:
    run.create({"number": number})
    for name in ("labels.zarr/labels", "model.zarr/means", "checkpoint"):
        Path(run.location.url, name).mkdir(parents=True)
        Path(run.location.url, name, f"chunk-{number}").write_text(str(number))
    run.write_record({"number": number}, COMPLETE)


def two_runs(folder: Path, mode: int) -> tuple[RunDirectory, RunDirectory]:
    """Return a complete run in `folder`, and a complete run that is to replace it."""
    folder.mkdir()
    folder.chmod(mode)
    old = RunDirectory(folder)
    write_run(old, 1)
    new = RunDirectory(open_output(folder, True, RUN_KIND))
    write_run(new, 2)
    return old, new


def default_mode(tmp_path: Path) -> int:
    (tmp_path / "plain").mkdir()
    mode = stat.S_IMODE((tmp_path / "plain").stat().st_mode)
    (tmp_path / "plain").rmdir()
    return mode


@pytest.mark.parametrize("keeps_folder", [False, True])
@pytest.mark.parametrize("step", range(12))
def test_process_is_killed_between_renames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, keeps_folder: bool
) -> None:
    folder = tmp_path / "run"
    old, new = two_runs(folder, 0o700 if keeps_folder else default_mode(tmp_path))
    assert new.location.url.startswith(f"{folder}/") == keeps_folder
    inode, rename, calls = folder.stat().st_ino, os.rename, iter(range(100))

    def rename_and_die(*names: object) -> None:
        if next(calls) == step:
            raise Killed
        rename(*names)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rename", rename_and_die)
    try:
        move_into_place(new.location, folder)
    except Killed:
        finish = True
    else:
        finish = False
    monkeypatch.undo()
    records = [path.read_text() for path in tmp_path.rglob("run.json")]
    assert sum('"number": 2' in text and '"complete"' in text for text in records) == 1
    if finish:
        finish_replacement(folder)
    assert old.check_complete()["number"] == 2
    names = ("checkpoint/chunk-2", "labels.zarr/labels/chunk-2", "model.zarr/means/chunk-2")
    files = [*names, "run.json"]
    assert sorted(name for name, text in tree(folder).items() if text) == files
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (folder.stat().st_ino == inode) == keeps_folder


def test_process_is_killed_while_it_removes_the_old_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = two_runs(tmp_path / "run", default_mode(tmp_path))

    def die(*_: object, **__: object) -> None:
        raise Killed

    monkeypatch.setattr(shutil, "rmtree", die)
    with pytest.raises(Killed):
        move_into_place(new.location, old.path)
    monkeypatch.undo()
    assert old.check_complete()["number"] == 2
    finish_replacement(old.path)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_prepared_folder_keeps_its_mode_and_inode(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    old, new = two_runs(folder, 0o2770)
    before = folder.stat()
    move_into_place(new.location, folder)
    assert old.check_complete()["number"] == 2
    discard(folder, RUN_KIND)
    assert list(folder.iterdir()) == []
    after = folder.stat()
    assert (after.st_mode, after.st_ino) == (before.st_mode, before.st_ino)


def test_current_folder_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert not folders.is_replaceable(tmp_path)
    discard(tmp_path, RUN_KIND)
    assert tmp_path.is_dir()


def test_folder_that_cannot_be_renamed_keeps_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = two_runs(tmp_path / "run", default_mode(tmp_path))
    inode, rename = (tmp_path / "run").stat().st_ino, os.rename

    def reject(source: Path, target: Path) -> None:
        if Path(source) == tmp_path / "run":
            raise OSError(16, "Device or resource busy", str(source))
        rename(source, target)

    monkeypatch.setattr(os, "rename", reject)
    move_into_place(new.location, old.path)
    assert old.check_complete()["number"] == 2
    assert (tmp_path / "run").stat().st_ino == inode
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_empty_volume_is_free(tmp_path: Path) -> None:
    (tmp_path / "volume/lost+found").mkdir(parents=True)
    run = RunDirectory(open_output(tmp_path / "volume", False, RUN_KIND))
    assert run.location.url == str(tmp_path / "volume")
    write_run(run, 1)
    discard(run.location, RUN_KIND)
    assert [path.name for path in (tmp_path / "volume").iterdir()] == ["lost+found"]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_links_in_a_store_are_found(tmp_path: Path, zarr_format: Literal[2, 3]) -> None:
    store = tmp_path / "store"
    group = zarr.create_group(store, zarr_format=zarr_format)
    array = group.create_array("x", shape=(4,), chunks=(2,), dtype="f4")
    array[:] = 1
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    links = [store / "array", store / "x/folder"]
    for link in links:
        link.symlink_to(tmp_path / "other")
    (store / "x/file").symlink_to(tmp_path / "other/file")
    (store / "x/lost").symlink_to("nowhere")
    assert sorted(folders.find_links(store)) == links
    assert list(folders.find_links(store / "x")) == links[1:]
    assert list(folders.find_links(tmp_path)) == []
    assert list(folders.find_links(store / "x/file")) == []
