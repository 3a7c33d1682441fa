"""`scrlm plan`: what it prints, that it agrees with the fit, and what it rejects."""

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


def test_the_table_has_every_phase_and_the_sum(invoke, features):
    options = ("--clusters", 5, "--kmeans-iter", 3, "--polish", "--persist", "no")
    done = invoke("plan", features, "--rho", 0.5, *options).ok()
    for facts in ("survey", "loss", "extract", "polish", "kmeans-step x 3", "assign", "in all"):
        assert facts in done.stdout
    assert "k-means may stop earlier" in done.stderr


def test_workers_are_those_of_the_local_cluster(invoke, features):
    size = ("--workers", 3, "--threads", 2, "--memory-limit", "2GB")
    content = invoke(
        "plan", features, "--rho", 0.5, "--clusters", 5, *size, "--json", threads=False
    ).json()
    assert (content["workers"], content["threads"]) == (3, 2)
    assert content["memory_limit"] == 2 * 10**9
    usual = invoke("plan", features, "--rho", 0.5, "--clusters", 5, "--json", threads=False).json()
    assert usual["workers"] >= 1


@pytest.mark.parametrize("command", ["plan", "fit"])
def test_what_does_not_fit_is_refused_with_what_would(invoke, tmp_path, features, command):
    out = ("--out", tmp_path / "run") if command == "fit" else ()
    given = (command, features, "--rho", 0.5, "--clusters", 5, *out, "--nworkers", 1)
    small = ("--nthreads", 32, "--memory-limit", "450MB")
    text = invoke(*given, *small, threads=False).rejected("0.45 GB", "a worker with 32 thread(s)")
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
        (("--candidates", 5000), 3, ("n_candidates is 5000", "4000 rows")),
        (("--rho", 0), 3, ("rho is 0",)),
        (("--no-robust",), 3, ("robust is False", "--kmeans-iter")),
        (("--block-rows", 0), 3, ("block_rows is 0",)),
    ],
)
def test_errors_are_those_of_the_fit(invoke, features, options, code, facts):
    invoke("plan", features, "--rho", 0.5, "--clusters", 5, *options).rejected(*facts, code=code)


def test_no_store(invoke, tmp_path):
    invoke("plan", tmp_path / "none.zarr", "--clusters", 5).rejected("does not exist")


def test_iterations_that_are_not_asked_for_have_no_options(invoke, features):
    done = invoke("plan", features, "--rho", 0.5, "--clusters", 5, "--persist", "no")
    assert done.code == 2
    assert "--persist without --kmeans-iter" in done.stderr
