"""Comparison of methods on the same rows, with the scores of `evaluate`."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from messages import expecting

import scrlm_dask
from scrlm_dask.errors import InputError, ScrlmWarning, UnusableRowsError
from scrlm_dask.events import Note
from scrlm_dask.kernels.randomness.synthesis import (
    MixtureSpec,
    SynthBlock,
    synth_block,
    true_mixture,
)
from scrlm_dask.paper.compare import compare
from scrlm_dask.pipeline.evaluate import read_labels

pytestmark = pytest.mark.slow


def draw_mixture(outliers: float, n_rows: int = 600) -> SynthBlock:
    spec = MixtureSpec(40, 3, outliers)
    return synth_block(spec, true_mixture(spec), 0, n_rows)


def test_scores_costs_and_spread() -> None:
    block = draw_mixture(0.0)
    events: list[Any] = []
    found = compare(
        block.features,
        block.labels,
        n_clusters=3,
        methods=["td", "k-means++"],
        seeds=2,
        listener=events.append,
    )
    assert (found.n_rows, found.n_features, found.preprocess) == (600, 40, "standardize")
    td, kmeans = found.methods
    assert (td.method, td.n_clusters, td.reason) == ("td", 3, None)
    assert [attempt.seed for attempt in kmeans.attempts] == [0, 1]
    accuracy = td.spread("accuracy")
    assert accuracy is not None
    assert (accuracy.mean, accuracy.deviation) == (1.0, 0.0)
    taken = [attempt.cpu_seconds for attempt in kmeans.attempts]
    spread = kmeans.spread("cpu_seconds")
    assert spread is not None
    assert spread.mean == pytest.approx(np.mean(np.array(taken, float)))
    assert spread.deviation == pytest.approx(np.std(np.array(taken, float)))
    texts = [event.text for event in events if isinstance(event, Note)]
    assert re.search(r"\btd\b.*\b0\b", texts[0])
    assert re.search(r"\btd\b.*\b100\.00%", texts[1])


def test_methods_without_outliers_get_a_cluster_for_them() -> None:
    block = draw_mixture(0.5)
    found = compare(
        block.features, block.labels, n_clusters=3, methods=["td", "scrlm"], outliers=True
    )
    assert [(m.method, m.n_clusters) for m in found.methods] == [("td", 4), ("scrlm", 3)]
    for method in found.methods:
        scored = method.attempts[0].scores
        assert scored is not None
        assert scored.accuracy == scored.outlier_precision == scored.outlier_recall == 1.0


def test_inputs_that_change_while_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = draw_mixture(0.0, n_rows=200)
    store, truth = str(tmp_path / "x.zarr"), tmp_path / "truth.npy"
    scrlm_dask.FeatureStore.write(block.features, store)
    np.save(truth, block.labels)

    def rewrite(event: object) -> None:
        zarr.open_array(f"{store}/features", mode="r+")[0] = 1.0

    with pytest.raises(UnusableRowsError, match=store):
        compare(store, truth, n_clusters=3, methods=["td"], listener=rewrite)

    def read(*args: Any) -> np.ndarray:
        labels = read_labels(*args)
        np.save(truth, np.zeros_like(block.labels))
        return labels

    monkeypatch.setattr("scrlm_dask.paper.compare.read_labels", read)
    with pytest.raises(UnusableRowsError, match=str(truth)):
        compare(block.features, truth, n_clusters=3, methods=["td"])


def test_unexpected_outliers_are_reported() -> None:
    block = draw_mixture(0.5, n_rows=200)
    share = f"{np.mean(block.labels == -1):.2%}"
    with pytest.warns(ScrlmWarning, match=rf"(?=.*\b{share})(?=.*--outliers)"):
        found = compare(block.features, block.labels, n_clusters=3, methods=["td"])
    scored = found.methods[0].attempts[0].scores
    assert scored is not None
    assert math.isnan(scored.outlier_precision)
    assert scored.accuracy < 0.7


def test_method_that_fails_has_a_reason_and_no_scores() -> None:
    block = draw_mixture(0.0, n_rows=200)
    found = compare(
        block.features, block.labels, n_clusters=300, methods=["k-means++", "td"], seeds=2
    )
    for method in found.methods:
        assert len(method.attempts) == 1  # another seed would also fail
        assert method.reason is not None
        assert "300" in method.reason
        assert method.spread("accuracy") is None


def test_sample_of_rows_from_a_store_with_its_labels(tmp_path: Path) -> None:
    spec = MixtureSpec(40, 3, 0.0)
    scrlm_dask.synth(tmp_path / "x.zarr", 3000, spec, chunk_bytes=40 * 4 * 500)
    first = compare(tmp_path / "x.zarr", n_clusters=3, methods=["td"], n_rows=500)
    assert first.n_rows == 500
    scored = first.methods[0].attempts[0].scores
    assert scored is not None
    assert (scored.n_rows, scored.accuracy) == (500, 1.0)  # the labels belong to the sampled rows


def test_truth_of_the_source_of_a_shuffled_store(tmp_path: Path) -> None:
    truth = np.repeat([0, 1], 60)
    np.save(tmp_path / "x.npy", np.arange(8.0) + 50 * truth[:, None])
    config = scrlm_dask.IngestConfig(shuffle=True)
    scrlm_dask.ingest(tmp_path / "x.npy", tmp_path / "x.zarr", config)
    with pytest.warns(ScrlmWarning, match=expecting(tmp_path / "x.zarr", "source_row")):
        compare(tmp_path / "x.zarr", truth, n_clusters=2, methods=["k-means++"])


def test_rows_are_preprocessed(tmp_path: Path) -> None:
    # the informative feature has a small scale, so it counts only after standardization
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1], 150)
    x = rng.standard_normal((300, 2)) * [1e-3, 1e3] + np.outer(truth, [1.0, 0.0])
    found = {
        kind: compare(x, truth, n_clusters=2, methods=["k-means++"], preprocess=kind)
        for kind in ("none", "standardize")
    }
    accuracies = {kind: c.methods[0].attempts[0].scores for kind, c in found.items()}
    assert accuracies["none"] is not None
    assert accuracies["standardize"] is not None
    assert accuracies["none"].accuracy < 0.7
    assert accuracies["standardize"].accuracy > 0.95


def test_rows_that_exceed_memory_are_rejected_with_a_suggestion() -> None:
    block = draw_mixture(0.0)
    facts = r"(?=.*\b192\.0 kB)(?=.*\b100\.0 kB)(?=.*--rows 156\b)"
    with pytest.raises(InputError, match=facts):
        compare(block.features, block.labels, n_clusters=3, memory_limit=100_000)


@pytest.mark.parametrize(
    ("changed", "facts"),
    [
        ({"methods": ["td", "dbscan"]}, "'dbscan'"),
        ({"methods": []}, "method"),
        ({"n_clusters": 0}, r"(?=.*\b0\b)(?=.*cluster)"),
        ({"seeds": 0}, r"(?=.*\b0\b)(?=.*seed)"),
        ({"timeout": 0.0}, r"(?=.*\b0\b)(?=.*time)"),
        ({"n_rows": 0}, r"(?=.*\b0\b)(?=.*rows)"),
        ({"truth": None}, "truth"),
        ({"truth": np.zeros(7, np.int64)}, r"(?=.*\b7\b)(?=.*\b600\b)"),
        ({"truth": np.zeros(600)}, r"\bfloat64\b"),
    ],
)
def test_rejected_arguments(changed: dict[str, Any], facts: str) -> None:
    block = draw_mixture(0.0)
    given: dict[str, Any] = {"truth": block.labels, "n_clusters": 3, "methods": ["td"], **changed}
    with pytest.raises(InputError, match=facts):
        compare(block.features, **given)
