"""scrlm kmeans, and k-means in scrlm fit: what they write, say and refuse."""

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
    """A run in threads, and what it printed."""
    out = tmp_path_factory.mktemp("kmeans") / "run"
    return out, invoke("kmeans", features, "--out", out, *COMMON, "--json")


@pytest.mark.slow
@pytest.mark.cluster
def test_on_a_local_cluster_the_same_bits_and_a_table(
    scrlm, features, alone, tmp_path, results_of, record_of
):
    out = tmp_path / "run"
    size = ("--nworkers", 2, "--nthreads", 1, "--memory-limit", "2GB")
    done = scrlm("kmeans", features, "--out", out, *COMMON, *size).ok()
    assert results_of(out) == results_of(alone[0])
    assert len(record_of(out)["workers"]) == 2
    assert re.search(r"^using .*2 workers with 1 thread", done.stderr, re.MULTILINE)
    assert "features are held in the workers' memory: they fit" in done.stderr
    assert f"written to {out}: model.zarr, labels.zarr, run.json" in done.stderr
    assert "k-means ended by" in done.stdout
    assert "Warning" not in done.stderr


def test_the_run_is_complete(alone, rows, record_of, labels_of, files_of):
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
    said = done.json()
    assert (said["run"], said["method"]) == (str(out), "k-means")
    assert (said["rows"], said["features"], said["clusters"]) == (ROWS, FEATURES, CLUSTERS)
    assert said["rho"] is said["radius"] is None
    assert said["kmeans"]["iterations"][-1]["inertia"] >= said["inertia"]


def test_predict_and_evaluate_work_on_it(invoke, features, alone, tmp_path, files_of, truth):
    out, _ = alone
    labels = tmp_path / "labels.zarr"
    invoke("predict", out, features, "--out", labels, "--block-rows", CHUNK_ROWS).ok()
    predicted, fitted = files_of(labels), files_of(out / "labels.zarr")
    del predicted["zarr.json"], fitted["zarr.json"]  # one says whose labels they are
    assert predicted == fitted
    found = invoke("evaluate", out, "--json").json()
    assert found["n_clusters"] == CLUSTERS
    assert found["outlier_recall"] == 0.0  # k-means knows no outliers
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
        if init == alone[0]:  # it was at its end already
            assert record["inertia"] <= record_of(alone[0])["inertia"] * (1 + 1e-12)


def test_given_centers_say_how_many_and_where_from(
    invoke, features, alone, tmp_path, rows, record_of, monkeypatch
):
    np.save(tmp_path / "centers.npy", rows[:7])
    monkeypatch.chdir(tmp_path)
    common = ("--block-rows", CHUNK_ROWS, "--max-iter", 1)
    for number, (init, clusters) in enumerate(
        ((alone[0], CLUSTERS), (alone[0] / "model.zarr", CLUSTERS), ("centers.npy", 7))
    ):
        out = tmp_path / str(number)
        said = invoke("kmeans", features, "--out", out, "--init", init, *common, "--json").json()
        assert said["clusters"] == clusters
        assert record_of(out)["init"] == said["init"] == {"centers": str(tmp_path / init)}


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
    assert record["kmeans"]["stopped"] == "max_seconds: 0.001 s are over"
    _, record = run("sample", "--kmeans-sample", 0.25, "--init", "random", "--persist", "no")
    assert [it["rows"] for it in record["kmeans"]["iterations"] if it["sampled"]]
    assert not record["kmeans"]["iterations"][-1]["sampled"]
    assert "hold" not in [phase["name"] for phase in record["phases"]]
    _, record = run("scaled", "--preprocess", "scale", "--tol", 0.5, "--seed", 3)
    assert record["config"]["seed"] == 3
    assert record["kmeans"]["stopped"].startswith("tol")
    _, record = run("inertia", "--inertia-tol", 0.9, "--tol", 0, "--init", "random")
    assert record["kmeans"]["stopped"].startswith("inertia_tol")


def test_nothing_is_replaced_unless_asked(invoke, features, tmp_path):
    out = tmp_path / "run"
    command = ("kmeans", features, "--out", out, *COMMON, "--max-iter", 1)
    invoke(*command).ok()
    before = json.loads((out / "run.json").read_text())
    invoke(*command).rejected(str(out), "--overwrite")
    assert json.loads((out / "run.json").read_text()) == before
    invoke(*command, "--overwrite").ok()


@pytest.mark.slow
def test_fit_refines(invoke, features, tmp_path, record_of, labels_of, round_trip, rows):
    plain = record_of(round_trip.run)
    blocks = ("--block-rows", CHUNK_ROWS, "--clusters", 10)
    out = tmp_path / "robust"
    done = invoke("fit", features, "--out", out, *blocks, "--kmeans-iter", 5, "--polish").ok()
    record = record_of(out)
    assert "k-means ended by" in done.stdout
    assert record["inertia"] < plain["inertia"]
    assert record["outliers"] == plain["outliers"]
    assert "polish" in [phase["name"] for phase in record["phases"]]
    assert record["config"]["refine"]["max_iter"] == 5
    out = tmp_path / "all"
    said = invoke(
        *("fit", features, "--out", out, *blocks, "--kmeans-iter", 5, "--no-robust", "--json")
    ).json()
    assert said["outliers"] == 0
    assert said["radius"] is None
    assert 1 <= len(said["kmeans"]["iterations"]) <= 5
    assert labels_of(out).min() == 0
    assert invoke("evaluate", out, "--json").json()["n_rows"] == ROWS


class TestRefused:
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
            (("--clusters", 0), ("n_clusters is 0", "at least 1")),
            (("--clusters", 4001), ("4001 clusters", "4000 rows", "ask for 4000 or fewer")),
            (("--clusters", 3, "--max-iter", -1), ("max_iter is -1",)),
            (("--clusters", 3, "--tol", 2), ("tol is 2.0", "from 0 to 1")),
            (("--clusters", 3, "--kmeans-sample", 0), ("sample is 0", "or None")),
            (("--clusters", 3, "--kmeans-sample", 7), ("sample is 7.0", "from 0 to 1")),
            (("--clusters", 3, "--max-time", "0s"), ("max_seconds is 0", "above 0")),
            (("--clusters", 3, "--seed", -1), ("seed is -1",)),
            (("--clusters", 3, "--block-rows", 0), ("block_rows is 0",)),
            (
                ("--clusters", 3, "--init", "kmeans++"),
                ("kmeans++", "scrlm, k-means++, k-means||, random", "path"),
            ),
            (("--clusters", 3, "--init", "gone.npy"), ("gone.npy", "does not exist")),
            (("--clusters", 3, "--sample-weight", "gone.npy"), ("gone.npy", "does not exist")),
        ],
        ids=lambda value: " ".join(map(str, value)),
    )
    def test_values(self, rejected, options, facts):
        rejected(*options, facts=facts)

    @pytest.mark.parametrize(
        ("options", "facts"),
        [
            ((), ("--clusters is missing", "--init scrlm does not say it")),
            (("--init", "random"), ("--clusters is missing", "--init random")),
            (("--clusters", "many"), ("--clusters", "many")),
            (("--clusters", 3, "--max-time", "soon"), ("--max-time", "'soon'", "like 55m")),
            (("--clusters", 3, "--persist", "maybe"), ("--persist", "maybe")),
            (
                ("--clusters", 3, "--spherical", "--preprocess", "scale"),
                ("--spherical", "leave --preprocess out"),
            ),
        ],
        ids=lambda value: " ".join(map(str, value)),
    )
    def test_usage(self, rejected, options, facts):
        rejected(*options, facts=facts, code=USAGE)

    def test_centers_of_another_shape(self, rejected, tmp_path, alone):
        np.save(tmp_path / "c.npy", np.ones((3, 7)))
        facts = ("(3, 7)", "3 clusters in 64 features need", "(3, 64)")
        rejected("--clusters", 3, "--init", tmp_path / "c.npy", facts=facts)
        rejected("--clusters", 3, "--init", alone[0], facts=("(5, 64)", "(3, 64)"))
        np.save(tmp_path / "flat.npy", np.ones(64))
        facts = ("flat.npy have the shape (64,)", "clusters x features")
        rejected("--init", tmp_path / "flat.npy", facts=facts)
        np.save(tmp_path / "nan.npy", np.full((3, 64), math.nan))
        rejected("--clusters", 3, "--init", tmp_path / "nan.npy", facts=("NaN", "finite"))
        np.save(tmp_path / "p.npy", np.array([{}]), allow_pickle=True)
        rejected("--clusters", 3, "--init", tmp_path / "p.npy", facts=("pickled", "never"))

    def test_weights(self, rejected, tmp_path):
        weights = np.ones(ROWS)
        weights[1234] = -2.0
        np.save(tmp_path / "w.npy", weights)
        facts = ("row 1234", "-2.0", "finite and >= 0")
        rejected("--clusters", 3, "--sample-weight", tmp_path / "w.npy", facts=facts)
        np.save(tmp_path / "s.npy", np.ones(7))
        facts = ("7 sample weights", "4000 rows")
        rejected("--clusters", 3, "--sample-weight", tmp_path / "s.npy", facts=facts)

    @pytest.mark.parametrize("init", ["scrlm", "k-means||"])
    def test_a_bad_row_is_named(self, rejected, store, rows, tmp_path, init):
        values = rows.copy()
        values[3333, 17] = np.nan
        path = store(tmp_path / "bad.zarr", values)
        options = ("--clusters", 3, "--init", init, "--block-rows", CHUNK_ROWS)
        rejected(*options, source=path, facts=("row 3333", "block 3", str(path), "clean or drop"))

    @pytest.mark.parametrize(
        "options",
        [
            ("--tol", 1e-4),  # even as it is without the option
            ("--inertia-tol", 0.1),
            ("--max-time", "5m"),
            ("--kmeans-sample", 0.5),
            ("--persist", "no"),
            ("--persist", "yes", "--kmeans-iter", 0),
        ],
        ids=lambda value: value[0],
    )
    def test_iterations_that_a_fit_does_not_have(self, rejected, options):
        facts = (f"{options[0]} without --kmeans-iter would do nothing", "leave it out")
        rejected(*options, command="fit", facts=facts, code=USAGE)

    def test_no_robust_without_iterations(self, rejected):
        facts = ("robust is False", "--kmeans-iter")
        rejected("--no-robust", command="fit", facts=facts)


@pytest.mark.slow
def test_a_run_that_cannot_fit_is_refused_before_a_cluster_is_started(scrlm, features, tmp_path):
    out = tmp_path / "run"
    size = ("--nworkers", 1, "--nthreads", 32, "--memory-limit", "450MB")
    done = scrlm("kmeans", features, "--clusters", CLUSTERS, "--out", out, *size)
    done.rejected("memory", "--memory-limit")
    assert "local cluster" not in done.stderr
    assert not out.exists()
