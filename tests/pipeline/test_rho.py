"""rho and the number of clusters chosen from the data: results, notes, records and errors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from backends import backend
from messages import expecting

import scrlm_dask
from scrlm_dask import SCRLM, FitConfig, ScrlmWarning, scan_rho
from scrlm_dask.choices import Preprocess
from scrlm_dask.config import LloydConfig
from scrlm_dask.errors import InputError, UnusableRowsError
from scrlm_dask.events import Note, PhaseFinished
from scrlm_dask.kernels.evaluation.metrics import contingency, scores
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec, synth_block, true_mixture
from scrlm_dask.kernels.scrlm.theory import PAPER_RHO
from scrlm_dask.pipeline.predict import predict
from scrlm_dask.storage.model_store import load_model


def mixture(p: int, m: int, outliers: float, rows: int = 4000, seed: int = 0):
    spec = MixtureSpec(p, m, outliers, seed=seed)
    return synth_block(spec, true_mixture(spec), 0, rows)


class TestClearScale:
    @pytest.mark.parametrize(("p", "m", "outliers"), [(32, 20, 0.0), (64, 3, 0.5), (128, 40, 0.2)])
    def test_without_parameters(self, p: int, m: int, outliers: float) -> None:
        drawn = mixture(p, m, outliers)
        found = SCRLM().fit(drawn.features)
        assert found.n_clusters_ == m
        assert scores(contingency(drawn.labels, found.labels_)).accuracy == 1.0
        scan = found.record_["scan"]
        assert scan["basis"] == "stretch"
        assert scan["low"] <= found.rho_ <= scan["high"]
        assert [(s["clusters"], s["ari"]) for s in scan["stability"]] == [(m, 1.0)] * 2
        assert scan["assumption_1"] is True
        assert 0.2 < scan["sigma_max"] < found.rho_

    def test_more_clusters_than_requested_are_merged(self) -> None:
        drawn = mixture(64, 12, 0.0)
        with pytest.warns(ScrlmWarning):  # every row is labelled
            found = SCRLM(n_clusters=4).fit(drawn.features)
        assert (found.n_clusters_, found.record_["scan"]["preprocess"]) == (4, "standardize")
        assert re.search(expecting(12, 4), found.record_["scan"]["why"])
        # Complete clusters are merged; none is split.
        assert scores(contingency(found.labels_, drawn.labels)).purity == 1.0

    @pytest.mark.parametrize("n_clusters", [None, 10])
    def test_copies_of_a_few_rows(self, n_clusters: int | None) -> None:
        points = np.random.default_rng(0).normal(size=(10, 8))
        found = SCRLM(n_clusters=n_clusters).fit(np.repeat(points, 50, axis=0))
        assert found.n_clusters_ == 10
        assert (np.bincount(found.labels_) == 50).all()

    def test_n_clusters_is_an_upper_bound(self) -> None:
        assert SCRLM(n_clusters=30).fit(mixture(64, 12, 0.2).features).n_clusters_ == 12

    def test_number_of_candidates_is_increased(self) -> None:
        drawn = mixture(48, 110, 0.5, rows=9000)
        notes: list[str] = []
        found = scrlm_dask.fit(
            drawn.features,
            FitConfig(),
            collect_labels=True,
            listener=lambda event: notes.append(getattr(event, "text", "")),
        )
        assert found.model.n_candidates > 2048
        facts = (2048, found.model.n_candidates)
        assert any(re.search(expecting(*facts), note) for note in notes)
        assert scores(contingency(drawn.labels, found.labels)).accuracy == 1.0

    def test_many_clusters_are_extracted_from_all_rows(self) -> None:
        drawn = mixture(32, 350, 0.3, rows=12_000)
        found = SCRLM().fit(drawn.features)
        assert found.model_.config.extraction == "greedy"
        assert found.model_.n_candidates > 4096
        assert found.n_clusters_ == 350

    def test_given_number_of_candidates_is_not_increased(self) -> None:
        drawn = mixture(48, 60, 0.3, rows=6000)
        notes: list[str] = []
        found = scrlm_dask.fit(
            drawn.features,
            FitConfig(n_candidates=400),
            listener=lambda event: notes.append(getattr(event, "text", "")),
        )
        names = [phase["name"] for phase in found.record["phases"]]
        assert names == ["survey", "scan", "assign"]
        assert found.model.n_candidates == 400
        assert any(re.search(expecting(400, "n_candidates"), note) for note in notes)

    def test_greedy_extraction_on_request(self) -> None:
        drawn = mixture(64, 10, 0.3)
        found = SCRLM(extraction="greedy").fit(drawn.features)
        assert [phase["name"] for phase in found.record_["phases"]] == [
            *("survey", "scan", "survey", "loss", "extract", "assign")
        ]
        again = SCRLM(rho=found.rho_, n_candidates=found.model_.n_candidates).fit(drawn.features)
        assert np.array_equal(found.labels_, again.labels_)


class TestRequestedNumber:
    def test_centers_are_merged_and_all_rows_labelled(self, merged: SCRLM) -> None:
        assert merged.n_clusters_ == 10
        assert (merged.labels_ >= 0).all()
        scan = merged.record_["scan"]
        assert (scan["basis"], scan["extraction"]) == ("held-out", "merge")
        judged = [trial["held_out"] for trial in scan["rungs"] if trial["held_out"] is not None]
        assert len(judged) >= 4
        best = min(scan["rungs"], key=lambda trial: trial["held_out"] or np.inf)
        assert best["rho"] == merged.rho_
        assert merged.model_.tree.n_leaves > 10
        json.dumps(merged.record_, allow_nan=False)

    def test_warning_about_merged_outliers(self) -> None:
        rng = np.random.default_rng(0)
        means = rng.normal(size=(6, 64))
        inside = means[rng.integers(0, 6, 2400)] + 0.1 * rng.normal(size=(2400, 64))
        x = np.concatenate([inside, rng.normal(size=(600, 64))]).astype(np.float32)
        assert (SCRLM().fit(x).labels_ == -1).sum() == 600
        with pytest.warns(ScrlmWarning, match=expecting(6, "20%", 4)) as caught:
            merged = SCRLM(n_clusters=4).fit(x)
        assert (merged.labels_ >= 0).all()
        rho = float(re.search(r"--rho ([\d.]+)", str(caught[0].message))[1])
        assert caught[0].filename == __file__  # not a line of the package
        best = SCRLM(rho=rho, n_clusters=4, n_candidates=500).fit(x)
        assert best.n_clusters_ == 4
        assert (best.labels_[2400:] == -1).all()

    def test_merging_gives_a_lower_inertia_than_greedy_extraction(
        self, digits, merged: SCRLM
    ) -> None:
        given = {"rho": merged.rho_, "n_clusters": 10}
        greedy = SCRLM(**given, refine=1, robust=False).fit(digits)
        assert merged.inertia_ < greedy.inertia_

    def test_no_warning_about_candidates_when_merging(self, digits: np.ndarray) -> None:
        """Without merging, 600 candidates would be few for 200 clusters."""
        few = FitConfig(n_clusters=200, n_candidates=600)
        notes: list[str] = []
        found = scrlm_dask.fit(
            digits, few, listener=lambda event: notes.append(getattr(event, "text", ""))
        )
        assert found.model.n_clusters == 200
        assert not any("--candidates" in note for note in notes)

    @pytest.mark.slow
    def test_warning_about_prune_without_effect(self, digits: np.ndarray, tmp_path: Path) -> None:
        def notes_with(out: Path | None, **config: Any) -> list[str]:
            notes: list[str] = []
            scrlm_dask.fit(
                digits,
                FitConfig(n_clusters=10, **{"refine": 0, **config}),
                out=out,
                overwrite=True,
                listener=lambda event: notes.append(getattr(event, "text", "")),
            )
            return [note for note in notes if "--prune" in note]

        out = tmp_path / "run"
        assert len(notes_with(out, prune=3)) == 1
        assert not notes_with(out)
        assert not notes_with(None, prune=3)  # without a store there are no margins
        for other in ({"margins": False}, {"refine": 1}, {"extraction": "greedy"}, {"rho": 0.5}):
            assert not notes_with(out, prune=3, **other)

    def test_robust_keeps_outliers(self, digits: np.ndarray) -> None:
        found = SCRLM(n_clusters=10, robust=True).fit(digits)
        assert (found.labels_ == -1).any()

    def test_residual_with_a_given_rho(self, digits: np.ndarray) -> None:
        found = SCRLM(n_clusters=10, rho=0.6, extraction="residual").fit(digits)
        greedy = SCRLM(n_clusters=10, rho=0.6).fit(digits)
        assert (found.rho_, found.n_clusters_) == (0.6, 10)
        assert found.model_.n_outliers < greedy.model_.n_outliers
        assert "loss" not in [phase["name"] for phase in found.record_["phases"]]

    def test_merge_gives_the_requested_number(self) -> None:
        """The data has fewer clear clusters."""
        drawn = mixture(64, 3, 0.0)
        assert SCRLM(n_clusters=10).fit(drawn.features).n_clusters_ == 3
        found = SCRLM(n_clusters=10, extraction="merge").fit(drawn.features)
        assert found.n_clusters_ == 10
        assert (found.labels_ >= 0).all()
        assert re.search(expecting(3, 10), found.record_["scan"]["why"])
        # Each cluster is a part of one true cluster.
        assert scores(contingency(drawn.labels, found.labels_)).purity == 1.0

    def test_merge_requires_a_number(self) -> None:
        with pytest.raises(InputError, match=expecting("'merge'", "n_clusters", "--clusters")):
            FitConfig(extraction="merge")
        with pytest.raises(InputError, match=expecting("extraction", "'best'", "merge")):
            FitConfig(extraction="best")  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:clusters were merged")
class TestFewerThanRequested:
    """A warning contains the requested and the actual number of clusters and a remedy."""

    def test_too_few_candidates(self, digits: np.ndarray) -> None:
        with pytest.warns(ScrlmWarning, match=expecting(350, 300)) as caught:
            found = SCRLM(n_clusters=350, n_candidates=300).fit(digits)
        assert 100 < found.n_clusters_ <= 300
        assert (found.labels_ >= 0).all()
        ways = ("--candidates 1797", "--rho", "scrlm kmeans --clusters 350")
        assert re.search(expecting(found.n_clusters_, *ways), str(caught[0].message))
        assert re.search(expecting(350), found.record_["scan"]["why"])
        with pytest.warns(ScrlmWarning):  # every row is labelled
            assert SCRLM(n_clusters=350).fit(digits).n_clusters_ == 350

    def test_too_few_rows(self, digits: np.ndarray) -> None:
        with pytest.warns(ScrlmWarning, match=expecting(1700)) as caught:
            found = SCRLM(n_clusters=1700).fit(digits)
        assert 100 < found.n_clusters_ < 1700
        assert re.search(expecting(found.n_clusters_), str(caught[0].message))
        assert "--candidates" not in str(caught[0].message)  # every row is a candidate

    def test_given_rho_is_not_suggested_again(self, digits: np.ndarray) -> None:
        with pytest.warns(ScrlmWarning, match=expecting(200)) as caught:
            found = SCRLM(n_clusters=200, rho=0.9, extraction="merge").fit(digits)
        assert found.n_clusters_ < 200
        assert re.search(expecting("rho", 0.9, "scrlm kmeans"), str(caught[0].message))
        assert "--rho" not in str(caught[0].message)

    def test_fewer_than_the_maximum(self) -> None:
        drawn, notes = mixture(64, 12, 0.2), []
        for rho in ("auto", 0.4):
            scrlm_dask.fit(
                drawn.features,
                FitConfig(rho=rho, n_clusters=30),
                listener=lambda event: notes.append(getattr(event, "text", "")),
            )
        assert sum(bool(re.search(expecting(12, 30), note)) for note in notes) == 2


class TestUnusualData:
    @pytest.mark.parametrize("n_clusters", [None, 2])
    def test_equal_rows(self, n_clusters: int | None) -> None:
        with pytest.warns(ScrlmWarning, match=expecting("rho", PAPER_RHO)):
            found = SCRLM(n_clusters=n_clusters).fit(np.full((50, 4), 3.0))
        assert found.n_clusters_ == 1
        assert (found.labels_ == 0).all()

    def test_two_rows(self) -> None:
        with pytest.warns(ScrlmWarning):
            found = SCRLM().fit(np.array([[0.0, 1.0], [2.0, 5.0]]))
        assert found.n_clusters_ in (0, 1)

    def test_two_distinct_rows(self) -> None:
        rows = np.repeat([[0.0, 0.0, 1.0], [4.0, 1.0, 0.0]], 40, axis=0)
        found = SCRLM().fit(rows)  # a clear scale, so no warning
        assert found.n_clusters_ == 2
        assert len(set(found.labels_[:40])) == len(set(found.labels_[40:])) == 1

    def test_warning_about_noise(self) -> None:
        rows = np.random.default_rng(0).normal(size=(1500, 30))
        with pytest.warns(ScrlmWarning, match=expecting("--clusters")):
            found = SCRLM().fit(rows)
        scan = found.record_["scan"]
        assert (scan["basis"], scan["levels"]["structure"]) == ("modularity", "none")
        assert found.levels_.gap < 0.1
        with pytest.warns(ScrlmWarning, match=expecting("rho", "--clusters")) as caught:
            found = SCRLM(extraction="residual").fit(rows)
        assert found.record_["scan"]["basis"] == "persistent"
        assert f"{found.rho_:.4g}" in str(caught[0].message)

    def test_one_tight_cluster_among_outliers(self) -> None:
        rng = np.random.default_rng(0)
        rows = np.concatenate([0.05 * rng.normal(size=(700, 40)), rng.normal(size=(300, 40))])
        found = SCRLM().fit(rows)
        assert found.n_clusters_ == 1
        assert np.array_equal(found.labels_ == 0, np.arange(1000) < 700)

    def test_features_of_very_different_scales(self) -> None:
        drawn = mixture(64, 8, 0.2)
        found = SCRLM().fit(drawn.features * np.geomspace(1e-3, 1e3, 64))
        assert scores(contingency(drawn.labels, found.labels_)).accuracy == 1.0

    def test_small_clusters_at_large_distances(self) -> None:
        """Products in float32 cannot distinguish the rows of a cluster."""
        rng = np.random.default_rng(0)
        centers = rng.normal(size=(6, 20))
        truth = rng.integers(0, 6, 900)
        rows = 100.0 + centers[truth] + 1e-4 * rng.normal(size=(900, 20))
        found = SCRLM().fit(rows)
        assert found.n_clusters_ == 6
        assert scores(contingency(truth, found.labels_)).accuracy == 1.0


class TestModularity:
    """Data without a clear scale and without a number of clusters."""

    def test_number_of_clusters(self, digits: np.ndarray) -> None:
        found = SCRLM().fit(digits)
        scan = found.record_["scan"]
        assert (scan["basis"], scan["extraction"]) == ("modularity", "merge")
        levels = scan["levels"]
        assert 10 <= levels["low"] <= found.n_clusters_ <= levels["high"] <= 30
        assert levels["structure"] == "clear"
        assert (found.labels_ >= 0).all()
        assert found.n_iter_ > 0
        json.dumps(found.record_, allow_nan=False)
        again = SCRLM().fit(digits)
        assert np.array_equal(found.labels_, again.labels_)
        assert found.record_["scan"] == again.record_["scan"]

    def test_preprocessing_is_chosen(self, digits: np.ndarray) -> None:
        scan = scan_rho(digits)
        assert {trial.preprocess for trial in scan.representations} == {
            *("standardize", "l2", "center")
        }
        assert scan.preprocess in ("l2", "center")
        given = scan_rho(digits, preprocess="standardize")
        assert (given.preprocess, given.representations) == ("standardize", ())

    def test_rows_of_unit_length(self, digits: np.ndarray) -> None:
        unit = digits / np.linalg.norm(digits, axis=1, keepdims=True)
        found = SCRLM().fit(unit.astype(np.float16))
        assert found.model_.affine.kind == "l2"
        assert found.record_["scan"]["representations"] == []

    def test_iterations_can_be_omitted(self, digits: np.ndarray) -> None:
        found = SCRLM(refine=0).fit(digits)
        assert found.n_iter_ == 0
        assert [phase["name"] for phase in found.record_["phases"]] == ["survey", "scan", "assign"]
        assert found.levels_.clusters == found.n_clusters_

    def test_few_rows(self) -> None:
        rows = np.random.default_rng(0).normal(size=(31, 5))
        with pytest.warns(ScrlmWarning):
            found = SCRLM().fit(rows)
        assert found.record_["scan"]["basis"] == "persistent"


@pytest.fixture(scope="module")
def rows(digits: np.ndarray) -> np.ndarray:
    """Return digits of unit length, and rows of random directions at the end."""
    noise = np.random.default_rng(0).normal(size=(40, 64))
    rows = np.concatenate([digits, noise])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


class TestOutliers:
    """Rows of random directions among digits of unit length."""

    @pytest.mark.parametrize("n_clusters", [None, 10])
    @pytest.mark.filterwarnings("ignore::scrlm_dask.ScrlmWarning")
    def test_share(self, rows: np.ndarray, n_clusters: int | None) -> None:
        assert (SCRLM(n_clusters).fit(rows).labels_ >= 0).all()
        found = SCRLM(n_clusters, outlier_share=0.03).fit(rows)
        outliers = found.labels_ == -1
        assert outliers.sum() == round(0.03 * len(rows))
        assert outliers[-40:].mean() > 0.95
        assert found.radius_ == found.record_["radius"] == found.record_["config"]["radius"]
        assert np.array_equal(found.predict(rows), found.labels_)

    @pytest.mark.parametrize("options", [{"outlier_share": "auto"}, {"robust": True}])
    @pytest.mark.parametrize("n_clusters", [None, 10])
    def test_radius_of_the_null(
        self, rows: np.ndarray, n_clusters: int | None, options: dict[str, Any]
    ) -> None:
        found = SCRLM(n_clusters, **options).fit(rows)
        assert found.radius_ == pytest.approx(found.record_["scan"]["null"]["radius"])
        outliers = found.labels_ == -1
        assert outliers[-40:].mean() > 0.95
        assert outliers[:-40].mean() < 0.25

    def test_share_with_a_given_rho(self, rows: np.ndarray) -> None:
        found = SCRLM(rho=0.5, outlier_share=0.1).fit(rows)
        assert (found.labels_ == -1).sum() == round(0.1 * len(rows))
        assert found.rho_ == 0.5

    def test_auto_keeps_a_clear_scale(self) -> None:
        drawn = mixture(32, 5, 0.3)
        plain, auto = (SCRLM(outlier_share=share).fit(drawn.features) for share in (None, "auto"))
        assert np.array_equal(plain.labels_, auto.labels_)
        assert (auto.labels_ == -1).any()

    def test_share_with_robust_kmeans(self, rows: np.ndarray) -> None:
        found = SCRLM(n_clusters=10, robust=True, outlier_share=0.05).fit(rows)
        assert (found.labels_ == -1).sum() == round(0.05 * len(rows))
        assert found.n_iter_ > 0

    def test_auto_with_merged_centers_at_a_given_rho(self, rows: np.ndarray) -> None:
        merging = {"rho": 0.05, "n_clusters": 10, "extraction": "merge"}
        found = SCRLM(**merging, outlier_share="auto", preprocess="l2").fit(rows)
        assert found.radius_ == found.record_["scan"]["null"]["radius"]
        assert (found.labels_[-40:] == -1).mean() > 0.95

    def test_all_equal_rows_can_be_assigned(self) -> None:
        with pytest.warns(ScrlmWarning):  # no scale
            found = SCRLM(robust=False).fit(np.zeros((100, 20)))
        assert (found.labels_ == 0).all()

    def test_share_of_equal_rows(self) -> None:
        with pytest.warns(ScrlmWarning):  # no scale
            found = SCRLM(outlier_share=0.1).fit(np.full((50, 4), 3.0))
        assert (found.labels_ == 0).all()

    def test_all_rows_can_be_assigned(self) -> None:
        drawn = mixture(32, 5, 0.3)
        found = SCRLM(robust=False).fit(drawn.features)
        assert (found.n_clusters_, found.n_iter_ > 0) == (5, True)
        assert (found.labels_ >= 0).all()

    def test_given_radius(self, rows: np.ndarray) -> None:
        found = SCRLM(radius=0.5).fit(rows)
        assert found.radius_ == 0.5
        assert 0 < (found.labels_ == -1).sum() < len(rows)

    def test_warning_that_every_row_is_labelled(self, rows: np.ndarray) -> None:
        with pytest.warns(ScrlmWarning, match=expecting("--outliers auto", "outlier_share")):
            SCRLM(n_clusters=10).fit(rows)
        SCRLM(n_clusters=10, outlier_share=0.1).fit(rows)  # no warning


class TestSameBits:
    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore::scrlm_dask.ScrlmWarning")
    @pytest.mark.parametrize("n_clusters", [None, 4])
    @pytest.mark.parametrize("preprocess", ["none", "standardize"])
    def test_result_does_not_depend_on_workers_and_chunks(
        self, preprocess: Preprocess, n_clusters: int | None
    ) -> None:
        drawn = mixture(32, 6, 0.3, rows=3000)
        # centers of k-means depend on the chunks in their last bits
        config = FitConfig(preprocess=preprocess, n_clusters=n_clusters, refine=0)
        fits = []
        for name, block_rows in (("one thread", 3000), ("two workers of two threads", 700)):
            with backend(name):
                fits.append(
                    scrlm_dask.fit(
                        drawn.features, config, collect_labels=True, block_rows=block_rows
                    )
                )
        a, b = fits
        assert a.model.centers.tobytes() == b.model.centers.tobytes()
        assert np.array_equal(a.labels, b.labels)
        one, many = ([dict(trial) for trial in fit.record["scan"]["rungs"]] for fit in fits)
        if preprocess == "standardize":  # deviations agree to 15 digits
            held_out = [
                [trial.pop("held_out") or 0.0 for trial in trials] for trials in (one, many)
            ]
            np.testing.assert_allclose(held_out[0], held_out[1], rtol=1e-13)
        assert one == many


class TestModel:
    def test_model_contains_rho_and_tree(self, digits, merged: SCRLM, tmp_path: Path) -> None:
        out = tmp_path / "run"
        config = FitConfig(n_clusters=10, preprocess="standardize", refine=0)
        with pytest.warns(ScrlmWarning):  # every row is labelled
            scrlm_dask.fit(digits, config, out=out)
        model = load_model(out)
        assert model.config.rho == merged.rho_
        assert (model.config.extraction, model.config.robust) == ("merge", False)
        for name in ("leaves", "weights", "merges", "costs"):
            assert np.array_equal(getattr(model.tree, name), getattr(merged.model_.tree, name))
        found = predict(model, digits, collect_labels=True)
        assert np.array_equal(found.labels, merged.labels_)

    def test_tree_is_kept_without_iterations_of_k_means(self, digits: np.ndarray) -> None:
        no_time = LloydConfig(max_iter=10, max_seconds=1e-9)
        found = SCRLM(n_clusters=10, extraction="merge", refine=no_time).fit(digits)
        assert found.model_.tree is not None


class TestScan:
    def test_scan_reads_some_blocks(self) -> None:
        drawn = mixture(16, 4, 0.0, rows=60_000)
        found = scan_rho(drawn.features, block_rows=1000)
        assert found.n_clusters == 4
        assert found.record["blocks"] == 25  # twice the rows of the sample
        assert found.record["sampled_rows"] == 8192 + 4096
        assert found.choice.clear

    def test_plot(self, digits: np.ndarray, tmp_path: Path) -> None:
        found = scan_rho(digits, n_clusters=10, listener=lambda event: None)
        found.plot(tmp_path / "rho.png")
        assert (tmp_path / "rho.png").read_bytes()[:4] == b"\x89PNG"
        figure = found.plot()
        assert len(figure.axes) == 4
        assert figure._repr_png_().startswith(b"\x89PNG")  # for notebooks

    def test_note_about_too_many_clusters_for_a_sample(self) -> None:
        notes: list[str] = []
        drawn = mixture(32, 350, 0.3, rows=12_000)
        found = scan_rho(
            drawn.features, listener=lambda event: notes.append(getattr(event, "text", ""))
        )
        facts = (found.n_clusters, found.record["needed_candidates"], found.record["candidates"])
        assert facts[1] > facts[2]
        assert any(re.search(expecting(*facts), note) for note in notes)

    def test_equal_rows_are_rejected(self) -> None:
        with pytest.raises(InputError, match=expecting(30)):
            scan_rho(np.ones((30, 3)))


def test_two_rows_and_two_clusters() -> None:
    with pytest.warns(ScrlmWarning):
        assert SCRLM(n_clusters=2).fit(np.array([[0.0, 0.0], [1.0, 1.0]])).n_clusters_ == 0


def test_merging_equal_rows() -> None:
    config = FitConfig(n_clusters=2, extraction="merge", robust=False)
    with pytest.warns(ScrlmWarning, match=expecting("rho", PAPER_RHO)):
        found = scrlm_dask.fit(np.ones((30, 3)), config, collect_labels=True)
    assert found.model.config.robust is True
    assert (found.model.n_clusters, set(found.labels.tolist())) == (1, {0})


def test_rows_of_zeros_do_not_change_the_preprocessing_of_unit_rows() -> None:
    rows = mixture(16, 3, 0.0, rows=400).features
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[::20] = 0.0
    events: list[Any] = []
    found = scrlm_dask.fit(rows, listener=events.append)
    assert found.model.affine.kind == "l2"
    assert scan_rho(rows, listener=events.append).preprocess == "l2"
    warnings = [event.text for event in events if isinstance(event, Note) and event.warning]
    facts = expecting("20 of 400", "--zeros drop")
    assert len([text for text in warnings if re.search(facts, text)]) == 2


@pytest.mark.parametrize("preprocess", ["l2", "standardize"])
def test_rows_of_zeros_in_the_sample_are_reported(preprocess: Preprocess) -> None:
    rows = mixture(16, 3, 0.0, rows=400).features
    rows[::20] = 0.0
    notes: list[str] = []
    scan_rho(rows, preprocess=preprocess, listener=lambda event: notes.append(str(event)))
    found = [note for note in notes if re.search(expecting(20, 400, "zeros"), note)]
    assert len(found) == (preprocess == "l2")


def test_features_that_change_during_the_scan(tmp_path: Path) -> None:
    store = tmp_path / "x.zarr"
    scrlm_dask.FeatureStore.write(mixture(16, 3, 0.0, rows=400).features, store)

    def change(event: object) -> None:
        if isinstance(event, PhaseFinished):
            zarr.open_array(store / "features", mode="r+")[0] = 1.0

    with pytest.raises(UnusableRowsError, match=str(store)):
        scan_rho(store, listener=change)
