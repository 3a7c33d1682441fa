"""Cuts: clusters of a run are merged along the tree to fewer clusters."""

from __future__ import annotations

import json
import shutil
import tracemalloc
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from by_hand import LABELS
from messages import expecting
from numpy.typing import NDArray
from sklearn.datasets import load_digits

import scrlm_dask
from scrlm_dask import SCRLM, FitConfig
from scrlm_dask.config import KMeansConfig, LloydConfig
from scrlm_dask.errors import InputError, StoreError, UnusableRowsError
from scrlm_dask.kernels.distances.points import prepare_points
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec, synth_block, true_mixture
from scrlm_dask.model import Model
from scrlm_dask.pipeline.cut import cut_model, cut_run


def spread(model: Model, k: int) -> float:
    """Return the increase of the squared distances to the means when merging to k clusters."""
    cut = cut_model(model, k)
    mapped = prepare_points(model.means, model.affine).mapped
    joined = prepare_points(cut.centers, model.affine).mapped[cut.groups]
    return float(model.counts @ np.square(mapped - joined).sum(axis=1))


def test_cuts_are_nested(merged: SCRLM) -> None:
    model = merged.model_
    before = np.arange(10)
    for k in (10, 7, 3, 1):
        cut = cut_model(model, k)
        assert cut.counts.sum() == model.n_rows
        assert len(np.unique(cut.groups)) == k
        # Clusters that were merged stay merged.
        pairs = set(zip(before.tolist(), cut.groups.tolist(), strict=True))
        assert len(pairs) == len(np.unique(before))
        before = cut.groups
    np.testing.assert_allclose(cut.centers[0], load_digits().data.mean(axis=0), atol=1e-6)


def test_cut_after_k_means_merges_the_refined_clusters(digits: np.ndarray) -> None:
    merging = {"n_clusters": 40, "extraction": "merge", "preprocess": "standardize"}
    before = SCRLM(**merging, refine=0).fit(digits).model_
    model = SCRLM(**merging, refine=10).fit(digits).model_
    assert before.tree is not None
    assert model.tree is None
    for k in (30, 20, 10):
        assert spread(model, k) < spread(replace(model, tree=before.tree), k)


def test_cut_uses_sample_weights(digits: np.ndarray) -> None:
    weights = np.random.default_rng(0).integers(0, 9, len(digits)) / 3.0
    config = KMeansConfig(6, "random", LloydConfig(max_iter=3))
    model = scrlm_dask.kmeans(digits, config, sample_weight=weights).model
    expected = np.average(digits, axis=0, weights=weights)
    np.testing.assert_allclose(cut_model(model, 1).centers[0], expected, atol=1e-6)


@pytest.fixture(scope="module")
def drawn() -> Any:
    spec = MixtureSpec(32, 6, 0.3)
    return synth_block(spec, true_mixture(spec), 0, 4000)


def test_cut_excludes_outliers(drawn: Any) -> None:
    found = scrlm_dask.fit(drawn.features, FitConfig(rho=0.4), collect_labels=True)
    expected = drawn.features[found.labels >= 0].mean(axis=0)
    np.testing.assert_allclose(cut_model(found.model, 1).centers[0], expected, atol=1e-5)


def test_tree_that_does_not_fit_into_memory_is_rejected(
    merged: SCRLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 10 clusters of 64 features, as means and centers of 8 bytes, in model units of 4 and 8 bytes,
    # and squared; this exceeds 8 bytes per pair of clusters
    need = (8 + 8 + 4 + 8 + 8) * 10 * 64
    monkeypatch.setattr("scrlm_dask.pipeline.cut.machine_memory", lambda: 2 * need - 1)
    cut_model(merged.model_, 3)
    with pytest.raises(InputError, match=expecting(10, "0.00 GB")):
        cut_model(replace(merged.model_, tree=None), 3)
    monkeypatch.setattr("scrlm_dask.pipeline.cut.machine_memory", lambda: 2 * need)
    cut_model(replace(merged.model_, tree=None), 3)


def wide_model(model: Model, n: int, p: int) -> Model:
    """Return a model of n random clusters with p features."""
    rows, ones = np.random.default_rng(0).normal(size=(n, p)), np.ones(n)
    return replace(
        model,
        centers=rows,
        means=rows.copy(),
        counts=np.ones(n, np.int64),
        weights=ones / n,
        sigmas=ones,
        affine=replace(model.affine, shift=np.zeros(p), scale=np.ones(p)),
        tree=None,
    )


@pytest.mark.parametrize("most_with_matrix", [0, 5000])
@pytest.mark.parametrize(("n", "p"), [(400, 1500), (1500, 200)])
def test_predicted_memory_includes_the_model(
    merged: SCRLM, monkeypatch: pytest.MonkeyPatch, most_with_matrix: int, n: int, p: int
) -> None:
    monkeypatch.setattr("scrlm_dask.kernels.scrlm.ward._MATRIX_LEAVES", most_with_matrix)
    cut_model(wide_model(merged.model_, 9, 2), 3)  # compiles or loads the kernels
    tracemalloc.start()
    try:
        cut_model(wide_model(merged.model_, n, p), 10, lambda event: None)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    model = wide_model(merged.model_, n, p)
    for memory, is_enough in ((2.3 * peak, True), (1.7 * peak, False)):  # half of it may be used
        monkeypatch.setattr("scrlm_dask.pipeline.cut.machine_memory", lambda m=memory: m)
        with nullcontext() if is_enough else pytest.raises(InputError):
            cut_model(model, 10, lambda event: None)


def test_long_time_for_a_tree_is_reported(merged: SCRLM, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[Any] = []
    without_tree = replace(merged.model_, tree=None)
    cut_model(without_tree, 3, reported.append)
    assert reported == []
    monkeypatch.setattr("scrlm_dask.pipeline.cut._MULTIPLICATIONS_PER_SECOND", 1.0)
    cut_model(without_tree, 3, reported.append)
    (note,) = reported
    assert note.warning
    assert "2 minute(s)" in note.text  # 1.5 * 10^2 multiplications


def test_labels_with_another_number_of_rows_are_rejected(drawn: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    scrlm_dask.fit(drawn.features, FitConfig(rho=0.4), out=run)
    metadata = run / "labels.zarr/labels/zarr.json"
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"shape": [0]}))
    with pytest.raises(StoreError, match=r"labels\.zarr.*\b0\b"):
        cut_run(run, 2, out=tmp_path / "labels.zarr")
    assert not (tmp_path / "labels.zarr").exists()


def test_cut_of_a_run_without_a_tree(drawn: Any, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "labels.zarr"
    found = scrlm_dask.fit(drawn.features, FitConfig(rho=0.4), out=run, collect_labels=True)
    cut = cut_run(run, 2, out=out)

    labels = zarr.open_group(out, mode="r")["labels"][:]
    assert np.array_equal(labels == -1, found.labels == -1)
    inside = found.labels >= 0
    assert np.array_equal(labels[inside], cut.groups[found.labels[inside]])
    with pytest.raises(InputError, match=expecting(7, 6)):
        cut_run(run, 7)


def test_by_hand(tmp_path: Path) -> None:
    # R = 1.58: clusters at 0 and 1, 4 and 5, 20 and 21; Ward merges the first two.
    x = np.array([[0.0], [1], [4], [5], [20], [21], [90]], np.float32)
    run, out = tmp_path / "run", tmp_path / "labels.zarr"
    scrlm_dask.fit(x, FitConfig(rho=1.0, preprocess="none"), out=run)
    cut = cut_run(run, 2, out=out)
    assert cut.groups.tolist() == [0, 0, 1]
    assert cut.centers.tolist() == [[2.5], [20.5]]
    assert cut.counts.tolist() == [4, 2]
    assert cut.n_outliers == 1
    assert zarr.open_array(out / "labels", mode="r")[:].tolist() == [0, 0, 0, 0, 1, 1, -1]
    whole = cut_run(run, 1)
    assert (whole.centers.tolist(), whole.counts.tolist()) == ([[8.5]], [6])
    for wrong in (0, 4):
        with pytest.raises(InputError, match=expecting(wrong, 3)):
            cut_run(run, wrong, out=tmp_path / "other.zarr")
    assert not (tmp_path / "other.zarr").exists()


def test_labels_are_not_overwritten_and_not_written_into_the_run(
    run_by_hand: Path, tmp_path: Path
) -> None:
    run, out = run_by_hand, tmp_path / "labels.zarr"
    cut_run(run, 1, out=out)
    with pytest.raises(StoreError, match=expecting(out)):
        cut_run(run, 2, out=out)
    assert zarr.open_array(out / "labels", mode="r")[:].tolist() == [0, 0, 0, 0, 0, -1]
    cut_run(run, 2, out=out, overwrite=True)
    assert zarr.open_array(out / "labels", mode="r")[:].tolist() == LABELS
    with pytest.raises((InputError, StoreError), match=expecting(run)):
        cut_run(run, 1, out=run / "coarse.zarr")


@pytest.fixture(scope="module")
def run(digits: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("levels") / "run"
    scrlm_dask.fit(digits, FitConfig(levels=True), out=out, block_rows=500)
    return out


class TestLevels:
    """Levels of a run whose number of clusters was chosen by modularity."""

    @staticmethod
    def labels(path: Path, name: str = "labels") -> NDArray[np.int32]:
        return np.asarray(zarr.open_group(path, mode="r")[name][:])

    def test_levels_are_nested(self, run: Path, tmp_path: Path) -> None:
        levels = scrlm_dask.Run(run).record["scan"]["levels"]
        default = self.labels(run / "labels.zarr")
        assert levels["coarse"] < default.max() + 1 == levels["clusters"] < levels["fine"]
        for level in ("coarse", "fine"):
            cut = cut_run(run, level=level, out=tmp_path / level)
            labels = self.labels(tmp_path / level)
            assert len(cut.counts) == labels.max() + 1 == levels[level]
            assert np.array_equal(cut.counts, np.bincount(labels))
            fewer, more = sorted((default, labels), key=np.max)
            assert len(np.unique(np.stack([fewer, more]), axis=1).T) == more.max() + 1

    def test_every_number_up_to_the_fine_level(self, run: Path, tmp_path: Path) -> None:
        fine = int(self.labels(run / "labels.zarr", "fine").max()) + 1
        finer = self.labels(run / "labels.zarr", "fine")
        for k in (fine, fine - 3, 12, 2):
            cut = cut_run(run, k, out=tmp_path / str(k))
            labels = self.labels(tmp_path / str(k))
            assert len(np.unique(labels)) == k
            pairs = np.unique(np.stack([labels, finer]), axis=1)
            assert pairs.shape[1] == finer.max() + 1  # each leaf is in one cluster
            assert (cut.parents is None) == (k <= scrlm_dask.Run(run).model.n_clusters)
        with pytest.raises(InputError, match=expecting(fine + 1, fine)):
            cut_run(run, fine + 1)

    def test_labels_store_contains_all_levels(self, run: Path, tmp_path: Path) -> None:
        for level in ("coarse", "fine"):
            cut_run(run, level=level, out=tmp_path / level)
        assert np.array_equal(
            self.labels(run / "labels.zarr", "coarse"), self.labels(tmp_path / "coarse")
        )
        finer = self.labels(run / "labels.zarr", "fine")
        assert len(np.unique(np.stack([finer, self.labels(tmp_path / "fine")]), axis=1).T) == (
            finer.max() + 1
        )

    def test_run_without_levels(self, run_by_hand: Path) -> None:
        with pytest.raises(InputError, match=expecting("'fine'", "--clusters")):
            cut_run(run_by_hand, level="fine")
        with pytest.raises(InputError, match=expecting("--clusters", "--level")):
            cut_run(run_by_hand)
        with pytest.raises(InputError, match=expecting("--clusters", "--level")):
            cut_run(run_by_hand, 1, level="fine")

    def test_estimator(self, digits: np.ndarray) -> None:
        found = SCRLM().fit(digits)
        levels = found.levels_
        assert levels.clusters == found.n_clusters_
        for level in ("coarse", "fine"):
            labels = found.labels_at(level=level)
            assert labels.max() + 1 == getattr(levels, level)
        assert np.array_equal(found.labels_at(found.n_clusters_), found.labels_)
        lazy = SCRLM().fit(da.from_array(digits, chunks=(600, -1)))
        coarse = lazy.labels_at(level="coarse")
        assert np.array_equal(coarse.compute(), found.labels_at(level="coarse"))
        with pytest.raises(InputError, match=expecting("Run", "cut")):
            lazy.labels_at(level="fine")

    def test_counts_of_empty_leaves(self, digits: np.ndarray, tmp_path: Path) -> None:
        out = tmp_path / "run"
        scrlm_dask.fit(digits, FitConfig(radius=20.0, preprocess="center"), out=out)
        fine = self.labels(out / "labels.zarr", "fine")
        cut = cut_run(out, level="fine")
        assert np.array_equal(cut.counts, np.bincount(fine[fine >= 0], minlength=len(cut.counts)))
        assert (cut.counts == 0).any()
        assert cut.counts.sum() + cut.n_outliers == len(digits)
        assert np.isfinite(cut.centers).all()

    def test_outliers_stay_outliers(self, digits: np.ndarray) -> None:
        found = SCRLM(outlier_share=0.05).fit(digits)
        outliers = found.labels_ == -1
        assert outliers.sum() == round(0.05 * len(digits))
        for level in ("coarse", "fine"):
            assert np.array_equal(found.labels_at(level=level) == -1, outliers)


@pytest.mark.parametrize("label", [-2, 2])
def test_labels_of_no_cluster_are_rejected(run_by_hand: Path, tmp_path: Path, label: int) -> None:
    run = shutil.copytree(run_by_hand, tmp_path / "run")
    zarr.open_array(run / "labels.zarr/labels", mode="r+")[3] = label
    with pytest.raises(StoreError, match=expecting(run / "labels.zarr/labels", 3, label)):
        cut_run(run, 1, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_labels_that_change_during_the_cut(
    run_by_hand: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(run_by_hand, tmp_path / "run")

    def write(*args: object) -> None:
        zarr.open_array(run / "labels.zarr/labels", mode="r+")[0] = 1

    monkeypatch.setattr("scrlm_dask.pipeline.cut.copy_joined", write)
    with pytest.raises(UnusableRowsError, match=f"{run}/labels.zarr"):
        cut_run(run, 1, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("out", ["taken", "run"])
def test_output_is_checked_before_the_tree_is_built(
    run_by_hand: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str
) -> None:
    run = shutil.copytree(run_by_hand, tmp_path / "run")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/thesis.txt").write_text("mine")

    def build(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("scrlm_dask.pipeline.cut.cut_model", build)
    with pytest.raises(StoreError, match=f"{tmp_path}/{out}"):
        cut_run(run, 1, out=tmp_path / out, overwrite=True)
