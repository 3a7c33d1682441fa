"""Commands on real rows without a clear scale: levels, preprocessing and outliers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from sklearn.datasets import load_digits

from scrlm_dask.pipeline.stores import write_features

SHARE = 0.05


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a store of digits with their labels."""
    data, path = load_digits(), tmp_path_factory.mktemp("digits") / "digits.zarr"
    write_features(data.data.astype(np.float32), path, labels=data.target)
    return path


@pytest.fixture(scope="module")
def run(digits: Path, invoke: Any) -> Path:
    out = digits.parent / "run"
    invoke("fit", digits, "--out", out, "--levels").ok()
    return out


def labels_of(path: Path, name: str = "labels") -> np.ndarray:
    return np.asarray(zarr.open_group(path, mode="r")[name][:])


def test_fit_prints_the_choice(invoke, digits, tmp_path, record_of):
    done = invoke("fit", digits, "--out", tmp_path / "run").ok()
    record = record_of(tmp_path / "run")
    levels = record["scan"]["levels"]
    for text in (done.stdout, done.stderr):
        for fact in (f"{levels['clusters']} clusters", "structure: clear", "coarse", "fine"):
            assert fact in " ".join(text.split()), fact
        assert f"{levels['low']} to {levels['high']}" in " ".join(text.split())
    assert f"preprocess {record['config']['preprocess']}" in done.stderr
    assert "--kmeans-iter 0" in done.stderr
    assert "--outliers auto" in done.stderr
    assert record["outliers"] == 0
    assert len(record["kmeans"]["iterations"]) > 1


def test_levels_of_a_run(invoke, run, tmp_path):
    default = labels_of(run / "labels.zarr")
    for level in ("coarse", "fine"):
        out = tmp_path / level
        content = invoke("cut", run, "--level", level, "--out", out, "--json", threads=False).json()
        labels = labels_of(out)
        assert content["clusters"] == len(content["counts"]) == labels.max() + 1
        assert len(np.unique(np.stack([default, labels]), axis=1).T) == (
            max(default.max(), labels.max()) + 1
        )
    assert np.array_equal(labels_of(tmp_path / "coarse"), labels_of(run / "labels.zarr", "coarse"))
    invoke("cut", run, "--level", "fine", threads=False).ok()  # the table
    invoke("verify", run).ok()


def test_levels_without_a_coarse_level(invoke, digits, tmp_path):
    out = tmp_path / "run"
    done = invoke("fit", digits, "--out", out, "--rho", 2, "--levels").ok()
    assert "--levels" in done.stderr
    assert "coarse" not in zarr.open_group(out / "labels.zarr", mode="r")


@pytest.mark.parametrize(
    ("options", "facts"),
    [((), ("--clusters", "--level")), (("--clusters", 3, "--level", "fine"), ("--level",))],
)
def test_cut_needs_a_number_or_a_level(invoke, run, options, facts):
    invoke("cut", run, *options, threads=False).rejected(*facts, code=2)


@pytest.mark.parametrize("option", ["--outliers", "--outlier-share"])
def test_share_of_outliers(invoke, digits, tmp_path, record_of, option):
    out = tmp_path / "run"
    done = invoke("fit", digits, "--out", out, option, SHARE).ok()
    record, labels = record_of(out), labels_of(out / "labels.zarr")
    assert (labels == -1).sum() == record["outliers"] == round(SHARE * len(labels))
    assert f"{record['radius']:.4g}" in done.stderr
    assert f"{record['radius']:.6g}" in done.stdout
    radius = tmp_path / "radius"
    given = ("--radius", record["radius"], "--preprocess", record["config"]["preprocess"])
    invoke("fit", digits, "--out", radius, *given).ok()
    assert np.array_equal(labels_of(radius / "labels.zarr"), labels)


def test_radius_from_the_data(invoke, digits, tmp_path, record_of):
    for option in (("--outliers", "auto"), ("--robust",)):
        out = tmp_path / option[0]
        invoke("fit", digits, "--out", out, *option).ok()
        record = record_of(out)
        assert record["radius"] == record["scan"]["null"]["radius"]
        assert 0.0 < record["outlier_share"] < 0.25


@pytest.mark.parametrize(
    ("options", "code", "facts"),
    [
        (("--outliers", "many"), 2, ("auto", "many")),
        (("--outliers", 1.5), 3, ("outlier_share", "1.5")),
        (("--outliers", 0.1, "--radius", 2), 3, ("--outlier-share", "--radius")),
        (("--outliers", "auto", "--rho", 0.5), 3, ("outlier_share", "rho")),
        (("--kmeans-iter", "few"), 2, ("auto", "few")),
        (("--preprocess", "pca"), 2, ("pca", "auto")),
    ],
)
def test_rejected_options(invoke, digits, tmp_path, options, code, facts):
    out = tmp_path / "run"
    invoke("fit", digits, "--out", out, *options).rejected(*facts, code=code)
    assert not out.exists()


def test_scan_shows_levels(invoke, digits, tmp_path):
    plot = tmp_path / "rho.png"
    done = invoke("rho", digits, "--plot", plot).ok()
    assert plot.read_bytes()[:4] == b"\x89PNG"
    content = invoke("rho", digits, "--json").json()
    levels = content["levels"]
    assert (content["basis"], levels["structure"]) == ("modularity", "clear")
    assert {trial["preprocess"] for trial in content["representations"]} == {
        *("standardize", "l2", "center")
    }
    for name in ("clusters", "low", "high", "coarse", "fine"):
        assert f"{levels[name]}" in done.stdout
    assert "sigma_max" not in done.stdout  # the assumption of the paper does not apply
    assert f"{content['rho']:.4g} to" not in done.stdout
