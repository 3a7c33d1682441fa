"""`scrlm demo`: all clusters are found, and --out keeps the files."""

from __future__ import annotations

import re

import pytest
import zarr


@pytest.mark.slow
@pytest.mark.cluster
def test_demo(scrlm):
    """Without options: a cluster starts, the dashboard URL is printed, all clusters are found."""
    done = scrlm("demo", timeout=240).ok()
    assert re.search(r"\b\d+ workers?\b", done.stderr)
    assert re.search(r"http://127\.0\.0\.1:\d+/status", done.stderr)
    assert re.search(r"accuracy +│ +100\.00 %", done.stdout)
    assert re.search(r"outlier recall +│ +100\.00 %", done.stdout)
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.slow
def test_demo_keeps_files_with_out(invoke, tmp_path, record_of, monkeypatch):
    monkeypatch.setattr("scrlm_cli.commands.demo._ROWS", 4_000)
    out = tmp_path / "demo"
    done = invoke("demo", "--out", out, "--seed", 3, "--json")
    assert done.json()["evaluation"]["accuracy"] == 1.0
    assert str(out) in done.stderr
    assert zarr.open_group(out / "features.zarr", mode="r").attrs["mixture"]["seed"] == 3
    assert record_of(out / "run")["status"] == "complete"
    assert invoke("evaluate", out / "run", "--json").json()["accuracy"] == 1.0


def test_message_names_an_option_that_demo_has(invoke, my_features):
    invoke("demo", "--out", my_features.parent).rejected(str(my_features), "--overwrite")
    assert "--overwrite" in invoke("demo", "--help").ok().stdout
