"""The folder of an experiment: what is kept, what is gone on with, and what is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.paper.framework import Folder
from scrlm_dask.paper.runner import run_experiment
from scrlm_dask.storage.locations import locate


@dataclass(frozen=True)
class Dot:
    x: int
    of: tuple[float, ...] = (0.5, 1.0)

    @property
    def n_rows(self) -> int:
        return 1


RECORD = {"experiment": "bounds", "size": "smoke", "version": "1", "settings": {"runs": 10}}


def opened(path: Path) -> Folder:
    folder = Folder(locate(path))
    folder.open(RECORD)
    return folder


def test_a_cell_is_found_by_its_parameters(tmp_path: Path) -> None:
    folder = opened(tmp_path / "out")
    assert folder.read(Dot(1)) is None
    folder.write(Dot(1), {"value": 0.1})
    assert opened(tmp_path / "out").read(Dot(1)) == {"value": 0.1}
    assert folder.read(Dot(2)) is None
    assert folder.read(replace(Dot(1), of=(0.5,))) is None


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"cell": {"x": 2}, "result": {"value": 1}}'])
def test_a_damaged_cell_is_not_there(tmp_path: Path, damage: str) -> None:
    folder = opened(tmp_path / "out")
    folder.write(Dot(1), {"value": 1})
    (file,) = (tmp_path / "out" / "cells").iterdir()
    file.write_text(damage)
    assert folder.read(Dot(1)) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"size": "small"}, "another size: it was smoke, is now small"),
        ({"version": "2"}, "another version"),
        ({"experiment": "methods"}, "another experiment"),
        ({"settings": {"runs": 20}}, "another settings: runs was 10, is now 20"),
    ],
)
def test_another_experiment_is_refused_by_name(tmp_path: Path, change: dict, words: str) -> None:
    folder = opened(tmp_path / "out")
    with pytest.raises(StoreError, match=words):
        folder.open({**RECORD, **change})


def test_what_others_put_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(StoreError, match="holds no experiment"):
        opened(tmp_path)
    (tmp_path / "experiment.json").write_text(json.dumps({"experiment": "bounds"}))
    with pytest.raises(StoreError, match="holds no experiment"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("luck", {}, "no experiment 'luck'; use one of bounds, bandwidth, methods, images"),
        ("bounds", {"size": "huge"}, "the size 'huge' is not known"),
        ("bounds", {"data": {"a": "a.zarr"}}, "draws its own data"),
        ("images", {"data": {"cifar": None}}, "cifar cannot be fetched, only mnist and fashion"),
        ("images", {"data": {"a": "nowhere.zarr"}}, "nowhere.zarr"),
    ],
)
def test_what_is_refused_leaves_nothing(
    tmp_path: Path, name: str, options: dict, words: str
) -> None:
    with pytest.raises((InputError, StoreError), match=words):
        run_experiment(name, tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []
