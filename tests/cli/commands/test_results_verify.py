"""`scrlm verify` finds what is not what the features give."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import zarr


@pytest.fixture
def run(features: Path, invoke, tmp_path: Path) -> Path:
    out = tmp_path / "run"
    invoke("fit", features, "--out", out, "--rho", 0.5, "--clusters", 10, "--block-rows", 500).ok()
    return out


def test_a_run_as_it_was_written(run, invoke):
    content = invoke("verify", run, "--json").ok().json()
    assert content["ok"] is True
    assert len(content["blocks"]) == 8
    assert content["rows"] == 4000
    assert len(content["clusters"]) == 4
    other = invoke("verify", run, "--blocks", 2, "--losses", 0, "--seed", 1, "--json").ok().json()
    assert len(other["blocks"]) == 2
    assert other["clusters"] == []


def test_a_label_that_was_changed_is_named(run, invoke):
    labels = zarr.open_array(run / "labels.zarr" / "labels", mode="r+")
    labels[1234] = (labels[1234] + 1) % 5
    done = invoke("verify", run, "--losses", 0)
    assert done.code == 3
    assert "1 labels, 0 distances and 0 losses differ; the first row is 1234" in done.stderr


def test_a_loss_that_was_changed_is_named(run, invoke):
    losses = zarr.open_array(run / "model.zarr" / "losses", mode="r+")
    losses[:] = losses[:] * 1.001
    done = invoke("verify", run, "--blocks", 0, "--json")
    assert done.code == 3
    content = json.loads(done.stdout)
    assert content["wrong_clusters"] == content["clusters"]
    assert len(content["clusters"]) == 4
    last = invoke("verify", run, "--blocks", 0, "--log-json").stderr.splitlines()[-1]
    said = json.loads(last)
    assert said["event"] == "Error"
    assert "4 losses differ" in said["text"]


def test_centers_that_were_changed(run, invoke):
    centers = zarr.open_array(run / "model.zarr" / "centers", mode="r+")
    centers[0] = centers[1]
    done = invoke("verify", run, "--losses", 0)
    assert done.code == 3


def test_other_features_are_refused(run, invoke, features, tmp_path):
    record = json.loads((run / "run.json").read_text())
    other = Path(shutil.copytree(features, tmp_path / "other.zarr"))
    digests = zarr.open_array(other / "digests", mode="r+")
    digests[0] = 7
    record["features"]["path"] = str(other)
    (run / "run.json").write_text(json.dumps(record))
    invoke("verify", run).rejected("is not the one that the run read", code=3)
