"""A data set of real images that needs no download."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from scrlm_dask.pipeline.stores import write_features


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write scikit-learn's digits, 1797 x 64 with 10 classes, as a features store."""
    found = load_digits()
    path = tmp_path_factory.mktemp("digits") / "digits.zarr"
    write_features(found.data.astype(np.float32), path, labels=found.target.astype(np.int32))
    return path
