"""`scrlm rho`, `scrlm cut` and `scrlm fit` with no parameter."""

from __future__ import annotations

import numpy as np
import pytest
import zarr


def test_fit_needs_no_parameter(invoke, features, tmp_path, record_of, truth):
    run = tmp_path / "run"
    done = invoke("fit", features, "--out", run).ok()
    assert "5 cluster(s) for every rho" in done.stderr
    for facts in ("rho chosen", "ARI 1.000", "met: sigma_max is"):
        assert facts in done.stdout
    record = record_of(run)
    assert record["clusters"] == 5
    assert record["config"]["rho"] == record["scan"]["rho"]
    labels = zarr.open_group(run / "labels.zarr", mode="r")["labels"][:]
    assert np.array_equal(labels == -1, truth == -1)


def test_the_table_and_the_picture(invoke, features, tmp_path):
    plot = tmp_path / "rho.png"
    done = invoke("rho", features, "--plot", plot).ok()
    for facts in ("Ladder of rho", "shell", "rho chosen", "as well", "sigma_max"):
        assert facts in done.stdout
    assert plot.read_bytes()[:4] == b"\x89PNG"
    content = invoke("rho", features, "--json").json()
    assert (content["basis"], content["clusters"]) == ("stretch", 5)
    assert len(content["rungs"]) > 8


def test_a_scan_starts_no_workers(scrlm, features):
    said = scrlm("rho", features, "--json").stderr
    assert "threads of this process" in said


@pytest.mark.parametrize(
    ("options", "code", "facts"),
    [
        (("--clusters", 0), 3, ("n_clusters is 0",)),
        (("--candidates", 5000), 3, ("n_candidates is 5000", "4000 rows")),
        (("--plot", "rho.doc"), 3, ("no known ending",)),
    ],
)
def test_what_rho_refuses(invoke, features, options, code, facts):
    invoke("rho", features, *options).rejected(*facts, code=code)


def test_the_plan_has_the_scan(invoke, features, tmp_path, record_of):
    content = invoke("plan", features, "--clusters", 10, "--json").json()
    assert [phase["name"] for phase in content["phases"]] == ["survey", "scan", "assign"]
    invoke("fit", features, "--out", tmp_path / "run", "--clusters", 10).ok()
    record = record_of(tmp_path / "run")
    planned = {phase["name"]: (phase["rows"], phase["bytes"]) for phase in content["phases"]}
    assert planned == {p["name"]: (p["rows"], p["bytes"]) for p in record["phases"]}


def test_a_cut_writes_coarser_labels(invoke, round_trip, tmp_path):
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
    invoke("cut", round_trip.run, "--clusters", 2, "--out", out, threads=False).rejected("exists")
    plain = invoke("cut", round_trip.run, "--clusters", 2, "--overwrite", threads=False)
    assert plain.code == 2
    assert "--overwrite without --out would do nothing" in plain.stderr
    invoke("cut", round_trip.run, "--clusters", 9, threads=False).rejected("ask for 1 to 5")
