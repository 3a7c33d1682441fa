"""Methods beside each other: the same rows for all, and scores as `evaluate` has them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scrlm_dask
from scrlm_dask.errors import InputError, ScrlmWarning
from scrlm_dask.events import Note
from scrlm_dask.kernels.randomness.synthesis import (
    MixtureSpec,
    SynthBlock,
    synth_block,
    true_mixture,
)
from scrlm_dask.paper.compare import compare

pytestmark = pytest.mark.slow


def drawn(outliers: float, n_rows: int = 600) -> SynthBlock:
    spec = MixtureSpec(40, 3, outliers)
    return synth_block(spec, true_mixture(spec), 0, n_rows)


def test_scores_costs_and_spread() -> None:
    block = drawn(0.0)
    heard: list[Any] = []
    found = compare(
        block.features,
        block.labels,
        n_clusters=3,
        methods=["td", "k-means++"],
        seeds=2,
        listener=heard.append,
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
    texts = [event.text for event in heard if isinstance(event, Note)]
    assert texts[0] == "running td with seed 0"
    assert texts[1].startswith("td: accuracy 100.00%")


def test_those_who_know_no_outliers_get_a_cluster_for_them() -> None:
    block = drawn(0.5)
    found = compare(
        block.features, block.labels, n_clusters=3, methods=["td", "scrlm"], outliers=True
    )
    assert [(m.method, m.n_clusters) for m in found.methods] == [("td", 4), ("scrlm", 3)]
    for method in found.methods:
        scored = method.attempts[0].scores
        assert scored is not None
        assert scored.accuracy == scored.outlier_precision == scored.outlier_recall == 1.0


def test_outliers_that_nobody_spoke_of_are_told() -> None:
    block = drawn(0.5, n_rows=200)
    with pytest.warns(ScrlmWarning, match="of the rows are outliers in truth"):
        found = compare(block.features, block.labels, n_clusters=3, methods=["td"])
    scored = found.methods[0].attempts[0].scores
    assert scored is not None
    assert math.isnan(scored.outlier_precision)
    assert scored.accuracy < 0.7


def test_a_method_that_does_not_finish_has_a_reason_and_no_scores() -> None:
    block = drawn(0.0, n_rows=200)
    found = compare(
        block.features, block.labels, n_clusters=300, methods=["k-means++", "td"], seeds=2
    )
    for method in found.methods:
        assert len(method.attempts) == 1  # the other seed would not fare better
        assert method.reason is not None
        assert "300" in method.reason
        assert method.spread("accuracy") is None


def test_a_sample_of_rows_from_a_store_with_its_labels(tmp_path: Path) -> None:
    spec = MixtureSpec(40, 3, 0.0)
    scrlm_dask.synth(tmp_path / "x.zarr", 3000, spec, chunk_bytes=40 * 4 * 500)
    first = compare(tmp_path / "x.zarr", n_clusters=3, methods=["td"], n_rows=500)
    assert first.n_rows == 500
    scored = first.methods[0].attempts[0].scores
    assert scored is not None
    assert (scored.n_rows, scored.accuracy) == (500, 1.0)  # rows and truth are the same ones


def test_preprocessing_is_done_before(tmp_path: Path) -> None:
    # one feature says it all, and drowns unless all are brought to one scale
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


def test_rows_that_do_not_fit_are_refused_with_a_sample_that_would() -> None:
    block = drawn(0.0)
    with pytest.raises(InputError, match=r"192.0 kB, of which 100.0 kB may be used.*--rows 156"):
        compare(block.features, block.labels, n_clusters=3, memory_limit=100_000)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"methods": ["td", "dbscan"]}, "'dbscan' is not known"),
        ({"methods": []}, "no method is named"),
        ({"n_clusters": 0}, r"0 cluster\(s\)"),
        ({"seeds": 0}, r"0 seed\(s\)"),
        ({"timeout": 0.0}, "time limit is 0 s"),
        ({"n_rows": 0}, "0 rows cannot be compared on"),
        ({"truth": None}, "brings no labels; give the truth"),
        ({"truth": np.zeros(7, np.int64)}, "the truth has 7 rows and the array has 600"),
        ({"truth": np.zeros(600)}, "labels are one integer a row"),
    ],
)
def test_what_cannot_be_compared_is_refused(changed: dict[str, Any], words: str) -> None:
    block = drawn(0.0)
    given: dict[str, Any] = {"truth": block.labels, "n_clusters": 3, "methods": ["td"], **changed}
    with pytest.raises(InputError, match=words):
        compare(block.features, **given)
