"""Errors of recovered parameters."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scrlm_dask.kernels.evaluation.metrics import contingency, recovery, scores


def test_by_hand() -> None:
    # classes 0 (4 of 8 rows) and 1 (2 of 8) have labels 1 and 0. Their weights are 0.5 and 0.2, so
    # the error of the second is 0.2/0.25 - 1 = -20 %. The sigma of class 0 is 2 instead of 2.5.
    truth = np.array([0, 0, 0, 0, 1, 1, -1, -1])
    labels = np.array([1, 1, 1, 1, 0, 0, -1, -1])
    table = contingency(truth, labels)
    found = recovery(
        table, scores(table), np.array([0.2, 0.5]), np.array([1.0, 2.0]), np.array([2.5, 1.0])
    )
    assert found.weights == pytest.approx(0.2)
    assert found.sigmas == pytest.approx(0.2)


def test_no_matched_clusters() -> None:
    table = contingency(np.array([0, 0]), np.array([-1, -1]))
    found = recovery(table, scores(table), np.zeros(0), np.zeros(0), np.ones(1))
    assert math.isnan(found.weights)
    assert math.isnan(found.sigmas)
