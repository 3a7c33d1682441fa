"""`scrlm verify` detects results that do not match the features."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import zarr


@pytest.fixture
def run(features: Path, invoke, tmp_path: Path) -> Path:
    out = tmp_path / "run"
    invoke("fit", features, "--out", out, "--rho", 0.5, "--clusters", 10, "--block-rows", 500).ok()
    return out


def test_unchanged_run(run, invoke):
    content = invoke("verify", run, "--json").ok().json()
    assert content["ok"] is True
    assert len(content["blocks"]) == 8
    assert content["rows"] == 4000
    assert len(content["clusters"]) == 4
    other = invoke("verify", run, "--blocks", 2, "--losses", 0, "--seed", 1, "--json").ok().json()
    assert len(other["blocks"]) == 2
    assert other["clusters"] == []


def test_changed_label_is_reported(run, invoke):
    labels = zarr.open_array(run / "labels.zarr" / "labels", mode="r+")
    labels[1234] = (labels[1234] + 1) % 5
    done = invoke("verify", run, "--losses", 0)
    assert done.code == 3
    last = done.stderr.splitlines()[-1]
    for count in (r"\b1 label", r"\b0 distance", r"\b0 loss", r"\b1234\b"):
        assert re.search(count, last)


def test_changed_loss_is_reported(run, invoke):
    losses = zarr.open_array(run / "model.zarr" / "losses", mode="r+")
    losses[:] = losses[:] * 1.001
    done = invoke("verify", run, "--blocks", 0, "--json")
    assert done.code == 3
    content = json.loads(done.stdout)
    assert content["wrong_clusters"] == content["clusters"]
    assert len(content["clusters"]) == 4
    last = invoke("verify", run, "--blocks", 0, "--log-json").stderr.splitlines()[-1]
    event = json.loads(last)
    assert event["event"] == "Error"
    assert re.search(r"\b4 losses\b", event["text"])


def test_changed_centers_are_detected(run, invoke):
    centers = zarr.open_array(run / "model.zarr" / "centers", mode="r+")
    centers[0] = centers[1]
    done = invoke("verify", run, "--losses", 0)
    assert done.code == 3


def test_other_features_are_rejected(run, invoke, features, tmp_path):
    record = json.loads((run / "run.json").read_text())
    other = Path(shutil.copytree(features, tmp_path / "other.zarr"))
    digests = zarr.open_array(other / "digests", mode="r+")
    digests[0] = 7
    record["features"]["path"] = str(other)
    (run / "run.json").write_text(json.dumps(record))
    invoke("verify", run).rejected(str(other), code=3)
