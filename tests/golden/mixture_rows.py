"""The rows that all cases use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scrlm_dask.pipeline.stores import write_features

ROWS, FEATURES, BLOCK_ROWS = 600, 12, 100
SIZES = (170, 140, 110, 80, 60)  # rows of the clusters; the rest are outliers
SIGMA, SPREAD, REACH = 0.3, 4.0, 12.0
RHO = 0.3  # after standardization: larger than all sigmas, much smaller than the distances


def mixture() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return rows of separate clusters with outliers between them, and their labels."""
    rng = np.random.default_rng(20240229)
    means = rng.normal(size=(len(SIZES), FEATURES)) * SPREAD
    parts = [means[k] + rng.normal(size=(size, FEATURES)) * SIGMA for k, size in enumerate(SIZES)]
    parts.append(rng.uniform(-REACH, REACH, size=(ROWS - sum(SIZES), FEATURES)))
    labels = np.repeat([*range(len(SIZES)), -1], [len(part) for part in parts])
    order = rng.permutation(ROWS)
    return np.concatenate(parts)[order].astype(np.float32), labels[order]


def features_store(folder: Path) -> Path:
    """Write the mixture with its labels as a features store with one chunk per block."""
    rows, labels = mixture()
    path = folder / "features.zarr"
    write_features(rows, path, labels=labels, chunk_bytes=BLOCK_ROWS * FEATURES * 4)
    return path
