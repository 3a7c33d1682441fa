"""rho and the number of clusters from the data: what is found, said, kept and refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backends import backend

import scrlm_dask
from scrlm_dask import SCRLM, FitConfig, InputError, ScrlmWarning, scan_rho
from scrlm_dask.choices import Preprocess
from scrlm_dask.config import LloydConfig
from scrlm_dask.kernels.evaluation.metrics import contingency, scores
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec, synth_block, true_mixture


def mixture(p: int, m: int, outliers: float, rows: int = 4000, seed: int = 0):
    spec = MixtureSpec(p, m, outliers, seed=seed)
    return synth_block(spec, true_mixture(spec), 0, rows)


class TestClearScale:
    @pytest.mark.parametrize(("p", "m", "outliers"), [(32, 20, 0.0), (64, 3, 0.5), (128, 40, 0.2)])
    def test_no_parameter_at_all(self, p: int, m: int, outliers: float) -> None:
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

    def test_more_clusters_than_were_asked_for_are_merged(self) -> None:
        drawn = mixture(64, 12, 0.0)
        found = SCRLM(n_clusters=4).fit(drawn.features)
        assert found.n_clusters_ == 4
        assert "12 clear clusters" in found.record_["scan"]["why"]
        # whole clusters are joined, none is torn apart
        assert scores(contingency(found.labels_, drawn.labels)).purity == 1.0

    @pytest.mark.parametrize("asked", [None, 10])
    def test_rows_that_are_all_copies_of_a_few(self, asked: int | None) -> None:
        points = np.random.default_rng(0).normal(size=(10, 8))
        found = SCRLM(n_clusters=asked).fit(np.repeat(points, 50, axis=0))
        assert found.n_clusters_ == 10
        assert (np.bincount(found.labels_) == 50).all()

    def test_at_most_so_many_is_no_request(self) -> None:
        assert SCRLM(n_clusters=30).fit(mixture(64, 12, 0.2).features).n_clusters_ == 12

    def test_too_few_candidates_are_made_more(self) -> None:
        drawn = mixture(48, 110, 0.5, rows=9000)
        notes: list[str] = []
        found = scrlm_dask.fit(
            drawn.features,
            FitConfig(),
            collect_labels=True,
            listener=lambda event: notes.append(getattr(event, "text", "")),
        )
        assert any("2048 candidates are too few" in note for note in notes)
        assert found.model.n_candidates > 2048
        assert scores(contingency(drawn.labels, found.labels)).accuracy == 1.0

    def test_more_than_a_sample_can_hold_are_judged_on_all_rows(self) -> None:
        drawn = mixture(32, 350, 0.3, rows=12_000)
        found = SCRLM().fit(drawn.features)
        assert found.model_.config.extraction == "greedy"
        assert found.model_.n_candidates > 4096
        assert found.n_clusters_ == 350

    def test_candidates_that_were_asked_for_are_not_judged_again(self) -> None:
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
        assert any("and 400 were given" in note for note in notes)

    def test_the_paper_extracts_greedily_if_asked(self) -> None:
        drawn = mixture(64, 10, 0.3)
        found = SCRLM(extraction="greedy").fit(drawn.features)
        assert [phase["name"] for phase in found.record_["phases"]] == [
            *("survey", "scan", "survey", "loss", "extract", "assign")
        ]
        again = SCRLM(rho=found.rho_, n_candidates=found.model_.n_candidates).fit(drawn.features)
        assert np.array_equal(found.labels_, again.labels_)


class TestNumberAskedFor:
    def test_centers_are_merged_and_all_rows_labelled(self, merged: SCRLM) -> None:
        assert merged.n_clusters_ == 10
        assert (merged.labels_ >= 0).all()
        scan = merged.record_["scan"]
        assert (scan["basis"], scan["extraction"]) == ("held-out", "merge")
        judged = [rung["held_out"] for rung in scan["rungs"] if rung["held_out"] is not None]
        assert len(judged) >= 4
        best = min(scan["rungs"], key=lambda rung: rung["held_out"] or np.inf)
        assert best["rho"] == merged.rho_
        assert merged.model_.tree.n_leaves > 10
        json.dumps(merged.record_, allow_nan=False)

    def test_outliers_that_are_merged_away_are_warned_of(self) -> None:
        rng = np.random.default_rng(0)
        means = rng.normal(size=(6, 64))
        inside = means[rng.integers(0, 6, 2400)] + 0.1 * rng.normal(size=(2400, 64))
        x = np.concatenate([inside, rng.normal(size=(600, 64))]).astype(np.float32)
        assert (SCRLM().fit(x).labels_ == -1).sum() == 600
        with pytest.warns(ScrlmWarning, match=r"6 clear clusters beside 20% outliers, and 4 were"):
            merged = SCRLM(n_clusters=4).fit(x)
        assert (merged.labels_ >= 0).all()
        with pytest.warns(ScrlmWarning) as said:
            SCRLM(n_clusters=4).fit(x)
        rho = float(re.search(r"--rho ([\d.]+)", str(said[0].message))[1])
        assert said[0].filename == __file__  # not a line of the package
        best = SCRLM(rho=rho, n_clusters=4, n_candidates=500).fit(x)
        assert best.n_clusters_ == 4
        assert (best.labels_[2400:] == -1).all()

    def test_it_serves_rows_better_than_the_paper_does(self, digits, merged: SCRLM) -> None:
        greedy = SCRLM(rho=merged.rho_, n_clusters=10, refine=1, robust=False).fit(digits)
        assert merged.inertia_ < greedy.inertia_

    def test_the_theory_is_not_asked_about_merging(self, digits: np.ndarray) -> None:
        """600 candidates would be few for 200 clusters that the theory speaks of."""
        few = FitConfig(n_clusters=200, n_candidates=600)
        notes: list[str] = []
        found = scrlm_dask.fit(
            digits, few, listener=lambda event: notes.append(getattr(event, "text", ""))
        )
        assert found.model.n_clusters == 200
        assert not any("candidates are few" in note for note in notes)

    @pytest.mark.slow
    def test_a_prune_that_prunes_nothing_is_told(self, digits: np.ndarray, tmp_path: Path) -> None:
        def notes_with(out: Path | None, **config: Any) -> list[str]:
            notes: list[str] = []
            scrlm_dask.fit(
                digits,
                FitConfig(n_clusters=10, **config),
                out=out,
                overwrite=True,
                listener=lambda event: notes.append(getattr(event, "text", "")),
            )
            return [note for note in notes if "had no effect" in note]

        out = tmp_path / "run"
        assert len(notes_with(out, prune=3)) == 1
        assert not notes_with(out)
        assert not notes_with(None, prune=3)  # no margins where nothing is stored
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

    def test_merging_that_was_asked_for_gives_the_number(self) -> None:
        """Though the data has fewer clear clusters."""
        drawn = mixture(64, 3, 0.0)
        assert SCRLM(n_clusters=10).fit(drawn.features).n_clusters_ == 3
        found = SCRLM(n_clusters=10, extraction="merge").fit(drawn.features)
        assert found.n_clusters_ == 10
        assert (found.labels_ >= 0).all()
        assert "3 clear clusters, but merging to 10 was asked for" in found.record_["scan"]["why"]
        # parts of clusters, none of two
        assert scores(contingency(drawn.labels, found.labels_)).purity == 1.0

    def test_merging_needs_a_number(self) -> None:
        with pytest.raises(InputError, match="merge"):
            FitConfig(extraction="merge")
        with pytest.raises(InputError, match="extraction is 'best'"):
            FitConfig(extraction="best")  # type: ignore[arg-type]


class TestMoreThanThereAre:
    """What is fewer than asked for is said, with both numbers and a way out."""

    def test_more_than_the_candidates_given_carry(self, digits: np.ndarray) -> None:
        with pytest.warns(ScrlmWarning, match=r"350 clusters were asked for, and 300 cand") as said:
            found = SCRLM(n_clusters=350, n_candidates=300).fit(digits)
        assert 100 < found.n_clusters_ <= 300
        assert (found.labels_ >= 0).all()
        text = str(said[0].message)
        assert f"carry {found.n_clusters_};" in text
        for way in ("--candidates 1797", "--rho", "scrlm kmeans --clusters 350"):
            assert way in text
        assert "fewer than the 350 asked for" in found.record_["scan"]["why"]
        assert SCRLM(n_clusters=350).fit(digits).n_clusters_ == 350

    def test_more_than_rows_can_be(self, digits: np.ndarray) -> None:
        with pytest.warns(ScrlmWarning, match="1700 clusters were asked for") as said:
            found = SCRLM(n_clusters=1700).fit(digits)
        assert 100 < found.n_clusters_ < 1700
        assert "--candidates" not in str(said[0].message)  # every row is one

    def test_a_way_that_was_taken_is_no_way_out(self, digits: np.ndarray) -> None:
        with pytest.warns(ScrlmWarning, match="200 clusters were asked for") as said:
            found = SCRLM(n_clusters=200, rho=0.9, extraction="merge").fit(digits)
        assert found.n_clusters_ < 200
        assert "give a smaller rho than 0.9, or take k-means" in str(said[0].message)

    def test_fewer_than_the_most(self) -> None:
        drawn, notes = mixture(64, 12, 0.2), []
        for rho in ("auto", 0.4):
            scrlm_dask.fit(
                drawn.features,
                FitConfig(rho=rho, n_clusters=30),
                listener=lambda event: notes.append(getattr(event, "text", "")),
            )
        assert notes.count("12 clusters found; 30 were the most asked for") == 2


class TestOdd:
    @pytest.mark.parametrize("n_clusters", [None, 2])
    def test_rows_that_are_all_alike(self, n_clusters: int | None) -> None:
        with pytest.warns(ScrlmWarning, match="no scale to choose by"):
            found = SCRLM(n_clusters=n_clusters).fit(np.full((50, 4), 3.0))
        assert found.n_clusters_ == 1
        assert (found.labels_ == 0).all()

    def test_two_rows(self) -> None:
        with pytest.warns(ScrlmWarning):
            found = SCRLM().fit(np.array([[0.0, 1.0], [2.0, 5.0]]))
        assert found.n_clusters_ in (0, 1)

    def test_rows_of_two_kinds(self) -> None:
        rows = np.repeat([[0.0, 0.0, 1.0], [4.0, 1.0, 0.0]], 40, axis=0)
        found = SCRLM().fit(rows)  # the scale is clear: no warning
        assert found.n_clusters_ == 2
        assert len(set(found.labels_[:40])) == len(set(found.labels_[40:])) == 1

    def test_pure_noise_is_said_to_have_no_scale(self) -> None:
        rows = np.random.default_rng(0).normal(size=(1500, 30))
        with pytest.warns(ScrlmWarning, match="no clear scale"):
            found = SCRLM().fit(rows)
        assert found.n_clusters_ >= 1
        assert max(s["ari"] for s in found.record_["scan"]["stability"]) <= 1.0

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

    def test_clusters_tiny_against_their_distance(self) -> None:
        """Float32 products alone could not tell rows of a cluster apart from each other."""
        rng = np.random.default_rng(0)
        centers = rng.normal(size=(6, 20))
        truth = rng.integers(0, 6, 900)
        rows = 100.0 + centers[truth] + 1e-4 * rng.normal(size=(900, 20))
        found = SCRLM().fit(rows)
        assert found.n_clusters_ == 6
        assert scores(contingency(truth, found.labels_)).accuracy == 1.0


class TestSameBits:
    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:the data has 6 clear clusters:scrlm_dask.ScrlmWarning")
    @pytest.mark.parametrize("n_clusters", [None, 4])
    @pytest.mark.parametrize("preprocess", ["none", "standardize"])
    def test_whatever_the_workers_and_the_chunks(
        self, preprocess: Preprocess, n_clusters: int | None
    ) -> None:
        drawn = mixture(32, 6, 0.3, rows=3000)
        config = FitConfig(preprocess=preprocess, n_clusters=n_clusters)
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
        ours, theirs = ([dict(rung) for rung in found.record["scan"]["rungs"]] for found in fits)
        if preprocess == "standardize":  # distances of features whose deviation has 15 digits
            far = [[rung.pop("held_out") or 0.0 for rung in rungs] for rungs in (ours, theirs)]
            np.testing.assert_allclose(far[0], far[1], rtol=1e-13)
        assert ours == theirs


class TestModel:
    def test_it_keeps_rho_and_tree(self, digits, merged: SCRLM, tmp_path: Path) -> None:
        out = tmp_path / "run"
        scrlm_dask.fit(digits, FitConfig(n_clusters=10), out=out)
        model = scrlm_dask.load_model(out)
        assert model.config.rho == merged.rho_
        assert (model.config.extraction, model.config.robust) == ("merge", False)
        for name in ("leaves", "weights", "merges", "costs"):
            assert np.array_equal(getattr(model.tree, name), getattr(merged.model_.tree, name))
        found = scrlm_dask.predict(model, digits, collect_labels=True)
        assert np.array_equal(found.labels, merged.labels_)

    def test_no_time_for_k_means_leaves_the_tree(self, digits: np.ndarray) -> None:
        hasty = LloydConfig(max_iter=10, max_seconds=1e-9)
        assert SCRLM(n_clusters=10, refine=hasty).fit(digits).model_.tree is not None


class TestScan:
    def test_it_reads_some_blocks_and_says_so(self) -> None:
        drawn = mixture(16, 4, 0.0, rows=60_000)
        found = scan_rho(drawn.features, block_rows=1000)
        assert found.n_clusters == 4
        assert found.record["blocks"] == 25  # twice the rows of the sample
        assert found.record["sampled_rows"] == 8192 + 4096
        assert found.choice.clear

    def test_it_draws(self, digits: np.ndarray, tmp_path: Path) -> None:
        found = scan_rho(digits, n_clusters=10)
        found.plot(tmp_path / "rho.png")
        assert (tmp_path / "rho.png").read_bytes()[:4] == b"\x89PNG"
        figure = found.plot()
        assert len(figure.axes) == 4
        assert figure._repr_png_().startswith(b"\x89PNG")  # what a notebook shows

    def test_it_promises_no_fit(self) -> None:
        notes: list[str] = []
        drawn = mixture(32, 350, 0.3, rows=12_000)
        scan_rho(drawn.features, listener=lambda event: notes.append(getattr(event, "text", "")))
        assert any(note.endswith("a fit judges them on all rows") for note in notes)

    def test_nothing_to_scan_is_refused(self) -> None:
        with pytest.raises(InputError, match="shows no scale"):
            scan_rho(np.ones((30, 3)))


def test_two_rows_and_two_clusters_asked_for() -> None:
    with pytest.warns(ScrlmWarning):
        assert SCRLM(n_clusters=2).fit(np.array([[0.0, 0.0], [1.0, 1.0]])).n_clusters_ == 0


def test_rows_that_are_all_alike_and_merging_asked_for() -> None:
    config = FitConfig(n_clusters=2, extraction="merge", robust=False)
    with pytest.warns(ScrlmWarning, match="no scale to choose by"):
        found = scrlm_dask.fit(np.ones((30, 3)), config, collect_labels=True)
    assert found.model.config.robust is True
    assert (found.model.n_clusters, set(found.labels.tolist())) == (1, {0})
