"""`scrlm plan`: its output agrees with the fit, and invalid input is rejected."""

from __future__ import annotations

import re

import pytest

ROWS, FEATURES = 4000, 64
BLOCKS = ("--block-rows", 1024)


def test_json_agrees_with_the_run(invoke, features, round_trip, record_of):
    content = invoke("plan", features, "--rho", 0.5, "--clusters", 10, *BLOCKS, "--json").json()
    record = record_of(round_trip.run)
    planned = {phase["name"]: (phase["rows"], phase["bytes"]) for phase in content["phases"]}
    assert planned == {p["name"]: (p["rows"], p["bytes"]) for p in record["phases"]}
    assert content["candidates"] == record["config"]["n_candidates"]
    assert content["bytes"] == sum(phase["bytes"] for phase in record["phases"])
    assert content["client_bytes"] == record["plan"]["client_bytes"]
    assert content["worker_bytes"] == record["plan"]["worker_bytes"]
    assert max(w["peak_memory_bytes"] for w in record["workers"].values()) < content["worker_bytes"]
    assert content["seconds"] > content["start_seconds"] > 0


def test_table_contains_every_phase_and_the_total(invoke, features):
    options = ("--clusters", 5, "--kmeans-iter", 3, "--polish", "--persist", "no")
    done = invoke("plan", features, "--rho", 0.5, *options).ok()
    total = invoke("plan", features, "--rho", 0.5, *options, "--json").json()["flops"]
    phases = ("survey", "loss", "extract", "polish", "kmeans-step x 3", "assign")
    for fact in (*phases, f"{total:.3g}"):
        assert fact in done.stdout
    assert "k-means" in done.stderr  # a note that it may need fewer iterations


def test_workers_match_the_local_cluster(invoke, features):
    size = ("--workers", 3, "--threads", 2, "--memory-limit", "2GB")
    content = invoke(
        "plan", features, "--rho", 0.5, "--clusters", 5, *size, "--json", threads=False
    ).json()
    assert (content["workers"], content["threads"]) == (3, 2)
    assert content["memory_limit"] == 2 * 10**9
    default = invoke(
        "plan", features, "--rho", 0.5, "--clusters", 5, "--json", threads=False
    ).json()
    assert default["workers"] >= 1


@pytest.mark.parametrize("command", ["plan", "fit"])
def test_message_suggests_settings_that_fit_in_memory(invoke, tmp_path, features, command):
    out = ("--out", tmp_path / "run") if command == "fit" else ()
    given = (command, features, "--rho", 0.5, "--clusters", 5, *out, "--nworkers", 1)
    small = ("--nthreads", 32, "--memory-limit", "450MB")
    text = invoke(*given, *small, threads=False).rejected("0.45 GB", "32")
    limit = re.search(r"--memory-limit (\d+MB)", text).group(1)
    threads = re.search(r"--nthreads (\d+)", text).group(1)
    assert not (tmp_path / "run").exists()
    plan = ("plan", features, "--rho", 0.5, "--clusters", 5, "--nworkers", 1)
    invoke(*plan, "--nthreads", 32, "--memory-limit", limit, threads=False).ok()
    invoke(*plan, "--nthreads", threads, "--memory-limit", "450MB", threads=False).ok()
    more = ("--nthreads", int(threads) + 1, "--memory-limit", "450MB")
    invoke(*plan, *more, threads=False).rejected("--memory-limit")


@pytest.mark.parametrize(
    ("options", "code", "facts"),
    [
        (("--candidates", 5000), 3, ("n_candidates", "5000", "4000")),
        (("--rho", 0), 3, ("rho", "0.0")),
        (("--no-robust",), 3, ("robust", "False", "--kmeans-iter")),
        (("--block-rows", 0), 3, ("block_rows", "0")),
    ],
)
def test_errors_match_those_of_fit(invoke, features, options, code, facts):
    invoke("plan", features, "--rho", 0.5, "--clusters", 5, *options).rejected(*facts, code=code)


def test_missing_store(invoke, tmp_path):
    path = tmp_path / "none.zarr"
    invoke("plan", path, "--clusters", 5).rejected(str(path))


def test_options_of_kmeans_require_iterations(invoke, features):
    done = invoke("plan", features, "--rho", 0.5, "--clusters", 5, "--persist", "no")
    done.rejected("--persist", "--kmeans-iter", code=2)
