"""Recovered parameters against true ones."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scrlm_dask.kernels.evaluation.metrics import contingency, recovery, scores


def test_by_hand() -> None:
    # classes 0 (4 rows of 8) and 1 (2 of 8) are labels 1 and 0; found weights 0.5 and 0.2, so the
    # second is off by 0.2/0.25 - 1 = -20 %; sigmas 2 and 1 against 2.5 (class 0: label 1 has 2)
    truth = np.array([0, 0, 0, 0, 1, 1, -1, -1])
    labels = np.array([1, 1, 1, 1, 0, 0, -1, -1])
    table = contingency(truth, labels)
    found = recovery(
        table, scores(table), np.array([0.2, 0.5]), np.array([1.0, 2.0]), np.array([2.5, 1.0])
    )
    assert found.weights == pytest.approx(0.2)
    assert found.sigmas == pytest.approx(0.2)


def test_nothing_matched() -> None:
    table = contingency(np.array([0, 0]), np.array([-1, -1]))
    found = recovery(table, scores(table), np.zeros(0), np.zeros(0), np.ones(1))
    assert math.isnan(found.weights)
    assert math.isnan(found.sigmas)
