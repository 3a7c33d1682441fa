"""`scrlm kmeans`, and k-means in `scrlm fit`: outputs, options and rejected input."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import zarr

USAGE, REJECTED = 2, 3
ROWS, FEATURES, CLUSTERS, CHUNK_ROWS = 4000, 64, 5, 1024
COMMON = ("--clusters", CLUSTERS, "--block-rows", CHUNK_ROWS)


@pytest.fixture(scope="module")
def alone(invoke, features, tmp_path_factory):
    """A run in threads and its outcome."""
    out = tmp_path_factory.mktemp("kmeans") / "run"
    return out, invoke("kmeans", features, "--out", out, *COMMON, "--json")


@pytest.mark.slow
@pytest.mark.cluster
def test_local_cluster_gives_the_same_bits(scrlm, features, alone, tmp_path, results_of, record_of):
    out = tmp_path / "run"
    size = ("--nworkers", 2, "--nthreads", 1, "--memory-limit", "2GB")
    done = scrlm("kmeans", features, "--out", out, *COMMON, *size).ok()
    assert results_of(out) == results_of(alone[0])
    record = record_of(out)
    assert len(record["workers"]) == 2
    assert re.search(r"^(?=.*\b2 workers\b).*\b1 thread\b", done.stderr, re.MULTILINE)
    assert "hold" in [phase["name"] for phase in record["phases"]]  # features fit in memory
    (line,) = (line for line in done.stderr.splitlines() if str(out) in line)
    assert all(name in line for name in ("model.zarr", "labels.zarr", "run.json"))
    assert record["kmeans"]["stopped"].split(":")[0] in done.stdout
    assert "Warning" not in done.stderr


def test_run_is_complete(alone, rows, record_of, labels_of, files_of):
    out, _ = alone
    assert {name.split("/")[0] for name in files_of(out)} == {
        "model.zarr",
        "labels.zarr",
        "run.json",
        "events.jsonl",
    }
    record = record_of(out)
    assert (record["status"], record["method"], record["radius"]) == ("complete", "k-means", None)
    assert record["config"]["n_clusters"] == record["clusters"] == CLUSTERS
    assert (record["outliers"], record["outlier_share"]) == (0, 0.0)
    assert record["kmeans"]["stopped"]
    assert record["kmeans"]["iterations"][0]["rows"] == ROWS
    assert record["init"]["ladder"]
    assert set(record["plan"]["phases"]) == {"survey", "init", "kmeans-step", "assign"}
    assert record["plan"]["worker_bytes"] == max(record["plan"]["phases"].values())
    group = zarr.open_group(out / "labels.zarr", mode="r")
    assert group.attrs["complete"] is True
    model = zarr.open_group(out / "model.zarr", mode="r")
    centers = model["centers"][:]
    distances = np.linalg.norm(rows[:, None].astype(float) - centers[None], axis=2)
    np.testing.assert_array_equal(labels_of(out), distances.argmin(axis=1))
    np.testing.assert_allclose(group["distances"][:], distances.min(axis=1), rtol=1e-6)
    assert record["inertia"] == pytest.approx(float(np.square(distances.min(axis=1)).sum()))
    assert model["center_rows"].shape == model["losses"].shape == (0,)
    assert model.attrs["radius"] is None


def test_json_is_one_object(alone):
    out, done = alone
    result = done.json()
    assert (result["run"], result["method"]) == (str(out), "k-means")
    assert (result["rows"], result["features"], result["clusters"]) == (ROWS, FEATURES, CLUSTERS)
    assert result["rho"] is result["radius"] is None
    assert result["kmeans"]["iterations"][-1]["inertia"] >= result["inertia"]


def test_predict_and_evaluate_a_kmeans_run(invoke, features, alone, tmp_path, files_of, truth):
    out, _ = alone
    labels = tmp_path / "labels.zarr"
    invoke("predict", out, features, "--out", labels, "--block-rows", CHUNK_ROWS).ok()
    predicted, fitted = files_of(labels), files_of(out / "labels.zarr")
    del predicted["zarr.json"], fitted["zarr.json"]  # only one names the features
    assert predicted == fitted
    found = invoke("evaluate", out, "--json").json()
    assert found["n_clusters"] == CLUSTERS
    assert found["outlier_recall"] == 0.0  # k-means labels every row
    assert found["accuracy"] <= np.mean(truth != -1)


@pytest.mark.slow
def test_every_init(invoke, features, alone, tmp_path, rows, record_of):
    centers = tmp_path / "centers.npy"
    np.save(centers, rows[:CLUSTERS])
    for number, init in enumerate(
        ("k-means++", "k-means||", "random", alone[0], alone[0] / "model.zarr", centers)
    ):
        out = tmp_path / str(number)
        invoke("kmeans", features, "--out", out, *COMMON, "--init", init, "--max-iter", 2).ok()
        record = record_of(out)
        given = "given" if number > 2 else init
        assert record["config"]["init"] == given
        assert len(record["kmeans"]["iterations"]) <= 2
        if init == alone[0]:  # these centers had converged already
            assert record["inertia"] <= record_of(alone[0])["inertia"] * (1 + 1e-12)


def test_given_centers_determine_clusters_and_origin(
    invoke, features, alone, tmp_path, rows, record_of, monkeypatch
):
    np.save(tmp_path / "centers.npy", rows[:7])
    monkeypatch.chdir(tmp_path)
    common = ("--block-rows", CHUNK_ROWS, "--max-iter", 1)
    for number, (init, clusters) in enumerate(
        ((alone[0], CLUSTERS), (alone[0] / "model.zarr", CLUSTERS), ("centers.npy", 7))
    ):
        out = tmp_path / str(number)
        result = invoke("kmeans", features, "--out", out, "--init", init, *common, "--json").json()
        assert result["clusters"] == clusters
        assert record_of(out)["init"] == result["init"] == {"centers": str(tmp_path / init)}


def test_options(invoke, features, alone, tmp_path, rows, record_of):
    weights = tmp_path / "weights.npy"
    np.save(weights, np.where(rows[:, 0] > 0, 1.0, 0.0))

    def run(name, *options):
        invoke("kmeans", features, "--out", tmp_path / name, *COMMON, *options).ok()
        return zarr.open_array(tmp_path / name / "model.zarr/centers", mode="r")[:], record_of(
            tmp_path / name
        )

    centers, record = run("spherical", "--spherical")
    np.testing.assert_allclose(np.linalg.norm(centers, axis=1), 1.0)
    assert record["config"]["preprocess"] == "l2"
    centers, record = run("weighted", "--sample-weight", weights, "--init", "random")
    assert (centers[:, 0] > 0).all()
    _, record = run("time", "--max-time", "1ms", "--kmeans-sample", 0.25)
    assert record["config"]["lloyd"]["max_seconds"] == 0.001
    assert record["kmeans"]["stopped"].startswith("max_seconds: 0.001 s")
    _, record = run("sample", "--kmeans-sample", 0.25, "--init", "random", "--persist", "no")
    assert [it["rows"] for it in record["kmeans"]["iterations"] if it["sampled"]]
    assert not record["kmeans"]["iterations"][-1]["sampled"]
    assert "hold" not in [phase["name"] for phase in record["phases"]]
    _, record = run("scaled", "--preprocess", "scale", "--tol", 0.5, "--seed", 3)
    assert record["config"]["seed"] == 3
    assert record["kmeans"]["stopped"].startswith("tol")
    _, record = run("inertia", "--inertia-tol", 0.9, "--tol", 0, "--init", "random")
    assert record["kmeans"]["stopped"].startswith("inertia_tol")


def test_existing_run_is_replaced_only_with_overwrite(invoke, features, tmp_path):
    out = tmp_path / "run"
    command = ("kmeans", features, "--out", out, *COMMON, "--max-iter", 1)
    invoke(*command).ok()
    before = json.loads((out / "run.json").read_text())
    invoke(*command).rejected(str(out), "--overwrite")
    assert json.loads((out / "run.json").read_text()) == before
    invoke(*command, "--overwrite").ok()


@pytest.mark.slow
def test_fit_refines_with_kmeans(
    invoke, features, tmp_path, record_of, labels_of, round_trip, rows
):
    plain = record_of(round_trip.run)
    blocks = ("--block-rows", CHUNK_ROWS, "--clusters", 10)
    out = tmp_path / "robust"
    done = invoke("fit", features, "--out", out, *blocks, "--kmeans-iter", 5, "--polish").ok()
    record = record_of(out)
    assert record["kmeans"]["stopped"].split(":")[0] in done.stdout
    assert record["inertia"] < plain["inertia"]
    assert record["outliers"] == plain["outliers"]
    assert "polish" in [phase["name"] for phase in record["phases"]]
    assert record["config"]["refine"]["max_iter"] == 5
    out = tmp_path / "all"
    result = invoke(
        *("fit", features, "--out", out, *blocks, "--kmeans-iter", 5, "--no-robust", "--json")
    ).json()
    assert result["outliers"] == 0
    assert result["radius"] is None
    assert 1 <= len(result["kmeans"]["iterations"]) <= 5
    assert labels_of(out).min() == 0
    assert invoke("evaluate", out, "--json").json()["n_rows"] == ROWS


class TestRejected:
    @pytest.fixture
    def rejected(self, invoke, features, tmp_path):
        out = tmp_path / "out"

        def run(*options, facts, code=REJECTED, command="kmeans", source=features):
            done = invoke(command, source, "--out", out, *options)
            done.rejected(*facts, code=code)
            assert not out.exists()
            return done

        return run

    @pytest.mark.parametrize(
        ("options", "facts"),
        [
            (("--clusters", 0), ("n_clusters", "0")),
            (("--clusters", 4001), ("clusters", "4001", "4000")),
            (("--clusters", 3, "--max-iter", -1), ("max_iter", "-1")),
            (("--clusters", 3, "--tol", 2), ("tol", "2.0")),
            (("--clusters", 3, "--kmeans-sample", 0), ("sample", "0", "None")),
            (("--clusters", 3, "--kmeans-sample", 7), ("sample", "7.0")),
            (("--clusters", 3, "--max-time", "0s"), ("max_seconds", "0.0")),
            (("--clusters", 3, "--seed", -1), ("seed", "-1")),
            (("--clusters", 3, "--block-rows", 0), ("block_rows", "0")),
            (
                ("--clusters", 3, "--init", "kmeans++"),
                ("kmeans++", "scrlm", "k-means++", "k-means||", "random"),
            ),
            (("--clusters", 3, "--init", "gone.npy"), ("gone.npy", "k-means++")),
            (("--clusters", 3, "--sample-weight", "gone.npy"), ("gone.npy",)),
        ],
        ids=lambda value: " ".join(map(str, value)),
    )
    def test_values(self, rejected, options, facts):
        rejected(*options, facts=facts)

    @pytest.mark.parametrize(
        ("options", "facts"),
        [
            ((), ("--clusters", "--init scrlm")),
            (("--init", "random"), ("--clusters", "--init random")),
            (("--clusters", "many"), ("--clusters", "many")),
            (("--clusters", 3, "--max-time", "soon"), ("--max-time", "'soon'", "55m")),
            (("--clusters", 3, "--persist", "maybe"), ("--persist", "maybe")),
            (
                ("--clusters", 3, "--spherical", "--preprocess", "scale"),
                ("--spherical", "--preprocess"),
            ),
        ],
        ids=lambda value: " ".join(map(str, value)),
    )
    def test_usage(self, rejected, options, facts):
        rejected(*options, facts=facts, code=USAGE)

    def test_invalid_centers(self, rejected, tmp_path, alone):
        np.save(tmp_path / "c.npy", np.ones((3, 7)))
        facts = ("(3, 7)", "(3, 64)")
        rejected("--clusters", 3, "--init", tmp_path / "c.npy", facts=facts)
        rejected("--clusters", 3, "--init", alone[0], facts=("(5, 64)", "(3, 64)"))
        np.save(tmp_path / "flat.npy", np.ones(64))
        rejected("--init", tmp_path / "flat.npy", facts=("flat.npy", "(64,)"))
        np.save(tmp_path / "nan.npy", np.full((3, 64), math.nan))
        rejected("--clusters", 3, "--init", tmp_path / "nan.npy", facts=("NaN",))
        np.save(tmp_path / "p.npy", np.array([{}]), allow_pickle=True)
        rejected("--clusters", 3, "--init", tmp_path / "p.npy", facts=("p.npy", "object"))

    def test_weights(self, rejected, tmp_path):
        weights = np.ones(ROWS)
        weights[1234] = -2.0
        np.save(tmp_path / "w.npy", weights)
        facts = ("row 1234", "-2.0")
        rejected("--clusters", 3, "--sample-weight", tmp_path / "w.npy", facts=facts)
        np.save(tmp_path / "s.npy", np.ones(7))
        facts = ("7", "4000")
        rejected("--clusters", 3, "--sample-weight", tmp_path / "s.npy", facts=facts)

    @pytest.mark.parametrize("init", ["scrlm", "k-means||"])
    def test_a_bad_row_is_named(self, rejected, store, rows, tmp_path, init):
        values = rows.copy()
        values[3333, 17] = np.nan
        path = store(tmp_path / "bad.zarr", values)
        options = ("--clusters", 3, "--init", init, "--block-rows", CHUNK_ROWS)
        rejected(*options, source=path, facts=("row 3333", "block 3", str(path), "NaN"))

    @pytest.mark.parametrize(
        "options",
        [
            ("--tol", 1e-4),  # also if the value is the default
            ("--inertia-tol", 0.1),
            ("--max-time", "5m"),
            ("--kmeans-sample", 0.5),
            ("--persist", "no"),
            ("--persist", "yes", "--kmeans-iter", 0),
        ],
        ids=lambda value: value[0],
    )
    def test_options_that_require_kmeans_iterations(self, rejected, options):
        facts = (options[0], "--kmeans-iter")
        rejected(*options, "--rho", 0.5, command="fit", facts=facts, code=USAGE)

    def test_no_robust_requires_kmeans_iterations(self, rejected):
        facts = ("robust", "False", "--kmeans-iter")
        rejected("--no-robust", "--rho", 0.5, command="fit", facts=facts)


@pytest.mark.slow
def test_memory_is_checked_before_a_cluster_is_started(scrlm, features, tmp_path):
    out = tmp_path / "run"
    size = ("--nworkers", 1, "--nthreads", 32, "--memory-limit", "450MB")
    done = scrlm("kmeans", features, "--clusters", CLUSTERS, "--out", out, *size)
    message = done.rejected("0.45 GB", "--memory-limit")
    assert done.stderr.splitlines() == [message]
    assert not out.exists()
