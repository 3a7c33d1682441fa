"""Runs with and without pruning give the same clusters; the record contains the statistics."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from click.testing import CliRunner
from messages import expecting
from scrlm_cli.main import main

from scrlm_dask import SCRLM, KMeans
from scrlm_dask.config import FitConfig, KMeansConfig, LloydConfig
from scrlm_dask.errors import InputError
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.kmeans import kmeans
from scrlm_dask.pipeline.predict import predict
from scrlm_dask.pipeline.synth import synth

ROWS, FEATURES, CLUSTERS = 4000, 96, 80


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pruned") / "x.zarr"
    spec = MixtureSpec(FEATURES, CLUSTERS, 0.3, seed=2)
    synth(path, ROWS, spec, chunk_bytes=2000 * FEATURES * 4)
    return path


def test_pruning_does_not_change_a_fit(store: Path) -> None:
    def run(prune: Any) -> Any:
        config = FitConfig(
            rho=0.5, n_clusters=100, n_candidates=1500, refine=LloydConfig(3), prune=prune
        )
        return fit(store, config, collect_labels=True)

    dense, forced, chosen = run(0), run(20), run("auto")
    for other in (forced, chosen):
        np.testing.assert_array_equal(other.labels, dense.labels)
        np.testing.assert_array_equal(other.model.center_rows, dense.model.center_rows)
        np.testing.assert_array_equal(other.model.neighbors, dense.model.neighbors)
        np.testing.assert_allclose(other.model.losses, dense.model.losses, rtol=1e-5)
        np.testing.assert_allclose(other.model.centers, dense.model.centers, rtol=1e-6)
    passes = {"loss", "kmeans-step", "assign"}
    for result, subspaces in ((dense, {"dense"}), (forced, {"20 principal axes"})):
        record = result.record["pruning"]
        assert set(record) == passes
        assert {name for part in record.values() for name in part["blocks"]} == subspaces
        assert record["loss"]["pairs"] == ROWS * 1500
    assert dense.record["pruning"]["loss"]["dense_share"] == 1.0
    assert forced.record["pruning"]["loss"]["finished_share"] < 0.2
    assert chosen.record["pruning"]["loss"]["blocks"] != {"dense": 2}


def test_pruning_does_not_change_k_means(store: Path) -> None:
    def run(prune: Any) -> Any:
        lloyd = LloydConfig(max_iter=4, tol=0.0, inertia_tol=0.0)
        config = KMeansConfig(n_clusters=CLUSTERS, init="random", lloyd=lloyd, prune=prune)
        return kmeans(store, config, collect_labels=True)

    dense, forced = run(0), run(15)
    np.testing.assert_array_equal(forced.labels, dense.labels)
    np.testing.assert_allclose(forced.model.centers, dense.model.centers, rtol=1e-9, atol=1e-9)
    record = forced.record["pruning"]["kmeans-step"]
    blocks = forced.record["features"]["blocks"]
    assert record["blocks"] == {"15 principal axes": 4 * blocks}
    assert record["pairs"] == 4 * ROWS * CLUSTERS


def test_without_margins_labels_are_the_same(store: Path, tmp_path: Path) -> None:
    config = FitConfig(rho=0.5, n_clusters=100, n_candidates=1500)
    fitted = fit(store, config, out=tmp_path / "full")
    fit(
        store,
        FitConfig(rho=0.5, n_clusters=100, n_candidates=1500, margins=False),
        out=tmp_path / "short",
    )
    predict(fitted.model, store, out=tmp_path / "predicted", margins=False)
    expected = zarr.open_group(tmp_path / "full" / "labels.zarr", mode="r")
    assert set(expected) == {"labels", "distances", "margins"}
    outliers = expected["labels"][:] < 0
    assert 0 < outliers.sum() < ROWS
    for path in (tmp_path / "short" / "labels.zarr", tmp_path / "predicted"):
        found = zarr.open_group(path, mode="r")
        assert set(found) == {"labels", "distances"}
        np.testing.assert_array_equal(found["labels"][:], expected["labels"][:])
        distances = found["distances"][:]
        np.testing.assert_allclose(distances[~outliers], expected["distances"][:][~outliers])
        assert np.isnan(distances[outliers]).all()


def test_prune_of_estimators(store: Path) -> None:
    x = zarr.open_group(store, mode="r")["features"][:]
    scrlm = SCRLM(rho=0.5, n_clusters=100, n_candidates=1500, prune=12).fit(x)
    assert list(scrlm.record_["pruning"]["loss"]["blocks"]) == ["12 principal axes"]
    means = KMeans(CLUSTERS, init=x[:CLUSTERS], max_iter=2, prune=0).fit(x)
    assert list(means.record_["pruning"]["kmeans-step"]["blocks"]) == ["dense"]


def test_prune_on_the_command_line(store: Path, tmp_path: Path) -> None:
    common = ["--clusters", "100", "--nworkers", "0", "--prune", "9", "--no-margins"]
    done = CliRunner().invoke(
        main, ["fit", str(store), "--rho", "0.5", "--out", str(tmp_path / "a"), *common]
    )
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "a" / "run.json").read_text())
    assert list(record["pruning"]["assign"]["blocks"]) == ["9 principal axes"]
    assert (record["config"]["prune"], record["config"]["margins"]) == (9, False)
    done = CliRunner().invoke(
        main, ["kmeans", str(store), "--out", str(tmp_path / "b"), *common, "--prune", "many"]
    )
    assert done.exit_code == 2
    assert re.search(expecting("--prune", "'many'", "auto"), done.output)


@pytest.mark.parametrize("prune", [-1, "all", 2.5, True, None])
def test_prune_must_be_a_number_of_axes(prune: Any) -> None:
    for config in (FitConfig, KMeansConfig):
        with pytest.raises(InputError, match=expecting("prune", repr(prune), "auto")):
            config(prune=prune)
