"""The model of a run, and notes and warnings about the result."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from backends import backend
from by_hand import CONFIG, ROWS
from messages import expecting

import scrlm_dask
from scrlm_dask.config import FitConfig, KMeansConfig
from scrlm_dask.engine.execution import Execution
from scrlm_dask.events import CandidatesJudged, Note, RowsLabelled
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec, synth_block, true_mixture
from scrlm_dask.pipeline.fit import fit
from scrlm_dask.pipeline.kmeans import kmeans
from scrlm_dask.pipeline.predict import predict
from scrlm_dask.pipeline.results import report_losses


def test_no_cluster_is_a_valid_result(tmp_path: Any) -> None:
    x = np.arange(10, dtype=np.float32)[:, None] * 100
    events: list[Any] = []
    out = tmp_path / "run"
    found = fit(
        x,
        FitConfig(rho=0.5, preprocess="none"),
        out=out,
        collect_labels=True,
        listener=events.append,
    )
    assert found.model.n_clusters == 0
    assert found.labels is not None
    assert (found.labels == -1).all()
    assert found.model.outlier_weight == 1.0
    warnings = [event.text for event in events if isinstance(event, Note) and event.warning]
    assert any(re.search(expecting("rho", 0.5, "min_neighbors"), text) for text in warnings)
    assert predict(out, x, collect_labels=True).n_outliers == 10


def test_warning_about_too_few_candidates() -> None:
    # 10 clusters and 50 % outliers: the risk is 10 exp(-0.4 n / 10), 18 % for 100, 0 for 250.
    spec = MixtureSpec(n_features=64, n_clusters=10, outliers=0.5, seed=0)
    x = synth_block(spec, true_mixture(spec), 0, 2000).features
    for candidates, warned in ((100, True), (250, False)):
        events: list[Any] = []
        fit(x, FitConfig(rho=0.5, n_candidates=candidates), listener=events.append)
        notes = [event.text for event in events if isinstance(event, Note)]
        assert any("--candidates" in text for text in notes) == warned
    with pytest.warns(scrlm_dask.ScrlmWarning, match=expecting(100, 10, "--candidates")):
        fit(x, FitConfig(rho=0.5, n_candidates=100))  # the default listener warns


def test_warning_about_one_cluster_of_all_rows() -> None:
    x = np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)
    with pytest.warns(scrlm_dask.ScrlmWarning, match=expecting("rho", 0.5, 2)):
        fit(x, FitConfig(rho=0.5, preprocess="l2"))


def events_of(config: FitConfig, kind: type) -> list[Any]:
    events: list[Any] = []
    with backend("one thread"):
        fit(ROWS, config, listener=events.append)
    return [event for event in events if isinstance(event, kind)]


def test_model_by_hand() -> None:
    model = fit(ROWS, CONFIG).model
    assert model.centers.tolist() == [[1.0], [10.0]]
    assert model.means.tolist() == [[1.0], [10.5]]
    assert (model.counts.tolist(), model.n_rows, model.n_outliers) == ([3, 2], 6, 1)
    assert model.n_candidates == 6
    # Squared distances of the labelled rows, and the squared radius for the outlier.
    assert model.inertia == pytest.approx(1 + 0 + 1 + 0 + 1 + 2.5)


def test_losses_and_sizes_are_reported() -> None:
    (judged,) = events_of(CONFIG, CandidatesJudged)
    assert (judged.candidates, judged.ranks) == (6, (1, 2, 3, 4, 5, 6))
    assert judged.losses == pytest.approx((-3.0, -1.5, -1.5, -1.5, -1.5, 0.0))
    (labelled,) = events_of(CONFIG, RowsLabelled)
    assert (labelled.rows, labelled.outliers, labelled.empty) == (6, 1, 0)
    assert labelled.inertia == pytest.approx(5.5)
    assert labelled.sizes == (0, 2)  # clusters of 1 row, of 2 or 3 rows


def test_long_curve_of_losses_is_reduced_to_100_points() -> None:
    events: list[Any] = []
    with Execution(events.append) as execution:
        report_losses(execution, -np.arange(1000.0))
    (judged,) = (event for event in events if isinstance(event, CandidatesJudged))
    assert (judged.candidates, len(judged.ranks)) == (1000, 100)
    assert (judged.ranks[0], judged.losses[0]) == (1, -999.0)
    assert (judged.ranks[-1], judged.losses[-1]) == (1000, 0.0)


def test_notes_about_the_number_of_clusters() -> None:
    (note,) = events_of(CONFIG, Note)
    assert re.search(expecting(6, "candidates"), note.text)
    (note,) = events_of(replace(CONFIG, n_clusters=5), Note)
    assert re.search(expecting(2, 5), note.text)
    assert not note.warning
    assert events_of(replace(CONFIG, n_clusters=2), Note) == []
    (note,) = events_of(replace(CONFIG, n_clusters=2, rho=100.0), Note)
    assert re.search(expecting("rho", 100), note.text)
    assert note.warning


ZEROS = np.concatenate([np.eye(4, dtype=np.float32)[np.arange(60) % 4], np.zeros((3, 4))])


@pytest.mark.parametrize("kind", ["fit", "kmeans", "predict"])
@pytest.mark.parametrize(("preprocess", "warned"), [("l2", True), ("center", False)])
def test_rows_of_zeros_are_reported_if_rows_have_unit_length(
    kind: str, preprocess: Any, warned: bool
) -> None:
    events: list[Any] = []
    if kind == "fit":
        fit(ZEROS, FitConfig(rho=0.3, preprocess=preprocess), listener=events.append)
    else:
        config, predicts = KMeansConfig(n_clusters=4, preprocess=preprocess), kind == "predict"
        rows = ZEROS[:60] if predicts else ZEROS
        model = kmeans(rows, config, listener=events.append).model
        if predicts:
            predict(model, ZEROS, listener=events.append)
    notes = [event.text for event in events if isinstance(event, Note) and event.warning]
    assert any("3 of 63 rows" in note for note in notes) == warned
