"""`scrlm rho`, `scrlm cut`, and `scrlm fit` without parameters."""

from __future__ import annotations

import re
import shutil

import numpy as np
import pytest
import zarr


def test_fit_needs_no_parameter(invoke, features, tmp_path, record_of, truth):
    run = tmp_path / "run"
    done = invoke("fit", features, "--out", run).ok()
    record = record_of(run)
    scan = record["scan"]
    assert scan["assumption_1"] is True
    assert re.search(rf"\b{scan['rho']:.4g}\b.*\b5 cluster", done.stderr)
    for fact in (f"{scan['rho']:.6g}", "ARI 1.000", f"{scan['sigma_max']:.4g}"):
        assert fact in done.stdout
    assert record["clusters"] == 5
    assert record["config"]["rho"] == record["scan"]["rho"]
    labels = zarr.open_group(run / "labels.zarr", mode="r")["labels"][:]
    assert np.array_equal(labels == -1, truth == -1)


def test_table_plot_and_json(invoke, features, tmp_path):
    plot = tmp_path / "rho.png"
    done = invoke("rho", features, "--plot", plot).ok()
    assert plot.read_bytes()[:4] == b"\x89PNG"
    odd = tmp_path / r"z$\bad{$.zarr"  # Matplotlib must not read it as a formula
    shutil.copytree(features, odd)
    invoke("rho", odd, "--plot", plot).ok()
    content = invoke("rho", features, "--json").json()
    assert (content["basis"], content["clusters"]) == ("stretch", 5)
    assert len(content["rungs"]) > 8
    for rho in (content["low"], content["high"], *(trial["rho"] for trial in content["rungs"])):
        assert f"{rho:.4g}" in done.stdout
    assert f"{content['rho']:.6g}" in done.stdout
    assert f"{content['sigma_max']:.4g}" in done.stdout


def test_scan_starts_no_workers(scrlm, features):
    stderr = scrlm("rho", features, "--json").ok().stderr
    assert re.search(r"\b\d+ threads?\b", stderr.splitlines()[0])
    assert "http://" not in stderr  # the dashboard of a cluster


@pytest.mark.parametrize(
    ("options", "code", "facts"),
    [
        (("--clusters", 0), 3, ("n_clusters", "0")),
        (("--candidates", 5000), 3, ("n_candidates", "5000", "4000")),
        (("--plot", "rho.doc"), 3, ("rho.doc", "png")),
    ],
)
def test_rejected_options_of_rho(invoke, features, options, code, facts):
    invoke("rho", features, *options).rejected(*facts, code=code)


def test_plan_contains_the_scan(invoke, features, tmp_path, record_of):
    once = ("--clusters", 10, "--kmeans-iter", 0)
    content = invoke("plan", features, *once, "--json").json()
    assert [phase["name"] for phase in content["phases"]] == ["survey", "scan", "assign"]
    invoke("fit", features, "--out", tmp_path / "run", *once).ok()
    record = record_of(tmp_path / "run")
    planned = {phase["name"]: (phase["rows"], phase["bytes"]) for phase in content["phases"]}
    assert planned == {p["name"]: (p["rows"], p["bytes"]) for p in record["phases"]}


def test_cut_writes_coarser_labels(invoke, round_trip, tmp_path):
    out = tmp_path / "coarse.zarr"
    content = invoke(
        "cut", round_trip.run, "--clusters", 2, "--out", out, "--json", threads=False
    ).json()
    assert sorted(k for group in content["members"] for k in group) == [0, 1, 2, 3, 4]
    fine = zarr.open_group(round_trip.run / "labels.zarr", mode="r")["labels"][:]
    coarse = zarr.open_group(out, mode="r")["labels"][:]
    assert np.bincount(coarse[coarse >= 0]).tolist() == content["counts"]
    assert np.array_equal(coarse == -1, fine == -1)
    assert invoke("evaluate", out, "--json").json()["n_clusters"] == 2
    invoke("cut", round_trip.run, "--clusters", 2, "--out", out, threads=False).rejected(
        str(out), "--overwrite"
    )
    plain = invoke("cut", round_trip.run, "--clusters", 2, "--overwrite", threads=False)
    plain.rejected("--overwrite", "--out", code=2)
    invoke("cut", round_trip.run, "--clusters", 9, threads=False).rejected("9", "5")
