"""All experiments in their smallest size: files, summaries and resuming."""

from __future__ import annotations

import csv
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from matplotlib.image import imread

from scrlm_dask.paper.runner import ExperimentRun, run_experiment

pytestmark = pytest.mark.slow

FIGURES = {
    "bounds": ["bounds.png"],
    "bandwidth": ["bandwidth.png"],
    "methods": ["methods.png"],
    "images": ["purity.png", "time.png", "accuracy-time.png", "centers.png"],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, digits: Path) -> dict[str, ExperimentRun]:
    folder = tmp_path_factory.mktemp("experiments")
    data = {"images": {"digits": digits}}
    return {
        name: run_experiment(name, folder / name, size="smoke", data=data.get(name))
        for name in FIGURES
    }


def rows_of(done: ExperimentRun) -> list[dict[str, str]]:
    with (Path(done.out) / "results.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", FIGURES)
def test_tables_figures_and_summary_are_written(runs: dict[str, ExperimentRun], name: str) -> None:
    done, folder = runs[name], Path(runs[name].out)
    assert set(done.files) == {
        "results.csv",
        "results.parquet",
        "summary.json",
        *FIGURES[name],
    }
    assert (done.n_kept, done.n_cells) == (0, len(list((folder / "cells").iterdir())))
    rows = rows_of(done)
    assert pyarrow.parquet.read_table(folder / "results.parquet").num_rows == len(rows) > 5
    assert json.loads((folder / "summary.json").read_text()) == done.summary
    assert done.summary["size"] == "smoke"
    for figure in FIGURES[name]:
        picture = imread(folder / figure)[:, :, :3]
        assert min(picture.shape[:2]) > 150
        assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 20  # the figure is not empty


def test_tightness_of_bounds(runs: dict[str, ExperimentRun]) -> None:
    panels = runs["bounds"].summary["panels"]
    assert set(panels) == {"p vs N", "n vs m", "p vs m", "N vs m"}
    # with few runs per cell the bound on n seems looser than it is; that on p is the loosest
    assert 1.0 < panels["n vs m"]["factor"]["median"] < 4.0
    assert panels["p vs N"]["factor"]["median"] > 32.0
    assert panels["p vs m"]["factor"]["median"] > 16.0
    assert 0.5 < panels["N vs m"]["factor"]["median"] <= 1.0
    assert all(panel["promised_but_failed"] == 0 for panel in panels.values())
    rows = [row for row in rows_of(runs["bounds"]) if row["panel"] == "N vs m"]
    assert all(int(row["n_rows"]) >= int(row["n_candidates"]) for row in rows)


def test_range_of_bandwidths(runs: dict[str, ExperimentRun]) -> None:
    panel = runs["bandwidth"].summary["panels"]["rho vs N"]
    assert abs(panel["lower_minus_sigma_max"]) <= 0.025  # one step of the grid
    assert panel["upper_minus_most_rho"] > 0.02


def test_scrlm_finds_all_outliers(runs: dict[str, ExperimentRun]) -> None:
    found = {entry["method"]: entry for entry in runs["methods"].summary["methods"]}
    assert set(found) == {"SCRLM", "TD", "SC", "EM", "k-means++", "t-SNE + k-means++", "CL"}
    assert found["SCRLM"]["worst_run"] == found["TD"]["worst_run"] == 1.0
    assert found["CL"]["mean_accuracy"] < 0.8
    assert runs["methods"].summary["notes"] == []


def test_accuracy_and_purity_on_images(runs: dict[str, ExperimentRun]) -> None:
    summary = runs["images"].summary
    assert "pixels" in summary["notes"][0]
    found = {(entry["method"], entry["T"]): entry for entry in summary["sets"]["digits"]}
    assert {T for _, T in found} == {10, 20}
    for entry in found.values():
        assert 0.4 < entry["accuracy_mean"] <= entry["purity_mean"] <= 1.0
        assert entry["cpu_seconds_mean"] > 0.0
    assert found["SCRLM", 20]["purity_mean"] > found["SCRLM", 10]["purity_mean"]


def cells_of(done: ExperimentRun) -> dict[str, int]:
    """Return the time at which each cell was written."""
    return {file.name: file.stat().st_mtime_ns for file in (Path(done.out) / "cells").iterdir()}


def test_finished_cells_are_not_repeated(runs: dict[str, ExperimentRun]) -> None:
    before, done = cells_of(runs["bandwidth"]), runs["bandwidth"]
    events: list[Any] = []
    again = run_experiment("bandwidth", done.out, size="smoke", listener=events.append)
    assert (again.n_cells, again.n_kept) == (14, 14)
    assert cells_of(again) == before
    # as if the experiment had stopped before three cells were finished
    for name in sorted(before)[:3]:
        (Path(done.out) / "cells" / name).unlink()
    rest = run_experiment("bandwidth", done.out, size="smoke", listener=events.append)
    assert (rest.n_cells, rest.n_kept) == (14, 11)
    after = cells_of(rest)
    assert {name for name in after if after[name] != before[name]} == set(sorted(before)[:3])
    assert rest.summary["panels"] == done.summary["panels"]


def test_the_old_package_still_runs_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "scrlm_dask.experiments", raising=False)
    with pytest.warns(FutureWarning, match=r"scrlm_dask\.paper\.runner\.run_experiment"):
        old = importlib.import_module("scrlm_dask.experiments")
    assert old.run is run_experiment
    assert old.Ran is ExperimentRun
    assert (tuple(FIGURES), ("smoke", "small", "paper")) == (old.NAMES, old.SIZES)
    assert {"Size", "Table"} <= set(dir(old))
