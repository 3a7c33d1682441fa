"""The loss pass on all rows or a subset, and the extraction of centers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from backends import backend

from scrlm_dask.config import FitConfig
from scrlm_dask.engine.execution import Execution
from scrlm_dask.engine.features import as_features
from scrlm_dask.events import BlockDone, PhaseFinished
from scrlm_dask.kernels.distances.preprocessing import AffineMap
from scrlm_dask.kernels.randomness.sampling import Purpose, sample_rows
from scrlm_dask.passes.loss import extract, loss_pass
from scrlm_dask.passes.survey import candidates_from, survey_pass


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    with backend("one thread"):
        yield


# Two groups on a line and a row far from both.
X = np.array([[0.0], [1.0], [2.0], [20.0], [21.0], [90.0]])


def candidates_of(execution: Execution, features: Any, rows: np.ndarray) -> Any:
    survey = survey_pass(execution, features, rows, with_moments=False)
    affine = AffineMap("none", np.zeros(features.n_features), np.ones(features.n_features))
    return candidates_from(survey, rows, affine)


@pytest.mark.parametrize("block_rows", [1, 4, 6])
def test_losses_and_centers_by_hand(block_rows: int) -> None:
    # p = 1, rho = 2, F = 1: R^2 = 4; the loss of a candidate is the sum of d^2 / 4 - 1
    config = FitConfig(rho=2.0, F=1.0, preprocess="none", n_candidates=6).resolve(6)
    events: list[Any] = []
    with Execution(events.append) as execution:
        features = as_features(X, block_rows)
        candidates = candidates_of(execution, features, np.arange(6))
        (losses,) = loss_pass(execution, features, candidates, config, [2.0]).losses
        found = extract(execution, candidates, losses, config)
    assert losses.neighbors.tolist() == [1, 2, 1, 1, 1, 0]
    np.testing.assert_allclose(losses.losses, [-0.75, -1.5, -0.75, -0.75, -0.75, 0.0], atol=1e-6)
    assert found.rows.tolist() == [1, 3]
    assert found.centers.tolist() == [[1.0], [20.0]]
    names = [event.name for event in events if isinstance(event, PhaseFinished)]
    assert names == ["survey", "loss", "extract"]


def test_only_rows_of_the_subset_are_neighbors() -> None:
    config = FitConfig(rho=2.0, F=1.0, preprocess="none", n_candidates=6, loss_rows=3).resolve(6)
    subset = sample_rows(config.asked.seed, Purpose.LOSS_ROWS, 6, 3)
    events: list[Any] = []
    with Execution(events.append) as execution:
        features = as_features(X, 1)
        candidates = candidates_of(execution, features, np.arange(6))
        (losses,) = loss_pass(execution, features, candidates, config, [2.0]).losses
    near = np.abs(X - X.T) < 2.0
    expected = [sum(near[c, row] and c != row for row in subset) for c in range(6)]
    assert losses.neighbors.tolist() == expected
    assert sum(e.rows for e in events if isinstance(e, BlockDone) and e.name == "loss") == 3


def test_several_bandwidths_need_one_read() -> None:
    features = as_features(np.random.default_rng(0).normal(size=(400, 8)), 150)
    config = FitConfig(rho=0.5, n_candidates=40, preprocess="none").resolve(400)
    rows = np.arange(0, 400, 10)
    read: list[int] = []

    def listener(event: Any) -> None:
        if isinstance(event, BlockDone) and event.name == "loss":
            read.append(event.rows)

    with Execution(listener) as execution:
        candidates = candidates_of(execution, features, rows)
        rhos = [0.4, 0.6, 0.8]
        together = loss_pass(execution, features, candidates, config, rhos).losses
        assert sum(read) == 400
        separate = [
            loss_pass(execution, features, candidates, config, [rho]).losses[0] for rho in rhos
        ]
    for many, one in zip(together, separate, strict=True):
        np.testing.assert_array_equal(many.neighbors, one.neighbors)
        np.testing.assert_allclose(many.losses, one.losses, rtol=1e-5, atol=1e-5)
    assert together[2].neighbors.sum() > together[0].neighbors.sum()
