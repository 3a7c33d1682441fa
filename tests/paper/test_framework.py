"""The folder of an experiment: what is kept, what is gone on with, and what is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scrlm_dask import write_features
from scrlm_dask.errors import InputError, StoreError
from scrlm_dask.kernels.distances.preprocessing import fit_map
from scrlm_dask.paper.baselines import METHODS, Method
from scrlm_dask.paper.framework import Folder
from scrlm_dask.paper.images import Labelled, define_images
from scrlm_dask.paper.methods import MethodGrid, define_methods
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


def test_other_rows_at_the_same_place_are_another_experiment(tmp_path: Path) -> None:
    """Their cells would be those of rows that are gone."""

    def settings(seed: int) -> dict[str, Any]:
        rows = np.random.default_rng(seed).random((40, 4), np.float32)
        labels = np.arange(40, dtype=np.int32) % 2
        write_features(rows, tmp_path / "x.zarr", labels=labels, overwrite=True)
        return define_images("smoke", {"x": tmp_path / "x.zarr"}).settings

    before = settings(0)
    assert settings(0) == before
    after = settings(1)
    assert {name for name in after if after[name] != before[name]} == {"data"}


def test_outliers_are_no_picture() -> None:
    rows = np.array([[0, 0, 0, 0], [2, 2, 2, 2], [9, 9, 9, 9], [200, 200, 200, 200]], np.float32)
    whole = Labelled(rows, np.zeros(4, np.int64), fit_map("none", 4, None), pixels=True)
    found = whole.pictures(np.array([1, 1, 0, -1]))
    assert found is not None
    assert found.tolist() == [[[1, 1], [1, 1]], [[9, 9], [9, 9]]]
    assert whole.pictures(np.full(4, -1)) is None


def test_a_baseline_that_fails_does_not_end_the_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(rows: object, clusters: int, seed: int) -> NDArray[np.int64]:
        raise ValueError("no\nconvergence")

    monkeypatch.setitem(METHODS, "spectral", Method("spectral", False, failing))
    monkeypatch.setattr(
        "scrlm_dask.paper.methods.SHOWN", {"spectral": "SC", "k-means++": "k-means++"}
    )
    experiment = define_methods("smoke", MethodGrid(1, 2, 16, 40, (2,), (16,), (40,)))
    results = {cell: experiment.measure(cell) for cell in experiment.cells}
    found = experiment.finish(results)
    accuracies, order = found.tables
    assert accuracies.header == ("accuracy %", "SCRLM", "SC", "k-means++")
    for setting, scrlm, failed, other in accuracies.lines:
        assert failed == "-"
        assert "-" not in (setting, scrlm, other)
    assert order.lines[-1] == ("SC", "-", "-", "0 of 1")
    assert found.notes[-1] == "SC failed at m = 2, p = 16, N = 40: ValueError: no convergence"
    assert "SC" not in {row["method"] for row in found.rows}
    assert found.figures()["methods.png"].startswith(b"\x89PNG")
