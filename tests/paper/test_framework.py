"""The folder of an experiment: saved cells, other experiments, and rejected arguments."""

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


def open_folder(path: Path) -> Folder:
    folder = Folder(locate(path))
    folder.open(RECORD)
    return folder


def test_cell_is_found_by_its_parameters(tmp_path: Path) -> None:
    folder = open_folder(tmp_path / "out")
    assert folder.read(Dot(1)) is None
    folder.write(Dot(1), {"value": 0.1})
    assert open_folder(tmp_path / "out").read(Dot(1)) == {"value": 0.1}
    assert folder.read(Dot(2)) is None
    assert folder.read(replace(Dot(1), of=(0.5,))) is None


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", "[" * 100_000, '{"cell": {"x": 2}, "result": {"value": 1}}']
)
def test_damaged_cell_is_ignored(tmp_path: Path, damage: str) -> None:
    folder = open_folder(tmp_path / "out")
    folder.write(Dot(1), {"value": 1})
    (file,) = (tmp_path / "out" / "cells").iterdir()
    file.write_text(damage)
    assert folder.read(Dot(1)) is None


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"size": "small"}, r"(?=.*\bsize\b)(?=.*\bsmoke\b)(?=.*\bsmall\b)"),
        ({"version": "2"}, r"(?=.*\bversion\b)(?=.*\b1\b)(?=.*\b2\b)"),
        ({"experiment": "methods"}, r"(?=.*\bexperiment\b)(?=.*\bbounds\b)(?=.*\bmethods\b)"),
        ({"settings": {"runs": 20}}, r"(?=.*\bruns\b)(?=.*\b10\b)(?=.*\b20\b)"),
    ],
)
def test_other_experiment_in_the_folder_is_rejected(
    tmp_path: Path, change: dict, facts: str
) -> None:
    folder = open_folder(tmp_path / "out")
    with pytest.raises(StoreError, match=rf"(?=.*{tmp_path}/out\b)(?=.*--out\b){facts}"):
        folder.open({**RECORD, **change})


def test_foreign_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(StoreError, match=f"(?=.*{tmp_path})(?=.*--out)"):
        open_folder(tmp_path)
    (tmp_path / "experiment.json").write_text(json.dumps({"experiment": "bounds"}))
    # not compared with RECORD, so that its values are not named
    with pytest.raises(StoreError, match=f"(?=.*{tmp_path})(?=.*--out)(?!.*smoke)"):
        open_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "options", "facts"),
    [
        ("luck", {}, "(?=.*'luck')(?=.*bounds, bandwidth, methods, images)"),
        ("bounds", {"size": "huge"}, "(?=.*'huge')(?=.*smoke, small, paper)"),
        ("bounds", {"data": {"a": "a.zarr"}}, r"(?=.*\bbounds\b)(?=.*\bdata\b)"),
        ("images", {"data": {"cifar": None}}, r"(?=.*\bcifar\b)(?=.*mnist)(?=.*fashion)"),
        ("images", {"data": {"a": "nowhere.zarr"}}, r"nowhere\.zarr"),
    ],
)
def test_rejected_arguments_leave_no_files(
    tmp_path: Path, name: str, options: dict, facts: str
) -> None:
    with pytest.raises((InputError, StoreError), match=facts):
        run_experiment(name, tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []
