"""Options of fit: each has an effect, and invalid values are rejected."""

from __future__ import annotations

import math

import numpy as np
import pytest
import zarr

ROWS, FEATURES, CLUSTERS, CHUNK_ROWS = 4000, 64, 5, 1024


class TestOptionsOfFit:
    """Every option has an effect."""

    @pytest.fixture
    def fit(self, invoke, features, tmp_path, record_of):
        def run(*options, name="run"):
            out = tmp_path / name
            invoke("fit", features, "--rho", 0.5, "--out", out, *options).ok()
            return zarr.open_group(out / "model.zarr", mode="r"), record_of(out)

        return run

    def test_rho(self, fit):
        model, record = fit("--rho", 0.1)
        assert record["config"]["rho"] == 0.1
        assert record["radius"] == pytest.approx(0.1 * math.sqrt(FEATURES * 2.5))
        assert record["outliers"] > 1500  # the widest clusters no longer fit into the radius
        assert model.attrs["rho"] == 0.1

    def test_clusters(self, fit):
        model, record = fit("--clusters", 2)
        assert record["clusters"] == model["centers"].shape[0] == len(record["counts"]) == 2

    def test_candidates(self, fit):
        model, record = fit("--candidates", 30)
        assert record["config"]["n_candidates"] == model.attrs["n_candidates"] == 30
        assert model["centers"].shape[0] <= 30

    def test_loss_rows(self, fit):
        model, _ = fit("--loss-rows", 500)
        whole, _ = fit(name="whole")
        assert model["neighbors"][:].sum() < whole["neighbors"][:].sum() / 4
        np.testing.assert_array_equal(np.sort(model["counts"][:]), np.sort(whole["counts"][:]))

    def test_min_neighbors(self, fit):
        whole, _ = fit(name="whole")
        most = int(whole["neighbors"][:].max())
        model, record = fit("--min-neighbors", most)
        assert record["clusters"] < CLUSTERS
        assert np.all(model["neighbors"][:] >= most)
        none, _ = fit("--min-neighbors", most + 1, name="none")
        assert none["centers"].shape == (0, FEATURES)

    def test_F(self, fit):  # noqa: N802 - the option's name
        model, record = fit("--F", 0.625)
        assert record["radius"] == pytest.approx(0.5 * math.sqrt(FEATURES * 0.625))
        assert model.attrs["F"] == 0.625

    @pytest.mark.parametrize("kind", ["standardize", "center", "scale", "none", "l2"])
    def test_preprocess(self, fit, rows, kind):
        model, record = fit("--preprocess", kind, "--candidates", 200)
        mean, deviation = rows.mean(axis=0, dtype=float), rows.std(axis=0, dtype=float)
        zero, one = np.zeros(FEATURES), np.ones(FEATURES)
        shift = mean if kind in ("standardize", "center") else zero
        scale = {
            "standardize": 1 / deviation,
            "scale": one / math.sqrt(np.mean(deviation**2)),
        }.get(kind, one)
        np.testing.assert_allclose(model["shift"][:], shift, rtol=1e-6)
        np.testing.assert_allclose(model["scale"][:], scale, rtol=1e-6)
        assert record["config"]["preprocess"] == model.attrs["preprocess"] == kind
        # Unit vectors are closer to each other than the radius, so l2 gives one cluster.
        assert record["clusters"] == (1 if kind == "l2" else CLUSTERS)

    def test_seed(self, fit):
        one, _ = fit("--candidates", 200, name="one")
        other, record = fit("--candidates", 200, "--seed", 5)
        assert record["config"]["seed"] == 5
        assert not np.array_equal(one["center_rows"][:], other["center_rows"][:])

    def test_block_rows_change_the_chunks_and_not_the_result(
        self, fit, tmp_path, round_trip, labels_of
    ):
        model, record = fit("--block-rows", 333, "--clusters", 10)
        assert record["features"]["blocks"] == 13
        assert zarr.open_array(tmp_path / "run/labels.zarr/labels", mode="r").chunks == (333,)
        np.testing.assert_array_equal(labels_of(tmp_path / "run"), labels_of(round_trip.run))
        whole = zarr.open_group(round_trip.run / "model.zarr", mode="r")
        np.testing.assert_array_equal(model["center_rows"][:], whole["center_rows"][:])

    def test_nthreads(self, invoke, features, tmp_path):
        done = invoke(
            "fit", features, "--rho", 0.5, "--out", tmp_path / "run", "--nthreads", 3
        ).ok()
        assert "3 threads" in done.stderr


def test_rho_is_a_number_or_auto(invoke, features, tmp_path):
    done = invoke("fit", features, "--out", tmp_path / "run", "--rho", "wide")
    done.rejected("--rho", "'wide'", "auto", code=2)


def test_usage(invoke, features, tmp_path):
    invoke("fit", features).rejected("--out", "--resume", code=2)
    invoke("fit", "--out", tmp_path / "run").rejected("FEATURES", "--resume", code=2)
    invoke("fit", features, "--resume", tmp_path / "run", "--rho", 1).rejected(
        "--resume", "--rho", "features", code=2
    )
    # A resumed run may use another cluster.
    elsewhere = ("--cluster", "local", "--require-tls", "--wait-workers", "9s")
    for options in ((), elsewhere):
        run = invoke("fit", "--resume", tmp_path / "run", *options)
        run.rejected(str(tmp_path / "run"), code=3)
    bad = ("--stall-timeout", "soon")
    invoke("fit", features, "--out", tmp_path / "run", *bad).rejected(*bad, "55m", code=2)
