"""Outputs and results of synth, fit, evaluate, predict and theory."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest
import zarr

ROWS, FEATURES, CLUSTERS, CHUNK_ROWS = 4000, 64, 5, 1024


def test_synth_writes_features_and_true_labels(round_trip):
    group = zarr.open_group(round_trip.features, mode="r")
    assert group.attrs["complete"] is True
    assert group.attrs["mixture"]["n_clusters"] == CLUSTERS
    features, labels = group["features"], group["labels"]
    assert (features.shape, features.dtype, features.chunks) == (
        (ROWS, FEATURES),
        np.float32,
        (CHUNK_ROWS, FEATURES),
    )
    assert (labels.shape, labels.dtype, labels.chunks) == ((ROWS,), np.int32, (CHUNK_ROWS,))
    assert set(np.unique(labels[:])) == {-1, 0, 1, 2, 3, 4}
    assert np.mean(labels[:] == -1) == pytest.approx(0.3, abs=0.03)
    assert group["true_means"].shape == (CLUSTERS, FEATURES)
    assert group["true_sigmas"][:] == pytest.approx(np.linspace(1 / 16, 1 / 4, CLUSTERS))
    assert group["true_weights"][:].sum() == pytest.approx(0.7)
    # The rows of a cluster are distributed around its true mean with its sigma.
    last = features[:][labels[:] == 4] - group["true_means"][4]
    assert last.std() == pytest.approx(0.25, rel=0.02)


@pytest.mark.parametrize(("chunk_size", "chunk_rows"), [("300kB", 2048), ("64MB", 4000)])
def test_synth_is_bit_identical_for_any_chunk_size(
    invoke, tmp_path, rows, truth, chunk_size, chunk_rows
):
    out = tmp_path / "other.zarr"
    sizes = ("--rows", ROWS, "--features", FEATURES, "--clusters", CLUSTERS, "--outliers", 0.3)
    invoke("synth", out, *sizes, "--chunk-size", chunk_size).ok()
    group = zarr.open_group(out, mode="r")
    assert group["features"].chunks[0] == chunk_rows
    assert group["features"][:].tobytes() == rows.tobytes()
    assert group["labels"][:].tobytes() == truth.tobytes()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--rows", 999),
        ("--features", 9),
        ("--clusters", 3),
        ("--outliers", 0.1),
        ("--sigma-min", 0.2),
        ("--sigma-max", 0.5),
        ("--seed", 1),
    ],
)
def test_every_option_of_synth_changes_the_data(invoke, tmp_path, option, value):
    base = {"--rows": 1000, "--features": 8, "--clusters": 4}
    drawn = []
    for number, options in enumerate((base, {**base, option: value})):
        out = tmp_path / f"{number}.zarr"
        invoke("synth", out, *(x for pair in options.items() for x in pair)).ok()
        group = zarr.open_group(out, mode="r")
        drawn.append(group["features"][:].tobytes() + group["labels"][:].tobytes())
    assert drawn[0] != drawn[1]


def test_fit_writes_labels_chunked_like_the_features(round_trip):
    group = zarr.open_group(round_trip.run / "labels.zarr", mode="r")
    assert group.attrs["complete"] is True
    assert sorted(group.array_keys()) == ["distances", "labels", "margins"]
    for name, dtype in (("labels", np.int32), ("distances", np.float32), ("margins", np.float32)):
        array = group[name]
        assert (array.shape, array.dtype, array.chunks) == ((ROWS,), dtype, (CHUNK_ROWS,))
        assert array.nchunks_initialized == array.nchunks == 4


def test_blocks_contain_whole_chunks_by_default(invoke, features, tmp_path):
    """Four small chunks of 1024 rows form one block, so the labels have one chunk."""
    out = tmp_path / "run"
    invoke("fit", features, "--rho", 0.5, "--out", out).ok()
    assert zarr.open_array(out / "labels.zarr" / "labels", mode="r").chunks == (ROWS,)


def test_labels_distances_and_margins_match_their_definition(round_trip, rows):
    """Recompute them in float64 from the features and the files of the run directory."""
    model = zarr.open_group(round_trip.run / "model.zarr", mode="r")
    found = zarr.open_group(round_trip.run / "labels.zarr", mode="r")
    mapped, centers = (
        (values.astype(np.float64) - model["shift"][:]) * model["scale"][:]
        for values in (rows, model["centers"][:])
    )
    distances = np.linalg.norm(mapped[:, None] - centers[None], axis=2)
    nearest = distances.argmin(axis=1)
    first, second = np.sort(distances, axis=1)[:, :2].T
    expected = np.where(first < model.attrs["radius"], nearest, -1)
    np.testing.assert_array_equal(found["labels"][:], expected)
    np.testing.assert_allclose(found["distances"][:], first, rtol=1e-6)
    np.testing.assert_allclose(found["margins"][:], second - first, rtol=1e-4, atol=1e-5)


def test_fit_writes_a_complete_model(round_trip, rows, labels_of):
    group = zarr.open_group(round_trip.run / "model.zarr", mode="r")
    labels = labels_of(round_trip.run)
    assert group.attrs["complete"] is True
    assert group.attrs["radius"] == pytest.approx(0.5 * math.sqrt(FEATURES * 2.5))
    assert group.attrs["n_rows"] == ROWS
    centers, center_rows = group["centers"][:], group["center_rows"][:]
    assert centers.shape == (CLUSTERS, FEATURES)
    np.testing.assert_array_equal(centers, rows[center_rows])
    np.testing.assert_array_equal(labels[center_rows], np.arange(CLUSTERS))
    assert np.all(np.diff(group["losses"][:]) >= 0)  # in the order of extraction
    np.testing.assert_array_equal(group["counts"][:], np.bincount(labels[labels >= 0]))
    np.testing.assert_allclose(group["shift"][:], rows.mean(axis=0, dtype=float), rtol=1e-6)
    np.testing.assert_allclose(group["scale"][:], 1 / rows.std(axis=0, dtype=float), rtol=1e-6)
    for k in range(CLUSTERS):
        np.testing.assert_allclose(
            group["means"][k], rows[labels == k].mean(axis=0, dtype=float), atol=1e-6
        )


def test_run_json_records_settings_and_results(round_trip, record_of, labels_of):
    record = record_of(round_trip.run)
    assert record["status"] == "complete"
    config = {key: record["config"][key] for key in ("rho", "F", "n_clusters", "preprocess")}
    assert config == {"rho": 0.5, "F": 2.5, "n_clusters": 10, "preprocess": "standardize"}
    # The default is resolved: Corollary 7 with a = 0.8, delta = 0.01
    needed = math.floor(10 / 0.8 * (math.log(10) + math.log(400))) + 1
    assert record["config"]["n_candidates"] == needed
    assert record["config"]["loss_rows"] == ROWS
    assert record["features"]["path"] == str(round_trip.features)
    assert (record["features"]["rows"], record["features"]["features"]) == (ROWS, FEATURES)
    assert (record["features"]["blocks"], record["features"]["block_rows"]) == (4, CHUNK_ROWS)
    labels = labels_of(round_trip.run)
    assert record["counts"] == np.bincount(labels[labels >= 0]).tolist()
    assert record["outliers"] == np.sum(labels == -1)
    assert record["outlier_share"] == pytest.approx(np.mean(labels == -1))
    assert record["versions"]["scrlm-dask"]


def test_run_json_records_time_and_memory(round_trip, record_of):
    record = record_of(round_trip.run)
    phases = {phase["name"]: phase for phase in record["phases"]}
    assert list(phases) == ["survey", "loss", "extract", "assign"]
    for name in ("survey", "loss", "assign"):
        assert phases[name]["rows"] == ROWS
        assert phases[name]["bytes"] == ROWS * FEATURES * 4
        assert phases[name]["blocks"] == 4
    assert all(0 < phase["seconds"] <= record["seconds"] for phase in phases.values())
    assert sum(phase["seconds"] for phase in phases.values()) <= record["seconds"]
    # The range is plausible for a Python process with NumPy, Numba and Dask.
    assert all(50e6 < phase["peak_worker_bytes"] < 2e9 for phase in phases.values())
    for worker in record["workers"].values():
        assert 50e6 < worker["peak_memory_bytes"] < 2e9
        assert set(worker["threads"].values()) == {1}
        assert "numba" in worker["threads"]
        assert any(name.startswith("blas") for name in worker["threads"])


def test_evaluate_scores_an_easy_mixture(round_trip):
    found = round_trip.outcomes["evaluate"].json()
    assert found["accuracy"] == found["purity"] == 1.0
    assert found["ari"] == pytest.approx(1.0)
    assert found["outlier_precision"] == found["outlier_recall"] == 1.0
    assert (found["n_rows"], found["n_clusters"], found["n_classes"]) == (ROWS, CLUSTERS, CLUSTERS)
    assert found["largest_weight_error"] < 0.01
    assert found["largest_sigma_error"] < 0.05


def test_evaluate_output_of_predict(round_trip, invoke, tmp_path, truth):
    """The true labels are stored with the features or given by --truth."""
    whole = round_trip.outcomes["evaluate"].json()
    scores = {name: value for name, value in whole.items() if not name.endswith("_error")}
    assert invoke("evaluate", round_trip.predicted, "--json").json() == scores
    np.save(tmp_path / "y.npy", truth)
    given = ("--truth", tmp_path / "y.npy", "--json")
    assert invoke("evaluate", round_trip.predicted, *given).json() == scores
    assert invoke("evaluate", round_trip.run / "labels.zarr", *given).json() == scores
    assert invoke("evaluate", round_trip.run / "labels.zarr", "--json").json() == scores
    facts = (str(round_trip.features), "run.json", "scrlm predict")
    invoke("evaluate", round_trip.features).rejected(*facts)


def test_predict_reproduces_the_labels_of_the_fit(round_trip, files_of):
    fitted, predicted = files_of(round_trip.run / "labels.zarr"), files_of(round_trip.predicted)
    attributes = json.loads(predicted.pop("zarr.json"))["attributes"]
    assert attributes.pop("features") == str(round_trip.features)
    record = json.loads((round_trip.run / "run.json").read_text())
    assert attributes.pop("features_digest") == record["features"]["digest"]
    assert attributes.pop("features_shuffled") is record["features_shuffled"] is False
    assert attributes == json.loads(fitted.pop("zarr.json"))["attributes"]
    assert fitted == predicted
    result = round_trip.outcomes["predict"].json()
    outliers = round_trip.outcomes["fit"].json()["outliers"]
    assert (result["rows"], result["clusters"], result["outliers"]) == (ROWS, CLUSTERS, outliers)
    assert result["outlier_share"] == pytest.approx(outliers / ROWS)


def test_predict_accepts_a_model_and_new_rows(invoke, round_trip, store, tmp_path, rows, labels_of):
    some = store(tmp_path / "some.zarr", rows[::-1][:777])
    out = tmp_path / "out.zarr"
    invoke("predict", round_trip.run / "model.zarr", some, "--out", out, "--block-rows", 100).ok()
    np.testing.assert_array_equal(labels_of(out), labels_of(round_trip.run)[::-1][:777])
    assert zarr.open_array(out / "labels", mode="r").chunks == (100,)


@pytest.mark.parametrize("form", ["npy", "npy int64", "zarr array", "zarr group"])
def test_evaluate_accepts_the_truth_in_every_form(invoke, round_trip, store, tmp_path, truth, form):
    # 400 of 4000 labels are wrong, so the accuracy drops by a tenth.
    wrong = truth.copy()
    wrong[:400] = 7
    if form.startswith("npy"):
        path = tmp_path / "truth.npy"
        np.save(path, wrong.astype(np.int64 if "int64" in form else np.int32))
    elif form == "zarr array":
        path = store(tmp_path / "truth.zarr", wrong)
    else:
        path = tmp_path / "truth.zarr"
        zarr.create_group(path)
        store(path / "labels", wrong)
    found = invoke("evaluate", round_trip.run, "--truth", path, "--json").json()
    assert found["accuracy"] == pytest.approx(0.9)
    assert "largest_sigma_error" not in found  # requires the mixture in the features store


def test_evaluate_does_not_need_the_features_if_the_truth_is_given(
    invoke, my_run, tmp_path, truth, record_of
):
    record = (my_run / "run.json").read_text()
    path = record_of(my_run)["features"]["path"]
    (my_run / "run.json").write_text(record.replace(path, str(tmp_path / "gone.zarr")))
    np.save(tmp_path / "truth.npy", truth)
    found = invoke("evaluate", my_run, "--truth", tmp_path / "truth.npy", "--json").json()
    assert found["accuracy"] == 1.0


def test_theory_follows_the_paper(round_trip):
    found = round_trip.outcomes["theory"].json()
    N, p, m, a, delta = ROWS, 5000, 9, 0.8, 0.01
    n = math.floor(m / a * (math.log(m) + math.log(4 / delta))) + 1
    assert found["required_candidates"] == found["candidates"] == n
    assert found["required_rows"] == n + 1
    features = 128 * max(2 * math.log(N) + math.log(40 / delta), math.log(m) + math.log(8 / delta))
    assert found["required_features"] == math.floor(features) + 1
    failure = (
        10 * N**2 * math.exp(-p / 128)
        + m * math.exp(-n * a / m)
        + 2 * m * math.exp(-p / 128)
        + m * math.exp(-a * (N - 1) / m)
    )
    assert found["success_probability_at_least"] == pytest.approx(1 - failure)


@pytest.mark.parametrize(
    ("option", "value", "changed"),
    [
        ("--rows", 300, "success_probability_at_least"),
        ("--features", 4000, "success_probability_at_least"),
        ("--clusters", 8, "required_candidates"),
        ("--candidates", 40, "success_probability_at_least"),
        ("--min-weight", 0.5, "required_rows"),
        ("--delta", 0.1, "required_features"),
    ],
)
def test_every_option_of_theory_has_an_effect(invoke, option, value, changed):
    base = {"--rows": 4000, "--features": 5000, "--clusters": 9}
    one, other = (
        invoke("paper", "theory", *(x for pair in options.items() for x in pair), "--json").json()
        for options in (base, {**base, option: value})
    )
    assert one[changed] != other[changed]


@pytest.mark.parametrize(
    "form",
    ["inner array", "float64", "float16", "big-endian", "columns", "shards", "zarr 2", "zstd"],
)
def test_fit_accepts_features_in_many_forms(invoke, features, store, tmp_path, rows, truth, form):
    path = tmp_path / "features.zarr"
    match form:
        case "inner array":
            path = features / "features"
        case "float64" | "float16":
            store(path, rows.astype(form))
        case "big-endian":
            store(path, rows.astype(">f4"))
        case "columns":
            store(path, rows, chunks=(700, 11))
        case "shards":
            store(path, rows, chunks=(100, FEATURES), shards=(1000, FEATURES))
        case "zarr 2":
            store(path, rows, zarr_format=2, compressors=None)
        case "zstd":
            store(path, rows, compressors="auto")
    out = tmp_path / "run"
    blocks = ("--block-rows", 900)
    invoke("fit", path, "--rho", 0.5, "--out", out, "--candidates", 200, *blocks).ok()
    np.save(tmp_path / "truth.npy", truth)
    found = invoke("evaluate", out, "--truth", tmp_path / "truth.npy", "--json").json()
    assert found["accuracy"] == 1.0


def test_fit_without_clusters_is_a_valid_result(invoke, features, tmp_path, labels_of, record_of):
    run, out = tmp_path / "run", tmp_path / "labels.zarr"
    done = invoke("fit", features, "--rho", 0.5, "--out", run, "--rho", 1e-6, "--json")
    assert done.json()["clusters"] == 0
    assert re.search(r"^warning: (?=.*\b1e-06\b).*min_neighbors", done.stderr, re.MULTILINE)
    assert record_of(run)["outlier_share"] == 1.0
    assert np.all(labels_of(run) == -1)
    assert invoke("predict", run, features, "--out", out, "--json").json()["clusters"] == 0
    assert np.all(labels_of(out) == -1)
    found = invoke("evaluate", run, "--json").json()
    assert found["outlier_recall"] == 1.0
    assert found["largest_sigma_error"] is None  # JSON has no NaN
