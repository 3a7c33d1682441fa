"""Fixtures that several test files use."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from scrlm_dask import SCRLM, ScrlmWarning
from scrlm_dask.kernels.randomness.synthesis import MixtureSpec, synth_block, true_mixture


@pytest.fixture(scope="session")
def digits() -> np.ndarray:
    return load_digits().data


@pytest.fixture(scope="session")
def merged(digits: np.ndarray) -> SCRLM:
    plain = {"preprocess": "standardize", "refine": 0}
    with pytest.warns(ScrlmWarning):  # every row is labelled
        return SCRLM(n_clusters=10, **plain).fit(digits)


@pytest.fixture(scope="session")
def mixture() -> NDArray[np.float32]:
    spec = MixtureSpec(n_features=64, n_clusters=12, outliers=0.3, seed=3)
    return synth_block(spec, true_mixture(spec), 0, 3000).features
