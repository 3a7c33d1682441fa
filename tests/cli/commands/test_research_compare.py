"""`scrlm compare`: a table with '-' for methods that did not finish, and the reason."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="module")
def store(invoke: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compare") / "x.zarr"
    size = ("--rows", 1500, "--features", 48, "--clusters", 3, "--outliers", 0.4)
    invoke("synth", path, *size).ok()
    return path


@pytest.fixture(scope="module")
def compare(invoke: Callable[..., Any], store: Path) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        return invoke("compare", store, "--clusters", 3, *args, threads=False)

    return run


def test_table(compare: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "superkmeans", None)
    methods = "td,k-means++,superkmeans"
    done = compare("--outliers", "--methods", methods, "--timeout", "60s", "--seeds", 2).ok()
    lines = done.stdout.splitlines()
    assert re.findall(r"[\d,]+", lines[0]) == ["1,500", "48"]
    td = next(line for line in lines if line.split()[:1] == ["td"])
    assert td.split()[1:7] == ["100.00", "100.00", "1.000", "1.000", "100.00", "100.00"]
    assert "±0.00" in lines[lines.index(td) + 1]
    unfinished = next(line for line in lines if line.split()[:1] == ["superkmeans"])
    assert unfinished.split()[1:] == ["-"] * 9
    assert lines[-1].startswith("superkmeans: ")
    assert all(len(line.rstrip()) <= 80 for line in lines)
    assert re.search(r"\btd\b.*\b1\b", done.stderr)  # method and seed


def test_json(compare: Callable[..., Any]) -> None:
    content = compare(
        *("--outliers", "--methods", "scrlm,td", "--rows", 800, "--memory-limit", "4GB", "--json")
    ).json()
    assert (content["rows"], content["features"]) == (800, 48)
    scrlm, td = content["methods"]
    assert (scrlm["clusters"], td["clusters"]) == (3, 4)
    for method in (scrlm, td):
        assert method["reason"] is None
        assert method["mean"]["accuracy"] == 1.0
        assert method["deviation"]["accuracy"] == 0.0
        assert method["seeds"][0]["n_rows"] == 800


def test_undefined_score_is_shown_as_a_dash(compare: Callable[..., Any]) -> None:
    done = compare("--methods", "k-means++", "--preprocess", "none").ok()
    assert "warning: " in done.stderr  # the truth has outliers, but --outliers is not given
    line = next(line for line in done.stdout.splitlines() if "k-means++" in line)
    assert line.split()[5] == "-"


def test_given_truth(compare: Callable[..., Any], tmp_path: Path) -> None:
    np.save(tmp_path / "truth.npy", np.zeros(1500, np.int64))
    options = ("--methods", "td", "--truth", tmp_path / "truth.npy", "--json")
    assert compare(*options).json()["methods"][0]["mean"]["purity"] == 1.0


def test_missing_package_is_named(
    compare: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "superkmeans", None)
    done = compare("--outliers", "--methods", "superkmeans").ok()
    assert re.match("superkmeans: .*pip install superkmeans", done.stdout.splitlines()[-1])


def test_rejected_input(compare: Callable[..., Any], tmp_path: Path) -> None:
    compare("--methods", "dbscan").rejected("'dbscan'", "hdbscan")
    compare("--truth", tmp_path / "none.npy").rejected(str(tmp_path / "none.npy"))
    message = compare("--memory-limit", "100kB").rejected("1,500", "100.0 kB", "n_rows")
    assert re.search(r"--rows \d+", message)
    assert compare("--timeout", "soon").code == 2
    assert compare("--memory-limit", "much").code == 2
